//! Helpers of this module's tests.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::{LineSink, supervisor};

/// Collects what would go to stderr.
#[derive(Clone, Default)]
pub(super) struct Collected(Arc<Mutex<Vec<String>>>);

impl Collected {
    pub(super) fn sink(&self) -> LineSink {
        let lines = self.0.clone();
        LineSink::new(move |line| lines.lock().push(line.to_owned()))
    }

    pub(super) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock())
    }
}

/// A shell script, written by another process: one that this process wrote could still be open for writing in a child
/// that some other test's thread is starting, and then cannot be executed ("Text file busy").
pub(super) fn script(directory: &Path, name: &str, body: &str) -> PathBuf {
    let path = directory.join(name);
    let text = format!("#!/bin/sh\n{body}\n");
    let status =
        Command::new("sh").args(["-c", r#"printf %s "$1" > "$2"; chmod 700 "$2""#, "sh", &text]).arg(&path).status();
    assert!(status.unwrap().success());
    path
}

/// The `onebit` binary beside this test binary, if it was built and is a supervisor.
pub(super) fn supervisor_binary() -> Option<PathBuf> {
    let binary = std::env::current_exe().ok()?.parent()?.parent()?.join("onebit");
    let output = Command::new(&binary).args([supervisor::WORD, "true"]).stdin(Stdio::null()).output();
    // Its stdin is no socket, so it ends with 125; anything else is not it.
    let works = output.is_ok_and(|output| matches!(output.status.code(), Some(0 | 125 | 137)));
    if !works {
        eprintln!(
            "SKIPPED: no supervisor at {}; `cargo test` builds it, `cargo test --lib` does not",
            binary.display()
        );
    }
    works.then_some(binary)
}

/// The numbers in a file.
pub(super) fn read_pids(path: &Path) -> Vec<i32> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// Whether the process exists and is no zombie.
pub(super) fn is_alive(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X'])))
}

pub(super) async fn until(what: &str, condition: impl Fn() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < Duration::from_secs(5), "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
