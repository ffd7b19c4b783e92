//! `onebit provider check --prefill-mode resident`, on the reference provider and on faulty ones.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::common::bench::Bench;
use crate::common::kinds::Kind;
use crate::common::model;
use crate::{GOOD, scripted};

/// A short context leaves the long prompts out.
fn check(provider: &Path, model: &Path, args: &[&str]) -> (Option<i32>, Value) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_onebit"));
    command.args(["provider", "check"]).arg(provider).arg("-m").arg(model);
    command.args(["--prefill-mode", "resident", "--json", "--threads", "1", "--ctx-size", "128"]).args(args);
    command.env("ONEBIT_PREFILL_THREADS", "1").env_remove("ONEBIT_HYBRID_ELFS");
    let output = command.output().unwrap();
    let report = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|err| panic!("{err}: {}", String::from_utf8_lossy(&output.stderr)));
    (output.status.code(), report)
}

/// Every fault as one line: the prompt's or the case's name, and the text.
fn faults(report: &Value) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let of_prompts = report["prompts"].as_array().unwrap().iter().flat_map(|prompt| {
        let faults = prompt["faults"].as_array().unwrap().iter();
        faults.map(move |fault| format!("{}: {}", text(&prompt["name"]), text(&fault["text"])))
    });
    let unhappy = report["unhappy"].as_array().unwrap().iter().filter(|case| !case["fault"].is_null());
    of_prompts.chain(unhappy.map(|case| format!("{}: {}", text(&case["name"]), text(&case["fault"])))).collect()
}

#[test]
fn the_reference_provider_passes_with_every_memory() {
    for kind in Kind::ALL {
        let (code, report) = check(Path::new(env!("CARGO_BIN_EXE_onebit-prefill")), &kind.model(), &[]);
        assert_eq!((code, faults(&report)), (Some(0), vec![]), "{kind:?}: {report:#}");
        let names: Vec<_> = report["unhappy"].as_array().unwrap().iter().map(|case| &case["name"]).collect();
        let expected = [
            "missing model",
            "missing output directory",
            "empty ids file",
            "one process for all",
            "one answer for a request",
            "end of stdin",
        ];
        assert_eq!(names, expected);
        assert_eq!(report["notes"], serde_json::json!([]));
    }
}

#[test]
fn a_scripted_one_passes_and_its_noise_is_told() {
    let bench = Bench::new(&scripted("echo hello", "answer"));
    let (code, report) = check(&bench.provider(), &model::tiny(), &[]);
    assert_eq!((code, faults(&report)), (Some(0), vec![]), "{report:#}");
    let note = report["notes"][0].as_str().unwrap();
    assert!(note.starts_with("lines on stdout that are no answers, which are passed over: "), "{note}");
}

/// Each with some of the lines that must be among its faults.
#[test]
fn faults_of_the_protocol() {
    let wrong_id = "if work; then id=$((id + 1)); say; else refuse; fi";
    let rows: [(&str, String, &[&str]); 6] = [
        (
            "answers under another id",
            scripted("", wrong_id),
            &["2 tokens: the provider answers under the id 3, where 2 was asked", "one answer for a request: "],
        ),
        ("answers twice", scripted("", "if work; then say; say; else refuse; fi"), &["one answer for a request: "]),
        (
            "answers nothing",
            "while read -r line; do :; done".to_owned(),
            &["7 tokens: the provider did not finish within 0.5 s", "one process for all: "],
        ),
        (
            "ends after an answer",
            scripted("", "answer; exit 4"),
            &["one process for all: the provider is to stay between requests, and was started "],
        ),
        (
            "ends with an error",
            scripted("[ -s \"$(field tokens)\" ] || exit 5", "answer"),
            &["empty ids file: the provider exited with status 5; it should answer with an error, and stay"],
        ),
        (
            "outlives its stdin",
            format!("{}; while :; do sleep 1; done", scripted("", "answer")),
            &["end of stdin: the provider goes on after the end of its stdin, and had to be killed"],
        ),
    ];
    for (name, behaviour, expected) in rows {
        let bench = Bench::new(&behaviour);
        let timeout = if name == "answers nothing" { "0.5" } else { "20" };
        let (code, report) = check(&bench.provider(), &model::tiny(), &["--timeout", timeout]);
        let faults = faults(&report);
        assert_eq!(code, Some(1), "{name}");
        for part in expected {
            assert!(faults.iter().any(|fault| fault.starts_with(part)), "{name}: no {part:?} in {faults:#?}");
        }
    }
}

#[test]
fn one_that_is_not_resident_is_told() {
    let bench = Bench::new(&format!("[ \"$3\" = --resident ] && exit 2; {GOOD}"));
    let (code, report) = check(&bench.provider(), &model::tiny(), &[]);
    assert_eq!(code, Some(1));
    assert!(faults(&report).contains(&"64 tokens: the provider exited with status 2".to_owned()), "{report:#}");
}
