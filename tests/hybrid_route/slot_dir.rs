//! The life of the slot directory, seen from outside.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::common::bench::{Bench, GOOD, entries, expect_fallback, expect_handoff};
use crate::common::request::Request;
use crate::common::server::Setup;

/// Notes the names it was given.
const NOTE: &str = "echo \"$PWD $tokens $PWD/$out\" >> \"$bench/names\"";

fn names(folder: &Path) -> Vec<String> {
    entries(folder).iter().map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect()
}

#[test]
fn made_private_used_and_removed() {
    let bench = Bench::new(GOOD);
    let server = bench.start();
    let [slot_dir] = &bench.slot_dirs()[..] else { panic!("not one: {:?}", bench.slot_dirs()) };
    assert_eq!(fs::metadata(slot_dir).unwrap().permissions().mode() & 0o7777, 0o700);

    let ways = [GOOD, "echo half > \"$out\"; touch more; exit 3", GOOD, "mkdir \"$out\"; reply"];
    for way in ways {
        bench.behave(&format!("{NOTE}; {way}"));
        if way == GOOD {
            expect_handoff(&server, &Request::text("Some files?"));
        } else {
            expect_fallback(&server, &Request::text("Some files?"));
        }
        assert_eq!(names(slot_dir), ["lock"], "nothing of the request is left");
    }
    let noted = bench.text("names");
    let distinct: HashSet<_> = noted.split_whitespace().collect();
    assert_eq!(distinct.len(), 3 * ways.len(), "no name comes twice: {noted}");
    assert!(distinct.iter().all(|path| Path::new(path).starts_with(slot_dir)), "{noted}");

    server.stop();
    assert!(bench.slot_dirs().is_empty());
}

#[test]
fn in_shared_memory_or_the_temporary_folder_unless_told() {
    let bench = Bench::new(&format!("{NOTE}; {GOOD}"));
    let setup = Setup::device("hybrid").flag("--prefill-provider", bench.provider());
    let server = setup.env("TMPDIR", bench.path("slots")).start();
    expect_handoff(&server, &Request::text("Where?"));
    let noted = bench.text("names");
    let run_dir = Path::new(noted.split_whitespace().next().unwrap());
    let slot_dir = run_dir.parent().unwrap();
    let base = slot_dir.parent().unwrap();
    assert!(base == Path::new("/dev/shm") || base == bench.slots(), "{noted}");
    server.stop();
    assert!(!slot_dir.exists());
}

#[test]
fn a_dead_servers_is_removed_and_a_living_ones_is_not() {
    let bench = Bench::new(GOOD);
    let living = bench.start();
    let of_living = bench.slot_dirs();
    let killed = bench.start();
    let stale: Vec<_> = bench.slot_dirs().into_iter().filter(|path| !of_living.contains(path)).collect();
    assert_eq!((of_living.len(), stale.len()), (1, 1));
    fs::write(stale[0].join("left"), "over").unwrap();
    killed.kill();
    assert!(stale[0].exists(), "nobody was there to remove it");

    let next = bench.start();
    assert!(!stale[0].exists() && of_living[0].exists());
    assert_eq!(bench.slot_dirs().len(), 2);
    for server in [&living, &next] {
        expect_handoff(server, &Request::text("Still there?"));
    }
    next.stop();
    living.stop();
    assert!(bench.slot_dirs().is_empty());
}

#[test]
fn one_that_was_cleaned_away_is_made_again() {
    let bench = Bench::new(GOOD);
    let server = bench.start();
    // As systemd-tmpfiles does with what is old in /tmp.
    fs::remove_dir_all(&bench.slot_dirs()[0]).unwrap();
    expect_handoff(&server, &Request::text("Where is it?"));
    server.stop();
    assert!(bench.slot_dirs().is_empty());
}

#[test]
fn one_that_cannot_be_made_is_a_refusal_to_start() {
    let bench = Bench::new(GOOD);
    let setup = bench.setup().replace("--slot-dir", "/no/such/folder");
    let (code, said) = setup.run();
    assert_eq!(code, Some(1));
    let expected = "onebit serve: cannot use the slot directory /no/such/folder: No such file or directory";
    assert_eq!(said.last().map(String::as_str), Some(expected));
}
