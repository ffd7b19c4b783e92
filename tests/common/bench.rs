//! A scripted provider whose behaviour can be changed while a server uses it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::request::{Answer, Request, cpu_answer};
use super::server::{HybridLine, Server, Setup};

/// A behaviour that keeps the contract: the reference provider's.
pub const GOOD: &str = "exec \"$prefill\" \"$@\"";

/// A folder with a provider in it, a place for slot directories, and whatever the provider leaves for the test.
pub struct Bench {
    folder: TempDir,
}

impl Bench {
    /// Behaviours are sh. They find `$prefill` (the reference provider), `$bench` (the folder), `$tokens`, `$out`,
    /// `$model` (the values of the flags), and `reply`, which prints what the contract wants.
    pub fn new(behaviour: &str) -> Self {
        let bench = Self { folder: tempfile::tempdir().unwrap() };
        fs::create_dir(bench.slots()).unwrap();
        bench.behave(behaviour);
        bench.install(&bench.provider());
        bench
    }

    /// What the provider does from now on.
    pub fn behave(&self, behaviour: &str) {
        fs::write(self.path("behaviour"), behaviour).unwrap();
    }

    /// Puts the provider's script there. Another process writes it: one that this process wrote could still be open for
    /// writing in a child that some other test's thread is starting, and then cannot be executed ("Text file busy").
    pub fn install(&self, path: &Path) {
        let script = format!(
            "#!/bin/sh\nbench='{}'\nprefill='{}'\ntokens=$2 out=$4 model=$6\n{}. \"$bench/behaviour\"\n",
            self.folder.path().display(),
            env!("CARGO_BIN_EXE_onebit-prefill"),
            "reply() { echo \"{\\\"n_tokens\\\": $(wc -l < \"$tokens\"), \\\"argmax\\\": 0, \\\"prefill_ms\\\": 1}\"; }\n",
        );
        let write = r#"printf %s "$1" > "$2" && chmod 700 "$2""#;
        let status = Command::new("sh").args(["-c", write, "sh", &script]).arg(path).status();
        assert!(status.unwrap().success());
    }

    /// A file of the bench.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn provider(&self) -> PathBuf {
        self.path("provider")
    }

    /// Where slot directories are made.
    pub fn slots(&self) -> PathBuf {
        self.path("slots")
    }

    /// The slot directories that are there.
    pub fn slot_dirs(&self) -> Vec<PathBuf> {
        entries(&self.slots())
    }

    /// The text that the provider left in a file of the bench.
    pub fn text(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// A hybrid server without a provider.
    pub fn setup_without_provider(&self) -> Setup {
        Setup::device("hybrid").flag("--slot-dir", self.slots())
    }

    /// A hybrid server with this provider.
    pub fn setup(&self) -> Setup {
        self.setup_without_provider().flag("--prefill-provider", self.provider())
    }

    pub fn start(&self) -> Server {
        self.setup().start()
    }
}

/// The paths in a folder, sorted.
pub fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

/// Asks, and expects the answer of a CPU server and a handoff, with the numbers that say so.
pub fn expect_handoff(server: &Server, request: &Request) -> Answer {
    let (answer, expected) = (server.ask(request), cpu_answer(request));
    let line = server.hybrid_line();
    assert_eq!(line, HybridLine::Handoff { n_prompt: expected.n_prompt() });
    assert_eq!(answer.visible(), expected.visible());
    assert_eq!((answer.n_evaluated(), answer.n_cached()), (1, expected.n_prompt() - 1), "{answer:?}");
    for field in ["prefill_ms", "restore_ms"] {
        assert!(answer.timings[field].as_f64().is_some_and(|ms| ms > 0.0), "{field} of {}", answer.timings);
    }
    answer
}

/// Asks, and expects the answer of a CPU server, evaluated here; returns the reason.
pub fn expect_fallback(server: &Server, request: &Request) -> String {
    let (answer, expected) = (server.ask(request), cpu_answer(request));
    let line = server.hybrid_line();
    let HybridLine::Fallback(reason) = line else { panic!("not a fallback: {line:?}") };
    assert_eq!(answer.visible(), expected.visible(), "after {reason}");
    assert_eq!((answer.n_evaluated(), answer.n_cached()), (expected.n_prompt(), 0), "after {reason}");
    for field in ["prefill_ms", "restore_ms"] {
        assert!(answer.timings[field].is_null(), "{field} of {}", answer.timings);
    }
    reason
}
