//! `onebit state inspect|diff|convert`, as programs, on real files of several llama.cpp versions.

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use common::kinds::Kind;
use serde_json::Value;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn onebit(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_onebit"));
    command.args(args).env_remove("ONEBIT_MODEL").stdin(Stdio::null()).output().unwrap()
}

/// Runs `onebit state <args>`, where a word that names a fixture stands for its path.
fn state(args: &[&str]) -> (i32, String, String) {
    let paths: Vec<PathBuf> = args.iter().map(|arg| fixture(arg)).collect();
    let words: Vec<&str> = args
        .iter()
        .zip(&paths)
        .map(|(arg, path)| if arg.contains(".state") || arg.contains(".gguf") { path.to_str().unwrap() } else { *arg })
        .collect();
    let output = onebit(&[&["state"], &words[..]].concat());
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn json(args: &[&str]) -> (i32, Value) {
    let (code, stdout, stderr) = state(args);
    (code, serde_json::from_str(&stdout).unwrap_or_else(|err| panic!("{err}: {stdout}{stderr}")))
}

#[test]
fn inspect_shows_every_kind_of_memory() {
    for (file, expected) in [
        (
            "tiny-llama-40.v4.state",
            &["state version 4", "40 ids: 11 48 85 122 ... 63 100 137 174", "attention: 40 cells, positions 0 to 39"][..],
        ),
        (
            "tiny-gemma3-40.v4.state",
            &["attention: 40 cells", "sliding-window attention: 32 cells, positions 8 to 39", "K of layers 0 to 4"],
        ),
        (
            "tiny-mamba-40.v2a.state",
            &["state version 2", "39 ids", "recurrent: 1 cell, position 38", "S of layers 0 to 2"],
        ),
    ] {
        let (code, stdout, stderr) = state(&["inspect", file]);
        assert_eq!((code, &*stderr), (0, ""), "{file}");
        for part in expected {
            assert!(stdout.contains(part), "{file}: no {part:?} in\n{stdout}");
        }
    }
}

#[test]
fn inspect_gives_the_verdict_of_a_model() {
    let accepted = ": accepted, for a prompt of 40 or 41 tokens";
    let converted = ": accepted after a conversion from state version 2 to 4, for a prompt of 40 or 41 tokens";
    let recurrent = ": accepted, for a prompt of 40 tokens (this model cannot step back)";
    for (file, model, code, expected) in [
        ("tiny-llama-40.v4.state", "tiny-llama.gguf", 0, accepted),
        ("tiny-llama-40.v2a.state", "tiny-llama.gguf", 0, converted),
        ("tiny-gemma3-40.v2a.state", "tiny-gemma3.gguf", 0, converted),
        ("tiny-mamba-40.v4.state", "tiny-mamba.gguf", 0, recurrent),
        // Other weights of the same shape: nothing in the structure can tell.
        ("tiny-llama-other-40.v4.state", "tiny-llama.gguf", 0, accepted),
        (
            "tiny-gemma3-40.v4.state",
            "tiny-llama.gguf",
            1,
            ": refused: attention: 1 layers at byte 664, this model has 3 (",
        ),
        (
            "tiny-llama-40.v4.state",
            "tiny-mamba.gguf",
            1,
            " (the file holds attention memory, this model has recurrent)",
        ),
    ] {
        let (found, stdout, stderr) = state(&["inspect", file, "-m", model]);
        assert_eq!((found, &*stderr), (code, ""), "{file} {model}: {stdout}");
        assert!(stdout.contains(expected), "{file} {model}: no {expected:?} in\n{stdout}");
    }
    let args = ["inspect", "tiny-llama-40.v4.state", "-m", "tiny-llama.gguf", "--cache-type-k", "f32"];
    let (code, stdout, _) = state(&args);
    assert_eq!(code, 1, "{stdout}");
    assert!(stdout.contains("refused: K of layer 0 (attention): type f16 (1) at byte "), "{stdout}");
    assert!(stdout.contains("expected f32 (0)"), "{stdout}");
}

#[test]
fn inspect_as_json() {
    let (code, report) = json(&["inspect", "tiny-gemma3-40.v3.state", "-m", "tiny-gemma3.gguf", "--json"]);
    assert_eq!(code, 0, "{report}");
    assert_eq!((&report["version"], &report["n_ids"], &report["packed"]), (&3.into(), &40.into(), &false.into()));
    assert_eq!(report["first_ids"], serde_json::json!([11, 48, 85, 122]));
    assert_eq!(report["sections"][1]["kind"], "sliding-window attention");
    assert_eq!(report["sections"][1]["first_position"], 8);
    assert_eq!(report["sections"][0]["tensors"][0]["type"], "f16");
    let verdict = &report["verdict"];
    assert_eq!((&verdict["accepted"], &verdict["converts"]), (&true.into(), &true.into()), "{report}");

    let (code, report) = json(&["inspect", "tiny-gemma3-40.v4.state", "-m", "tiny-llama.gguf", "--json"]);
    assert_eq!((code, &report["verdict"]["accepted"]), (1, &false.into()));
    assert!(report["verdict"]["reason"].as_str().unwrap().contains("layers"), "{report}");
}

#[test]
fn inspect_of_what_is_no_state_file() {
    let folder = tempfile::tempdir().unwrap();
    let good = std::fs::read(fixture("tiny-llama-40.v4.state")).unwrap();
    for (name, bytes, code, expected) in [
        ("text", b"hello, world".to_vec(), 1, "not a sequence-state file: magic 0x6c6c6568 at byte 0"),
        ("empty", Vec::new(), 1, "the file ends too early: magic at byte 0"),
        ("cut", good[..good.len() - 1].to_vec(), 1, "the file ends too early: rows at byte "),
    ] {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let output = onebit(&["state", "inspect", path.to_str().unwrap()]);
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert_eq!(output.status.code(), Some(code), "{name}: {said}");
        assert!(said.contains(expected), "{name}: {said}");
    }
    // With its model, the place is the one where this model's memory is cut.
    let cut = folder.path().join("cut");
    let (code, stdout, _) = state(&["inspect", cut.to_str().unwrap(), "-m", "tiny-llama.gguf"]);
    assert_eq!(code, 1, "{stdout}");
    assert_eq!(stdout.matches("the file ends too early: rows at byte ").count(), 2, "{stdout}");
    for missing in ["/no/such.state", "/dev/null", "/tmp"] {
        assert_eq!(onebit(&["state", "inspect", missing]).status.code(), Some(2), "{missing}");
    }
    let file = fixture("tiny-llama-40.v4.state");
    let no_model = onebit(&["state", "inspect", file.to_str().unwrap(), "-m", "/no/such.gguf"]);
    assert_eq!(no_model.status.code(), Some(3));
}

#[test]
fn diff_of_a_file_with_itself_and_with_other_versions() {
    for (a, b, model) in [
        ("tiny-llama-40.v4.state", "tiny-llama-40.v4.state", "tiny-llama.gguf"),
        ("tiny-llama-40.v4.state", "tiny-llama-40.v2b.state", "tiny-llama.gguf"),
        ("tiny-gemma3-40.v4.state", "tiny-gemma3-40.v3.state", "tiny-gemma3.gguf"),
        ("tiny-mamba-40.v4.state", "tiny-mamba-40.v4.state", "tiny-mamba.gguf"),
    ] {
        let (code, stdout, stderr) = state(&["diff", a, b, "-m", model]);
        assert_eq!((code, &*stderr), (0, ""), "{a} {b}");
        assert!(stdout.contains("The compared values are the same, byte for byte."), "{a} {b}:\n{stdout}");
        assert!(stdout.is_ascii(), "no terminal, so no colours and no blocks:\n{stdout}");
    }
}

#[test]
fn diff_tells_how_far_files_are_apart() {
    let args = ["diff", "tiny-llama-40.v4.state", "tiny-llama-other-40.v4.state", "-m", "tiny-llama.gguf"];
    let (code, stdout, stderr) = state(&args);
    assert_eq!((code, &*stderr), (0, ""));
    assert!(stdout.contains("Largest relative error: 1."), "{stdout}");
    assert!(stdout.contains("  a 0   K ################################  V ####"), "{stdout}");

    let (code, diff) = json(&[&args[..], &["--json"]].concat());
    assert_eq!(code, 0);
    let tensors = diff["tensors"].as_array().unwrap();
    assert_eq!(tensors.len(), 6);
    for tensor in tensors {
        assert_eq!((&tensor["positions"], &tensor["same_bytes"]), (&serde_json::json!([0, 40]), &false.into()));
        assert!(tensor["relative_l2"].as_f64().unwrap() > 0.5, "{tensor}");
        assert!(tensor["cosine"].as_f64().unwrap() < 0.5, "{tensor}");
        assert!(tensor["max_abs"].as_f64() > tensor["mean_abs"].as_f64(), "{tensor}");
        assert!(tensor["worst_position"].as_u64().unwrap() < 40);
        assert_eq!(tensor["spans"].as_array().unwrap().len(), 32);
    }
}

#[test]
fn diff_finds_the_one_value_that_was_changed() {
    let folder = tempfile::tempdir().unwrap();
    let mut bytes = std::fs::read(fixture("tiny-llama-40.v4.state")).unwrap();
    // The last row of V of the last layer, a value of about 1 made 2 (0x4000 in f16).
    let at = bytes.len() - 2;
    bytes[at..].copy_from_slice(&0x4000u16.to_le_bytes());
    let changed = folder.path().join("changed.state");
    std::fs::write(&changed, bytes).unwrap();
    let good = fixture("tiny-llama-40.v4.state");
    let model = fixture("tiny-llama.gguf");
    let words = [&good, &changed].map(|path| path.to_str().unwrap());
    let output = onebit(&["state", "diff", words[0], words[1], "-m", model.to_str().unwrap(), "--json"]);
    let diff: Value = serde_json::from_slice(&output.stdout).unwrap();
    let different: Vec<&Value> =
        diff["tensors"].as_array().unwrap().iter().filter(|tensor| tensor["same_bytes"] == false).collect();
    let [tensor] = different[..] else { panic!("{different:?}") };
    assert_eq!((&tensor["tensor"], &tensor["layer"], &tensor["worst_position"]), (&"V".into(), &2.into(), &39.into()));
    let spans: Vec<f64> = tensor["spans"].as_array().unwrap().iter().map(|span| span.as_f64().unwrap()).collect();
    assert!(spans[31] > 0.0 && spans[..31].iter().all(|span| *span == 0.0), "{spans:?}");
}

#[test]
fn diff_of_what_cannot_be_compared() {
    let (code, _, stderr) =
        state(&["diff", "tiny-llama-40.v4.state", "tiny-gemma3-40.v4.state", "-m", "tiny-llama.gguf"]);
    assert_eq!(code, 1);
    assert!(stderr.starts_with("onebit state diff: ") && stderr.contains("tiny-gemma3-40.v4.state: "), "{stderr}");
    let (code, ..) = state(&["diff", "tiny-llama-40.v4.state", "-m", "tiny-llama.gguf"]);
    assert_eq!(code, 2);
}

#[test]
fn convert_gives_the_native_file() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    for (file, native, model) in [
        ("tiny-llama-40.v2b.state", "tiny-llama-40.v4.state", "tiny-llama.gguf"),
        ("tiny-llama-40.v3.state", "tiny-llama-40.v4.state", "tiny-llama.gguf"),
        ("tiny-gemma3-40.v2b.state", "tiny-gemma3-40.v4.state", "tiny-gemma3.gguf"),
        ("tiny-llama-40.v4.state", "tiny-llama-40.v4.state", "tiny-llama.gguf"),
    ] {
        let (code, _, stderr) = state(&["convert", file, out.to_str().unwrap(), "-m", model]);
        assert_eq!((code, &*stderr), (0, ""), "{file}");
        assert_eq!(std::fs::read(&out).unwrap(), std::fs::read(fixture(native)).unwrap(), "{file}");
        std::fs::remove_file(&out).unwrap();
    }
    assert_eq!(folder.path().read_dir().unwrap().count(), 0, "nothing is left behind");
}

#[test]
fn convert_does_not_overwrite_unless_told_to() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    std::fs::write(&out, "mine").unwrap();
    let args = ["convert", "tiny-llama-40.v2b.state", out.to_str().unwrap(), "-m", "tiny-llama.gguf"];
    let (code, _, stderr) = state(&args);
    assert_eq!(code, 2);
    assert!(stderr.contains("exists; --force replaces it"), "{stderr}");
    assert_eq!(std::fs::read_to_string(&out).unwrap(), "mine");
    let (code, stdout, _) = state(&[&args[..], &["--force"]].concat());
    assert_eq!(code, 0);
    assert!(stdout.contains("state version 2 rewritten as 4"), "{stdout}");
    assert_eq!(std::fs::read(&out).unwrap(), std::fs::read(fixture("tiny-llama-40.v4.state")).unwrap());
}

#[test]
fn convert_replaces_nothing_but_files() {
    let folder = tempfile::tempdir().unwrap();
    let (real, link) = (folder.path().join("real"), folder.path().join("link"));
    std::fs::write(&real, "precious").unwrap();
    std::os::unix::fs::symlink(&real, &link).unwrap();
    for out in [&link, &folder.path().to_path_buf()] {
        let args = ["convert", "tiny-llama-40.v3.state", out.to_str().unwrap(), "-f", "-m", "tiny-llama.gguf"];
        let (code, _, stderr) = state(&args);
        assert_eq!(code, 2, "{stderr}");
        assert!(stderr.contains("is no regular file"), "{stderr}");
    }
    assert!(link.symlink_metadata().unwrap().is_symlink());
    assert_eq!(std::fs::read(real).unwrap(), b"precious");
}

#[test]
fn convert_names_both_versions_when_it_cannot() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let good = std::fs::read(fixture("tiny-llama-40.v2b.state")).unwrap();
    std::fs::write(path("cut"), &good[..good.len() - 1]).unwrap();
    std::fs::write(path("future"), [&good[..4], &9u32.to_le_bytes(), &good[8..]].concat()).unwrap();
    let model = fixture("tiny-llama.gguf");
    for (file, expected) in [
        ("cut", "cannot rewrite state version 2 as 4: the file ends too early: rows at byte "),
        ("future", "cannot rewrite state version 9 as 4: state version 9 at byte 4: this build reads 4"),
    ] {
        let words = ["state", "convert", &path(file), out.to_str().unwrap(), "-m", model.to_str().unwrap()];
        let output = onebit(&words);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{file}: {stderr}");
        assert!(stderr.contains(expected), "{file}: {stderr}");
        assert!(!out.exists(), "{file}");
    }
    let file = fixture("tiny-llama-40.v3.state");
    let words = ["state", "convert", file.to_str().unwrap(), "/no/such/folder/out", "-m", model.to_str().unwrap()];
    assert_eq!(onebit(&words).status.code(), Some(1));
}

/// Quantized caches are rotated since version 4, so an older file means something else.
#[test]
fn convert_refuses_quantized_caches() {
    // Its heads are as wide as a block of q8_0, which the fixtures' are not.
    let model = Kind::Attention.model();
    let model = model.to_str().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("ids"), "1\n2\n3\n").unwrap();
    let cache = ["--cache-type-k", "q8_0", "--cache-type-v", "q8_0"];
    let mut prefill = Command::new(env!("CARGO_BIN_EXE_onebit-prefill"));
    prefill.args(["--tokens", &path("ids"), "--out", &path("state"), "--model", model, "--threads", "1"]).args(cache);
    assert!(prefill.stdout(Stdio::null()).status().unwrap().success());
    let mut bytes = std::fs::read(path("state")).unwrap();
    bytes[4] = 3;
    std::fs::write(path("state"), bytes).unwrap();
    let output = onebit(&[&["state", "convert", &path("state"), &path("out"), "-m", model], &cache[..]].concat());
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("written by llama.cpp state version 3, this build reads 4: quantized cache"), "{stderr}");
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let script = r#""$0" state inspect "$1" --json 2>&1 | head -c 1 >/dev/null; echo "${PIPESTATUS[0]}""#;
    let mut command = Command::new("bash");
    command.args(["-c", script, env!("CARGO_BIN_EXE_onebit")]).arg(fixture("tiny-gemma3-40.v4.state"));
    let output = command.output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "0");
}

#[test]
fn help_has_examples_and_exit_codes() {
    let state = ["inspect", "diff", "convert"].map(|name| ["state", name]);
    let store = ["ls", "rm", "verify"].map(|name| ["store", name]);
    for command in [&state[..], &store, &[["provider", "check"]]].concat() {
        let output = onebit(&[&command[..], &["--help"]].concat());
        let help = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && help.contains("Examples:") && help.contains("Exit codes:"), "{help}");
    }
}
