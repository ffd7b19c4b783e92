//! What is at the path is not a file, or not the one that was meant.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use onebit::engine::{CacheType, EngineError};
use rustix::fs::{CWD, Mode};

use crate::Bench;
use crate::common::kinds::Kind;

fn check_refused(bench: &Bench, path: &Path, expected: &str) {
    match bench.restored(path) {
        Err(EngineError::Restore(reason)) => assert!(reason.contains(expected), "{}: {reason}", path.display()),
        other => panic!("{}: {other:?}", path.display()),
    }
    bench.look(0);
    bench.look(1);
}

#[test]
fn what_is_no_regular_file() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    symlink("/nowhere", at("dangling")).unwrap();
    symlink(at("loop"), at("loop")).unwrap();
    fs::create_dir(at("folder")).unwrap();
    rustix::fs::mkfifoat(CWD, at("fifo"), Mode::RWXU).unwrap();
    rustix::fs::mkfifoat(CWD, at("fed"), Mode::RWXU).unwrap();
    // Opened for both: neither end waits for the other.
    let fed = File::options().read(true).write(true).open(at("fed")).unwrap();
    let _socket = UnixListener::bind(at("socket")).unwrap();
    for kind in [Kind::Attention, Kind::Hybrid] {
        let bench = Bench::new(kind, CacheType::F16, 12, &[], folder.path());
        let _ = fs::remove_file(at("link"));
        symlink(&bench.good_file, at("link")).unwrap();
        std::io::Write::write_all(&mut &fed, &bench.good.file[..512]).unwrap();
        for name in ["link", "dangling", "loop"] {
            check_refused(&bench, &at(name), "a symbolic link, not a regular file");
        }
        check_refused(&bench, &at("folder"), "a directory, not a regular file");
        for name in [at("fifo"), at("fed"), PathBuf::from("/dev/zero"), "/dev/null".into(), "/dev/full".into()] {
            check_refused(&bench, &name, "a device or a pipe, not a regular file");
        }
        for name in
            [at("socket"), at("missing"), at("missing/state"), at("a\0b"), at(&"long".repeat(100)), PathBuf::new()]
        {
            check_refused(&bench, &name, "cannot open the state file");
        }
        // Regular files whose size is a lie.
        for name in
            ["/proc/self/maps", "/proc/self/status", "/proc/self/mem", "/sys/kernel/mm/transparent_hugepage/enabled"]
        {
            if Path::new(name).exists() {
                check_refused(&bench, Path::new(name), "");
            }
        }
    }
}

#[test]
fn files_of_strange_sizes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("strange");
    for kind in [Kind::SlidingWindow, Kind::Recurrent] {
        let bench = Bench::new(kind, CacheType::F16, 12, &[], folder.path());
        let file = File::create(&path).unwrap();
        check_refused(&bench, &path, "the file ends too early");
        // Terabytes that take no room.
        file.set_len(1 << 42).unwrap();
        check_refused(&bench, &path, "magic");
        file.write_all_at(&bench.good.file, 0).unwrap();
        check_refused(&bench, &path, "follow the end");
        file.write_all_at(&u32::MAX.to_le_bytes(), 8).unwrap();
        check_refused(&bench, &path, "token ids claimed");
        // The same of an older state version, which is rewritten as it is read.
        let newer: u32 = u32::from_le_bytes(bench.good.file[4..8].try_into().unwrap());
        file.write_all_at(&bench.good.file[..12], 0).unwrap();
        file.write_all_at(&(newer - 1).to_le_bytes(), 4).unwrap();
        check_refused(&bench, &path, "bad state file");
    }
}

/// The same file under another name is the same file, and one that is gone by name is still what was opened.
#[test]
fn names_do_not_matter() {
    let folder = tempfile::tempdir().unwrap();
    let bench = Bench::new(Kind::Attention, CacheType::F16, 12, &[], folder.path());
    let link = folder.path().join("hard link");
    fs::hard_link(&bench.good_file, &link).unwrap();
    assert_eq!(bench.restored(&link).unwrap().ids, bench.answer);
    fs::rename(&link, folder.path().join("n\u{e4}me \u{1f600} \n")).unwrap();
    assert_eq!(bench.restored(&folder.path().join("n\u{e4}me \u{1f600} \n")).unwrap().ids, bench.answer);
    check_refused(&bench, &link, "cannot open the state file");
}
