//! The supervisor as the process it is: whatever happens to the server, nothing of the provider is left.

#![cfg(target_os = "linux")]

use std::fs;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use onebit::hybrid::supervisor::WORD;
use rustix::process::{Pid, Signal, kill_process};

/// For [`stand_in_server`]: where its provider writes process ids.
const PIDS_VARIABLE: &str = "ONEBIT_TEST_PIDS";

/// Starts `program` under a supervisor; returns it with our end of the lifeline.
fn supervise(program: &[&str]) -> (Child, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_onebit"));
    command.arg(WORD).args(program).stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::piped());
    (command.spawn().unwrap(), ours)
}

/// A provider that ignores SIGTERM and has a child in its group, one in a session of its own, and one of that one's.
/// Each appends its process id.
fn family(pids: &Path) -> String {
    let pids = pids.display();
    format!(
        "trap '' TERM; echo $$ >> {pids}; \
        sh -c 'echo $$ >> {pids}; exec sleep 1000' & \
        setsid sh -c 'echo $$ >> {pids}; setsid sh -c \"echo \\$\\$ >> {pids}; exec sleep 1000\" & wait' & \
        while :; do sleep 1; done"
    )
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < Duration::from_secs(10), "in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn read_pids(path: &Path) -> Vec<i32> {
    fs::read_to_string(path).unwrap_or_default().lines().filter_map(|line| line.parse().ok()).collect()
}

fn is_alive(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X'])))
}

fn all_run(pids: &Path) -> Vec<i32> {
    until("all four run", || read_pids(pids).len() == 4);
    let pids = read_pids(pids);
    assert!(pids.iter().all(|pid| is_alive(*pid)), "{pids:?}");
    pids
}

#[test]
fn tells_and_returns_the_status() {
    for (program, code, message) in [
        (&["sh", "-c", "exit 7"][..], 7, "exited 7\n"),
        (&["true"][..], 0, "exited 0\n"),
        (&["sh", "-c", "kill -9 $$"][..], 137, "killed 9\n"),
        (&["/no/such/program"][..], 127, "not-started 2\n"),
    ] {
        let (mut supervisor, mut lifeline) = supervise(program);
        let mut told = String::new();
        lifeline.read_to_string(&mut told).unwrap();
        assert!(told.ends_with(message), "{told}");
        assert_eq!(told.starts_with("started "), code != 127, "{told}");
        assert_eq!(supervisor.wait().unwrap().code(), Some(code));
    }
}

#[test]
fn leaves_nobody_behind_after_a_normal_end() {
    let directory = tempfile::tempdir().unwrap();
    let pids = directory.path().join("pids");
    let orphan =
        format!("setsid sh -c 'echo $$ > {}; exec sleep 1000' & while [ ! -s {0} ]; do :; done", pids.display());
    let (mut supervisor, mut lifeline) = supervise(&["sh", "-c", &orphan]);
    let mut told = String::new();
    lifeline.read_to_string(&mut told).unwrap();
    assert!(told.ends_with("exited 0\n"), "{told}");
    assert!(!is_alive(read_pids(&pids)[0]));
    assert!(supervisor.wait().unwrap().success());
}

/// Ends a supervisor, given it and our end of its lifeline.
type Way = fn(&Child, &mut Option<UnixStream>);

#[test]
fn ends_everything_on_hang_up_signal_and_command() {
    let ways: [(&str, Way); 3] = [
        ("end of file", |_, lifeline| drop(lifeline.take())),
        ("SIGTERM", |child, _| kill_process(Pid::from_child(child), Signal::TERM).unwrap()),
        ("command", |_, lifeline| {
            let lifeline = lifeline.as_mut().unwrap();
            // The whole family ignores or inherits SIGTERM's being ignored: nothing happens until the half-close.
            lifeline.write_all(b"t").unwrap();
            lifeline.shutdown(std::net::Shutdown::Write).unwrap();
        }),
    ];
    for (name, end) in ways {
        let directory = tempfile::tempdir().unwrap();
        let pids = directory.path().join("pids");
        let (mut supervisor, lifeline) = supervise(&["sh", "-c", &family(&pids)]);
        let known = all_run(&pids);
        let mut lifeline = Some(lifeline);
        end(&supervisor, &mut lifeline);
        assert_eq!(supervisor.wait().unwrap().code(), Some(137), "{name}");
        // By the time the supervisor is gone, so are they, and nobody holds the pipe.
        assert!(known.iter().all(|pid| !is_alive(*pid)), "{name}");
        supervisor.stdout.take().unwrap().read_to_end(&mut Vec::new()).unwrap();
    }
}

#[test]
fn a_killed_server_takes_the_provider_with_it() {
    let directory = tempfile::tempdir().unwrap();
    let pids = directory.path().join("pids");
    let mut server = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "stand_in_server"])
        .env(PIDS_VARIABLE, &pids)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let known = all_run(&pids);
    server.kill().unwrap();
    server.wait().unwrap();
    until("all are dead", || known.iter().all(|pid| !is_alive(*pid)));
}

#[test]
#[ignore = "not a test: the process that a_killed_server_takes_the_provider_with_it kills"]
fn stand_in_server() {
    let Some(pids) = std::env::var_os(PIDS_VARIABLE) else { return };
    let (mut supervisor, _lifeline) = supervise(&["sh", "-c", &family(Path::new(&pids))]);
    supervisor.wait().unwrap();
}
