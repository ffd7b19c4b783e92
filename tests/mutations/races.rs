//! A file that somebody changes while it is restored: what was checked must be what is loaded.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use onebit::engine::{CacheType, EngineError};

use crate::common::kinds::{Answer, Kind};
use crate::map::Map;
use crate::{Bench, number};

/// How long each of the writers goes on.
fn time() -> Duration {
    Duration::from_millis(number("ONEBIT_RACE_MILLISECONDS", 700))
}

/// Restores the file again and again while `write` changes it. Accepted or not, the answer is never another one, unless
/// `any_values`: then the writer leaves other values in a good structure.
fn race(kind: Kind, any_values: bool, write: impl Fn(&Path, &Bench, u64) + Sync) {
    let folder = tempfile::tempdir().unwrap();
    let bench = Bench::new(kind, CacheType::F16, 40, &[], folder.path());
    let path = folder.path().join("raced");
    fs::write(&path, &bench.good.file).unwrap();
    let stop = AtomicBool::new(false);
    let (mut n_accepted, mut n_refused) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut turn = 0;
            while !stop.load(Ordering::Relaxed) {
                write(&path, &bench, turn);
                turn += 1;
            }
        });
        // Also when an assertion below fails: the scope waits for the writer.
        let _stop = StopOnDrop(&stop);
        let started = Instant::now();
        while started.elapsed() < time() {
            match bench.restored(&path) {
                Ok(answer) => {
                    n_accepted += 1;
                    let expected = Answer { ids: bench.answer.clone(), n_evaluated: 1 };
                    assert!(any_values || answer == expected, "{kind:?}: {answer:?}, not {expected:?}");
                }
                Err(EngineError::Restore(_)) => n_refused += 1,
                Err(error) => panic!("{kind:?}: {error}"),
            }
            if (n_accepted + n_refused) % 8 == 0 {
                bench.look(n_refused);
            }
        }
    });
    bench.look(0);
    bench.look(1);
    eprintln!("{kind:?}: {n_accepted} accepted, {n_refused} refused");
}

struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Between a write and the next some restores begin with a good file, others with a bad one.
fn pause() {
    std::thread::sleep(Duration::from_micros(50));
}

/// Every field in turn, and back.
#[test]
fn fields_that_change() {
    for kind in [Kind::Attention, Kind::SlidingWindow, Kind::Recurrent, Kind::Hybrid] {
        race(kind, false, |path, bench, turn| {
            let file = File::options().write(true).open(path).unwrap();
            let fields = &bench.good.map.fields;
            // Positions and counts more often: they are what llama.cpp trusts.
            let field = match turn % 2 {
                0 => &fields[usize::try_from(turn / 2).unwrap() % fields.len()],
                _ => dangerous(&bench.good.map, turn / 2),
            };
            let bad = [0xff; 8];
            file.write_all_at(&bad[..field.n_bytes], field.at as u64).unwrap();
            pause();
            file.write_all_at(&bench.good.file[field.at..field.at + field.n_bytes], field.at as u64).unwrap();
            pause();
        });
    }
}

fn dangerous(map: &Map, turn: u64) -> &crate::map::Field {
    let all: Vec<_> = map.fields.iter().filter(|field| ["position", "cell count"].contains(&field.what)).collect();
    all[usize::try_from(turn).unwrap() % all.len()]
}

/// Cut short, and written again.
#[test]
fn lengths_that_change() {
    for kind in [Kind::SlidingWindow, Kind::Recurrent, Kind::MRope] {
        race(kind, true, |path, bench, turn| {
            let file = File::options().write(true).open(path).unwrap();
            let boundaries = bench.good.map.boundaries();
            file.set_len(boundaries[usize::try_from(turn).unwrap() % boundaries.len()] as u64).unwrap();
            pause();
            file.write_all_at(&bench.good.file, 0).unwrap();
            pause();
            file.set_len(2 * bench.good.file.len() as u64).unwrap();
            file.set_len(bench.good.file.len() as u64).unwrap();
            pause();
        });
    }
}

/// Another file takes the name, or none.
#[test]
fn names_that_change() {
    race(Kind::SlidingWindow, false, |path, bench, turn| {
        let other = path.with_extension("other");
        match turn % 4 {
            0 => fs::write(&other, &bench.good.file[..bench.good.file.len() / 2]).unwrap(),
            1 => std::os::unix::fs::symlink(&bench.good_file, &other).unwrap(),
            2 => fs::write(&other, &bench.good.file).unwrap(),
            _ => return fs::remove_file(path).unwrap(),
        }
        fs::rename(&other, path).unwrap();
        pause();
    });
}
