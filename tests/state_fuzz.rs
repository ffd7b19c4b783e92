//! A fuzzer of `onebit::state` on stable: the real files of tests/fixtures are the corpus, and what is learnt from them makes
//! the layouts. `ONEBIT_FUZZ_SECONDS` (5 by default), `ONEBIT_FUZZ_SEED`.
//!
//! No input may panic, take long, or make the reader allocate what a file only claims: the process has an address-space limit
//! little above what it needs, and an allocation that fails ends it. The last input stays in `target/tmp/state-fuzz.input`.

#[path = "mutations/rng.rs"]
mod rng;

use std::collections::BTreeMap;
use std::io::{BufReader, Cursor};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use onebit::state::{
    Checked, Expect, Layout, ModelFacts, StateError, check, check_and_convert, convert, diff, first_rows, inspect,
    read_header,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use rng::Rng;

/// More than the reader needs for files of 30 KB by far, less than any attack on a count would take.
const ROOM: u64 = 64 << 20;

/// For one input. Generous: the machine may be busy with other things.
const LIMIT: Duration = Duration::from_secs(2);

struct Corpus {
    files: Vec<Vec<u8>>,
    /// Layouts with the native file that each was learnt from, and the positions in it.
    layouts: Vec<(Layout, Vec<u8>, usize)>,
    prompt: Vec<i32>,
}

impl Corpus {
    fn read() -> Self {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        let mut named: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "state") {
                let name = path.file_name().unwrap().to_str().unwrap().to_owned();
                named.insert(name, std::fs::read(&path).unwrap());
            }
        }
        assert!(named.len() > 12);
        let plain = ModelFacts::attention(3, 4);
        let layout = |name: &str, facts: ModelFacts, n_states| {
            let native = named[&format!("{name}-40.v4.state")].clone();
            (Layout::learn(&native, &facts).unwrap(), native, n_states)
        };
        let layouts = vec![
            layout("tiny-llama", plain, 40),
            layout("tiny-gemma3", ModelFacts { n_layer: 6, n_swa: 32, ..plain }, 40),
            layout("tiny-mamba", ModelFacts { is_recurrent: true, ..plain }, 39),
        ];
        let prompt = (0..40).map(|i| (37 * i + 11) % 256).collect();
        Self { files: named.into_values().collect(), layouts, prompt }
    }

    /// One input, of one to four changes to a file.
    fn input(&self, rng: &mut Rng) -> Vec<u8> {
        let mut file = rng.choose(&self.files).clone();
        for _ in 0..1 + rng.below(4) {
            self.change(&mut file, rng);
        }
        file
    }

    fn change(&self, file: &mut Vec<u8>, rng: &mut Rng) {
        if file.len() < 16 {
            let more = rng.below(100);
            return file.extend(rng.bytes(more));
        }
        let at = place(file.len(), rng);
        match rng.below(10) {
            0..3 => file[at] ^= 1 << rng.below(8),
            // A word as large as a count can be, at a word's place.
            3..6 => {
                const LARGE: [u32; 12] =
                    [0, 1, 2, 39, 40, 41, 1 << 10, 1 << 16, 1 << 24, i32::MAX as u32, 1 << 31, u32::MAX];
                let at = (at & !3).min(file.len() - 4);
                let word = if rng.below(4) == 0 { rng.next() as u32 } else { *rng.choose(&LARGE) };
                file[at..at + 4].copy_from_slice(&word.to_le_bytes());
            }
            6 => file.truncate(at),
            7 => {
                let n = rng.below(300);
                file.splice(at..at, rng.bytes(n));
            }
            8 => {
                let end = (at + rng.below(3000)).min(file.len());
                file.drain(at..end);
            }
            // A piece of another file, in place of as much of this one or between.
            _ => {
                let other = rng.choose(&self.files);
                let start = place(other.len(), rng);
                let piece = &other[start..(start + rng.below(4000)).min(other.len())];
                let end = if rng.below(2) == 0 { at } else { (at + piece.len()).min(file.len()) };
                file.splice(at..end, piece.iter().copied());
            }
        }
    }

    /// Everything that is done with a file which nobody vouches for. True when it was accepted.
    fn use_it(&self, file: &[u8], rng: &mut Rng) -> bool {
        // A length that is not the file's: it was cut, or grew, after it was asked for.
        let len = match rng.below(16) {
            0 => file.len() as u64 / 2,
            1 => u64::MAX,
            2 => 1 << 40,
            _ => file.len() as u64,
        };
        let (layout, native, n_states) = rng.choose(&self.layouts);
        let expect = Expect { ids: &self.prompt, n_states: *n_states, n_ctx: 1024, scan: rng.below(2) == 0 };
        let _ = read_header(&mut &file[..], len);
        let _ = inspect(&mut Cursor::new(file), len, Some(layout).filter(|_| rng.below(2) == 0));
        let facts = ModelFacts {
            is_recurrent: rng.below(2) == 0,
            is_hybrid: rng.below(2) == 0,
            n_layer: 3,
            n_swa: 32,
            swa_chunked: rng.below(2) == 0,
            native: 4,
            n_streams: 1 + 3 * u32::from(rng.below(4) == 0),
        };
        let _ = Layout::learn(file, &facts);
        let n = Some(8).filter(|_| rng.below(2) == 0);
        let native = (&mut Cursor::new(native), native.len() as u64);
        let _ = diff(native, (&mut Cursor::new(file), len), layout, n);
        let _ = first_rows(&mut Cursor::new(file), len, layout, 8);
        let _ = convert(&mut &file[..], len, layout, 3, &mut std::io::sink());
        let checked = check(&mut BufReader::with_capacity(1 + rng.below(600), file), len, layout, &expect);
        let mut copy = Vec::new();
        let converted = check_and_convert(&mut &file[..], len, layout, &expect, &mut copy);
        let cells = |checked: &Checked| checked.sections.iter().map(|section| section.n_cells).collect::<Vec<_>>();
        let told = |result: &Result<Checked, StateError>| match result {
            Ok(checked) => Ok((checked.version, checked.n_area, checked.body_offset, cells(checked))),
            Err(error) => Err(error.to_string()),
        };
        assert_eq!(told(&checked), told(&converted));
        if let Ok(converted) = converted {
            let again = check(&mut &copy[..], copy.len() as u64, layout, &expect).unwrap();
            assert_eq!(again.sections, converted.sections);
            assert_eq!(again.scan(&copy, 1).is_ok(), again.scan(&copy, 3).is_ok());
        }
        if let Err(error) = &checked {
            assert!(!error.to_string().contains('\n'));
        }
        checked.is_ok()
    }
}

/// Half of the places are near the start, where most of the structure is.
fn place(len: usize, rng: &mut Rng) -> usize {
    let near = if rng.below(2) == 0 { len } else { len.min(900) };
    rng.below(near)
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// Bounds the memory that this process may have from now on.
fn limit_memory() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
    let kibibytes: u64 = line.trim().strip_suffix(" kB").unwrap().parse().unwrap();
    let limit = Rlimit { current: Some(kibibytes * 1024 + ROOM), ..getrlimit(Resource::As) };
    setrlimit(Resource::As, limit).unwrap();
}

#[test]
fn nothing_a_file_says_is_believed() {
    let corpus = Corpus::read();
    let (seconds, seed) = (number("ONEBIT_FUZZ_SECONDS", 5), number("ONEBIT_FUZZ_SEED", 1));
    let last = Path::new(env!("CARGO_TARGET_TMPDIR")).join("state-fuzz.input");
    limit_memory();
    let started = Instant::now();
    let (mut n_inputs, mut n_accepted) = (0, 0u64);
    while started.elapsed() < Duration::from_secs(seconds) {
        let mut rng = Rng::new(seed, n_inputs);
        let file = corpus.input(&mut rng);
        std::fs::write(&last, &file).unwrap();
        let began = Instant::now();
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| corpus.use_it(&file, &mut rng)));
        match outcome {
            Ok(accepted) => n_accepted += u64::from(accepted),
            Err(panic) => {
                eprintln!("input {n_inputs} of seed {seed}, kept in {}", last.display());
                std::panic::resume_unwind(panic);
            }
        }
        assert!(began.elapsed() < LIMIT, "input {n_inputs} of seed {seed} took {:?}", began.elapsed());
        n_inputs += 1;
    }
    eprintln!("{n_inputs} inputs of seed {seed} in {seconds} s, {n_accepted} accepted");
    assert!(n_inputs > 100, "too slow to tell anything");
}
