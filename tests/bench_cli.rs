//! `onebit bench` as a program, on a tiny model: what it prints, draws and refuses. Never how fast it is.

mod common;

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use common::model;
use common::process::{SOON, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Small runs: one thread, because the tests run side by side.
const SMALL: [&str; 8] = ["--threads", "1", "--prompt-tokens", "8,40", "--gen-tokens", "4", "--runs", "2"];

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_onebit"));
    for name in std::env::vars_os().map(|(name, _)| name).filter(|n| n.as_encoded_bytes().starts_with(b"ONEBIT_")) {
        command.env_remove(name);
    }
    command.env("ONEBIT_PREFILL_THREADS", "1").arg("bench").args(args);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The exit code, stdout and stderr.
fn bench(args: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command(args).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().expect("an exit code"), text(stdout), text(stderr))
}

fn small(args: &[&str]) -> (i32, String, String) {
    let tiny = model::tiny();
    bench(&[&["-m", tiny.to_str().unwrap()], &SMALL[..], args].concat())
}

#[test]
fn a_table_with_where_the_numbers_come_from() {
    let (code, stdout, stderr) = small(&["--device", "cpu", "--parallel", "1,3"]);
    assert_eq!((code, &*stderr), (0, ""), "nothing but the table, where stderr is no terminal");
    for part in ["build    onebit ", "llama.cpp ", "model    tiny.gguf, ", "1 threads", "K f16, V f16", "median of 2"] {
        assert!(stdout.contains(part), "no {part:?} in\n{stdout}");
    }
    assert!(!stdout.contains('\u{1b}'), "no colour: {stdout}");
    let lines: Vec<&str> = stdout.lines().skip_while(|line| !line.starts_with("device")).collect();
    for column in ["mode", "prompt", "at once", "prefill t/s", "prefill ms", "first byte ms", "decode t/s"] {
        assert!(lines[0].contains(column), "no {column} in {}", lines[0]);
    }
    assert!(!lines[0].contains("provider"), "a column without a number: {}", lines[0]);
    let rows: Vec<Vec<&str>> = lines[1..].iter().map(|line| line.split_whitespace().take(4).collect()).collect();
    let expected =
        [["CPU", "cold", "8", "1"], ["CPU", "cold", "40", "1"], ["CPU", "cold", "8", "3"], ["CPU", "cold", "40", "3"]];
    assert_eq!(rows, expected, "{stdout}");
}

#[test]
fn json_has_units_in_its_names_and_a_spread_for_each_number() {
    let (code, stdout, stderr) = small(&["--device", "cpu", "--parallel", "2", "--json"]);
    assert_eq!((code, &*stderr), (0, ""));
    let report: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(report["model"]["file"], "tiny.gguf");
    assert_eq!(report["machine"]["threads"], 1);
    assert_eq!(report["cache"]["k"], "f16");
    assert_eq!((&report["runs"], &report["warm_up_runs"], &report["gen_tokens"]), (&2.into(), &1.into(), &4.into()));
    for (part, field) in [("onebit", "version"), ("llama_cpp", "source"), ("machine", "cpu"), ("model", "quantization")]
    {
        assert!(report[part][field].as_str().is_some_and(|text| !text.is_empty()), "{part}.{field} of {report}");
    }
    assert!(report["llama_cpp"]["build"].is_u64() && report["model"]["bytes"].is_u64(), "{report}");
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    for (row, n_prompt) in rows.iter().zip([8, 40]) {
        assert_eq!((&row["mode"], &row["device"]), (&"cold".into(), &"CPU".into()));
        assert_eq!((&row["prompt_tokens"], &row["parallel"]), (&n_prompt.into(), &2.into()));
        expect_numbers(row, &["prefill_ms", "prefill_tokens_per_s", "first_byte_ms", "decode_tokens_per_s"]);
    }
}

/// These numbers are there, and no others.
fn expect_numbers(row: &Value, names: &[&str]) {
    for (name, value) in
        row.as_object().unwrap().iter().filter(|(name, _)| name.contains("_ms") || name.contains("_per_s"))
    {
        assert_eq!(value.is_object(), names.contains(&name.as_str()), "{name} of {row}");
        if value.is_object() {
            let [least, median, most] = ["min", "median", "max"].map(|field| value[field].as_f64().unwrap());
            assert!(0.0 < least && least <= median && median <= most, "{name} of {row}");
        }
    }
    names.iter().for_each(|name| assert!(row[name].is_object(), "{name} of {row}"));
}

#[test]
fn a_provider_has_rows_of_its_own() {
    let slots = tempfile::tempdir().unwrap();
    let provider = env!("CARGO_BIN_EXE_onebit-prefill");
    let flags =
        ["--device", "cpu", "--json", "--prefill-provider", provider, "--slot-dir", slots.path().to_str().unwrap()];
    let (code, stdout, stderr) = small(&flags);
    assert_eq!((code, &*stderr), (0, ""));
    let report: Value = serde_json::from_str(&stdout).unwrap();
    let rows = report["rows"].as_array().unwrap();
    let kinds: Vec<_> =
        rows.iter().map(|row| (row["mode"].as_str().unwrap(), row["prompt_tokens"].as_u64().unwrap())).collect();
    assert_eq!(kinds, [("cold", 8), ("cold", 40), ("hybrid", 8), ("hybrid", 40)]);
    for row in &rows[2..] {
        expect_numbers(row, &["provider_ms", "restore_ms", "first_byte_ms", "handoff_ms", "decode_tokens_per_s"]);
        let median = |name: &str| row[name]["median"].as_f64().unwrap();
        assert!(median("first_byte_ms") > median("provider_ms"), "{row}");
    }
    assert_eq!(std::fs::read_dir(slots.path()).unwrap().count(), 0, "the slot directory is gone");
}

#[test]
fn a_provider_that_fails_is_an_error_with_its_reason() {
    let (code, stdout, stderr) = small(&["--prefill-provider", "/no/such/provider"]);
    assert_eq!((code, &*stdout), (1, ""));
    assert!(stderr.contains("cannot start the provider /no/such/provider"), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
}

#[test]
fn other_memories_and_vocabularies_are_measured_too() {
    let provider = env!("CARGO_BIN_EXE_onebit-prefill");
    for kind in ["tiny-mamba.gguf", "tiny-gemma3.gguf"] {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(kind);
        let args = [&["-m", model.to_str().unwrap(), "--parallel", "2", "--prefill-provider", provider], &SMALL[..]];
        let (code, stdout, stderr) = bench(&args.concat());
        assert_eq!((code, &*stderr), (0, ""), "{kind}");
        assert_eq!(stdout.lines().filter(|line| line.starts_with("CPU ")).count(), 4, "{kind}: {stdout}");
    }
}

#[test]
fn a_drawing_is_well_formed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bench.svg");
    let model = folder.path().join("a <b> & \"c\".gguf");
    std::fs::copy(model::tiny(), &model).unwrap();
    let args = [&["-m", model.to_str().unwrap(), "--svg", path.to_str().unwrap()], &SMALL[..]].concat();
    let (code, stdout, stderr) = bench(&args);
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.contains("prefill t/s"), "the table comes as well: {stdout}");
    let svg = std::fs::read_to_string(&path).unwrap();
    assert!(
        svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\"") && svg.contains("a &lt;b&gt; &amp; "),
        "{svg}"
    );
    // The standard library of a language that every test machine has (scripts/setup) reads XML strictly.
    let parse = "import sys, xml.etree.ElementTree as xml; root = xml.parse(sys.argv[1]).getroot(); print(root.tag)";
    let parsed = Command::new("python3").args(["-c", parse]).arg(&path).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&parsed.stdout).trim(), "{http://www.w3.org/2000/svg}svg", "{svg}");
}

#[test]
fn what_cannot_be_measured_is_refused_with_the_way_out() {
    let tiny = model::tiny();
    let tiny = tiny.to_str().unwrap();
    let device = ["--device", "hybrid"];
    for (args, code, expected) in [
        (&["--prompt-tokens", "0"][..], 2, "--prompt-tokens"),
        (&["--prompt-tokens", "12,many"], 2, "many"),
        (&["--gen-tokens", "0"], 2, "--gen-tokens"),
        (&["--parallel", "0"], 2, "--parallel"),
        (&["--runs", "0"], 2, "--runs"),
        (&["--no-such-flag"], 2, "--no-such-flag"),
        (&["--prompt-tokens", "2048"], 2, "the model was trained for 2048: allow it with --ctx-size 2178"),
        (&["--prompt-tokens", "300", "-c", "256"], 2, "need a context of 430 tokens, and --ctx-size is 256: raise it"),
        (&device, 2, "name a provider with --prefill-provider"),
        (&["--prefill-provider", "x", "-fa", "off"], 2, "--flash-attn off"),
        (&["--svg", "/no/such/folder/x.svg"], 2, "/no/such/folder is no folder"),
        (&["--svg", "/dev/null"], 2, "/dev/null is no regular file"),
        (&["--device", "NoSuchDevice"], 2, "NoSuchDevice"),
    ] {
        let (found, stdout, stderr) = bench(&[&["-m", tiny], args].concat());
        assert_eq!((found, &*stdout), (code, ""), "{args:?}: {stderr}");
        assert!(stderr.contains(expected), "{args:?}: no {expected:?} in {stderr}");
    }
    assert_eq!(bench(&["-m", "/no/such.gguf"]).0, 3);
    let (code, stdout, _) = bench(&["--help"]);
    assert_eq!(code, 0);
    assert!(stdout.contains("Examples:") && stdout.contains("Exit codes:"), "{stdout}");
}

#[test]
fn a_signal_ends_it_in_good_order() {
    let slots = tempfile::tempdir().unwrap();
    let pid_file = slots.path().join("pid");
    let provider = slots.path().join("provider");
    // Another process writes the script: see `Bench::install`.
    let script = format!("#!/bin/sh\necho $$ > '{}'\nexec sleep 600\n", pid_file.display());
    let write = r#"printf %s "$1" > "$2" && chmod 700 "$2""#;
    assert!(Command::new("sh").args(["-c", write, "sh", &script]).arg(&provider).status().unwrap().success());
    let tiny = model::tiny();
    let folder = slots.path().join("slots");
    std::fs::create_dir(&folder).unwrap();
    let flags = ["-m", tiny.to_str().unwrap(), "--prefill-provider", provider.to_str().unwrap()];
    let args = [&flags[..], &["--slot-dir", folder.to_str().unwrap()], &SMALL[..]].concat();
    let mut child = command(&args).spawn().unwrap();
    let [provider] = common::process::written_pids(&pid_file, 1)[..] else { panic!("no process id") };
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(ended(&mut child), Some(130));
    common::process::until_gone(&[provider], SOON);
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0, "the slot directory is gone");
}

fn ended(child: &mut Child) -> Option<i32> {
    wait_for("the end of the bench", SOON, || child.try_wait().unwrap()).code()
}
