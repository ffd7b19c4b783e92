//! `onebit provider check` on good providers and on faulty ones: the reference provider, whose file or reply a script then
//! spoils in one exact way.

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::kinds::Kind;
use common::model;
use onebit::testing::TinyModel;
use serde_json::Value;

/// Runs the reference provider and applies one fault to its state file (version 4, attention only) or its reply.
const FAULTY: &str = r#"#!/usr/bin/env python3
import json, math, os, struct, subprocess, sys
fault, prefill, other = os.environ["FAULT"], os.environ["PREFILL"], os.environ["OTHER"]
argv = sys.argv[1:]
path = argv[argv.index("--out") + 1]
ids = open(argv[argv.index("--tokens") + 1]).read().split()
if fault == "other weights":
    argv[argv.index("--model") + 1] = other
if fault in ("last token missing", "last token hidden") and len(ids) > 1:
    open("fewer", "w").write("\n".join(ids[:-1]))
    argv[argv.index("--tokens") + 1] = "fewer"
if fault == "f32":
    argv += ["--cache-type-k", "f32"]
done = subprocess.run([prefill, *argv], stdout=subprocess.PIPE)
if fault == "never fails":
    print(json.dumps({"n_tokens": len(ids), "argmax": 0, "prefill_ms": 1}))
    sys.exit(0)
if fault == "leaves a file" and done.returncode:
    if os.path.isdir(os.path.dirname(os.path.abspath(path))):
        open(path, "w").write("half")
if done.returncode:
    sys.exit(done.returncode)
reply = json.loads(done.stdout)
if fault == "last token hidden":
    reply["n_tokens"] = len(ids)
if fault == "argmax":
    reply["argmax"] = (reply["argmax"] + 7) % 259

data = bytearray(open(path, "rb").read())
n, = struct.unpack_from("<I", data, 8)
at = 12 + 4 * n + 4
n_cells, = struct.unpack_from("<I", data, at)
cells = at + 4
at = cells + 12 * n_cells
n_layer, = struct.unpack_from("<I", data, at + 4)
at += 16
blocks = []
for _ in range(2 * n_layer):
    row, = struct.unpack_from("<Q", data, at + 4)
    blocks.append((at + 12, row))
    at += 12 + row * n_cells
K0, K1, V0, V1 = blocks if n_layer == 2 else [None] * 4

def values(block):
    return list(struct.unpack_from(f"<{block[1] // 2 * n_cells}e", data, block[0]))

def put(block, values):
    struct.pack_into(f"<{len(values)}e", data, block[0], *values)

if fault == "scaled K":
    put(K1, [1.01 * x for x in values(K1)])
if fault == "bf16":
    for block in blocks:
        put(block, [struct.unpack("<f", struct.pack("<I", (struct.unpack("<I", struct.pack("<f", x))[0] + 0x8000) & 0xffff0000))[0] for x in values(block)])
if fault == "positions in cells":
    for cell in range(n_cells):
        struct.pack_into("<i", data, cells + 12 * cell, cell + 1)
if fault == "positions in rope":
    # Turned once more, as if the first position were 1: heads of 16, pairs of neighbours, base 10000.
    for block in (K0, K1):
        k = values(block)
        for i in range(0, len(k), 2):
            turn = 10000.0 ** (-(i % 16) / 16)
            c, s = math.cos(turn), math.sin(turn)
            k[i], k[i + 1] = k[i] * c - k[i + 1] * s, k[i] * s + k[i + 1] * c
        put(block, k)
if fault == "rows shifted":
    for block in blocks:
        v, row = values(block), block[1] // 2
        put(block, v[row:] + v[:row])
if fault == "K and V swapped":
    for k, v in ((K0, V0), (K1, V1)):
        kept = values(k)
        put(k, values(v))
        put(v, kept)
if fault == "layers swapped":
    for a, b in ((K0, K1), (V0, V1)):
        kept = values(a)
        put(a, values(b))
        put(b, kept)
open(path, "wb").write(data)
print(json.dumps(reply))
"#;

/// The outcome of one check.
struct Checked {
    code: i32,
    report: Value,
}

impl Checked {
    fn faults_of(prompt: &Value) -> Vec<(&str, &str)> {
        let faults = prompt["faults"].as_array().unwrap().iter();
        faults.map(|fault| (fault["area"].as_str().unwrap(), fault["text"].as_str().unwrap())).collect()
    }

    fn prompts(&self) -> &Vec<Value> {
        self.report["prompts"].as_array().unwrap()
    }

    fn prompt(&self, name: &str) -> &Value {
        self.prompts().iter().find(|prompt| prompt["name"] == name).unwrap_or_else(|| panic!("no prompt {name}"))
    }

    fn unhappy(&self) -> Vec<&str> {
        let faults = self.report["unhappy"].as_array().unwrap().iter().map(|unhappy| &unhappy["fault"]);
        faults.filter_map(Value::as_str).collect()
    }
}

struct Bench {
    folder: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    /// An executable, written by another process, which has closed it when it runs.
    fn script(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        let copy = r#"printf %s "$1" > "$2"; chmod 700 "$2""#;
        assert!(Command::new("sh").args(["-c", copy, "sh", text]).arg(&path).status().unwrap().success());
        path
    }

    fn command(&self, provider: &Path, model: &Path, args: &[&str]) -> Command {
        let other = self.folder.path().join("other.gguf");
        TinyModel::with_seed(2).write(&other).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_onebit"));
        command.args(["provider", "check"]).arg(provider).arg("-m").arg(model).args(["--threads", "1"]).args(args);
        command.env("PREFILL", env!("CARGO_BIN_EXE_onebit-prefill")).env("OTHER", other);
        command.env("ONEBIT_PREFILL_THREADS", "1").env_remove("ONEBIT_MODEL").env_remove("ONEBIT_HYBRID_ELFS");
        command.stdin(Stdio::null());
        command
    }

    fn check(&self, provider: &Path, model: &Path, args: &[&str]) -> Checked {
        read(self.command(provider, model, &[&["--json"], args].concat()))
    }

    /// A context of 512 tokens leaves the long prompts out, which tell nothing new about a fault and take their time.
    fn faulty(&self, fault: &str, args: &[&str]) -> Checked {
        let provider = self.script("faulty", FAULTY);
        let mut command = self.command(&provider, &model::tiny(), &[&["--json", "--ctx-size", "512"], args].concat());
        command.env("FAULT", fault);
        let checked = read(command);
        assert_eq!(checked.code, 1, "{fault}: {:#}", checked.report);
        assert_eq!(checked.report["passed"], false);
        checked
    }

    /// Asserts that the fault is found at the prompt of 64 tokens, in this area, with a sentence that begins so.
    fn finds(&self, fault: &str, area: &str, sentence: &str) -> Checked {
        let checked = self.faulty(fault, &[]);
        let faults = Checked::faults_of(checked.prompt("64 tokens"));
        let found = faults.iter().any(|(in_area, text)| *in_area == area && text.starts_with(sentence));
        assert!(found, "{fault}: no {area}: {sentence} in {faults:#?}");
        checked
    }
}

fn read(mut command: Command) -> Checked {
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    let report = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|err| panic!("{err}: {}\n{stderr}", String::from_utf8_lossy(&output.stdout)));
    Checked { code: output.status.code().unwrap(), report }
}

/// Says so when the scripted providers cannot run.
fn has_python() -> bool {
    let found = Command::new("python3").arg("--version").output().is_ok_and(|output| output.status.success());
    if !found {
        eprintln!("SKIPPED: no python3 for the scripted providers");
    }
    found
}

#[test]
fn the_reference_provider_passes() {
    let provider = Path::new(env!("CARGO_BIN_EXE_onebit-prefill"));
    let checked = Bench::new().check(provider, &model::tiny(), &[]);
    assert_eq!((checked.code, &checked.report["n_faults"]), (0, &0.into()), "{:#}", checked.report);
    assert_eq!(checked.report["left_out"], serde_json::json!([]));
    let names: Vec<&str> = checked.prompts().iter().map(|prompt| prompt["name"].as_str().unwrap()).collect();
    let expected = [
        "1 token",
        "2 tokens",
        "7 tokens",
        "63 tokens",
        "64 tokens",
        "65 tokens",
        "511 tokens",
        "512 tokens",
        "513 tokens",
        "2000 tokens",
        "repeated",
        "unicode",
        "special",
    ];
    assert_eq!(names, expected);
    for prompt in checked.prompts() {
        assert_eq!((&prompt["greedy_equal"], &prompt["greedy_tokens"]), (&32.into(), &32.into()), "{prompt:#}");
        assert_eq!((&prompt["n_asked"], &prompt["state_version"]), (&prompt["n_prompt"], &4.into()));
        assert!(prompt["kl"].as_f64().unwrap() < 1e-6, "{prompt:#}");
    }
    let statuses: Vec<_> = checked.report["unhappy"].as_array().unwrap().iter().map(|u| &u["status"]).collect();
    assert_eq!(statuses, [3, 1, 2]);
}

#[test]
fn every_memory_kind_passes() {
    let bench = Bench::new();
    for kind in Kind::ALL {
        for cache in if kind.has_attention() { &["f16", "q8_0"][..] } else { &["f16"] } {
            let provider = Path::new(env!("CARGO_BIN_EXE_onebit-prefill"));
            let args = ["--json", "--ctx-size", "512", "--cache-type-k", cache, "--cache-type-v", cache];
            let mut command = bench.command(provider, &kind.model(), &args);
            command.env("ONEBIT_PREFILL_CACHE_TYPE_K", cache).env("ONEBIT_PREFILL_CACHE_TYPE_V", cache);
            let checked = read(command);
            assert_eq!(checked.code, 0, "{kind:?} {cache}: {:#}", checked.report);
            let prompt = checked.prompt("64 tokens");
            assert_eq!(prompt["n_asked"], kind.n_states(64), "{kind:?} {cache}");
            assert_eq!(prompt["greedy_equal"], 32, "{kind:?} {cache}");
        }
    }
}

#[test]
fn what_a_model_cannot_take_is_left_out() {
    let mamba = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tiny-mamba.gguf");
    let checked = Bench::new().check(Path::new(env!("CARGO_BIN_EXE_onebit-prefill")), &mamba, &["--ctx-size", "512"]);
    assert_eq!(checked.code, 0, "{:#}", checked.report);
    let left_out = checked.report["left_out"].to_string();
    assert!(left_out.contains("unicode: the model has no tokenizer"), "{left_out}");
    assert!(left_out.contains("1 token: this model cannot step back"), "{left_out}");
    assert!(left_out.contains("511 tokens: with 32 more it does not fit the context of 512 tokens"), "{left_out}");
}

#[test]
fn a_table_and_a_verdict() {
    let bench = Bench::new();
    let output = bench
        .command(Path::new(env!("CARGO_BIN_EXE_onebit-prefill")), &model::tiny(), &["--ctx-size", "512"])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    for part in [
        "prompt       tokens  contract  state  largest error of a tensor",
        "64 tokens        64  ok        ok     0",
        "left out: 2000 tokens: with 32 more it does not fit",
        "empty ids file            ok, refused with status 2",
        "PASSED: 9 prompts, no faults",
    ] {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
    assert!(text.is_ascii());
}

#[test]
fn faults_of_the_values() {
    if !has_python() {
        return;
    }
    let bench = Bench::new();
    let scaled = bench.finds("scaled K", "values", "K of layer 1 (attention) is 1.0100 times this build's own");
    // Nothing else is wrong with it: the error is one that honest arithmetic may have.
    let only = Checked::faults_of(scaled.prompt("64 tokens"));
    assert_eq!(only.len(), 1, "{only:?}");
    bench.finds("K and V swapped", "values", "K and V are swapped: the file's K is this build's V");
    bench.finds(
        "layers swapped",
        "values",
        "the file's K of layer 0 (attention) is this build's K of layer 1 (attention)",
    );
    bench.finds(
        "rows shifted",
        "values",
        "the file's K of layer 0 (attention) is right, its rows shifted by one: row 0 holds position 1",
    );
    bench.finds(
        "positions in rope",
        "values",
        "K is another one in 2 layers, the first is K of layer 0 (attention) (relative error ",
    );
    bench.finds(
        "other weights",
        "values",
        "no tensor has anything to do with this build's own: the state of another model",
    );
}

#[test]
fn faults_of_the_file_and_the_reply() {
    if !has_python() {
        return;
    }
    let bench = Bench::new();
    bench.finds("positions in cells", "state", "attention: cell 0 at byte 276 has position 1, expected 0");
    bench.finds("f32", "state", "K of layer 0 (attention): type f32 (0) at byte ");
    bench.finds("last token missing", "contract", "the provider evaluated 63 tokens, 64 were asked");
    bench.finds("last token hidden", "state", "63 token ids at byte 8, expected 64 (the whole prompt)");
    bench.finds("argmax", "argmax", "argmax is token ");
}

#[test]
fn unhappy_paths_that_are_not_refused() {
    if !has_python() {
        return;
    }
    let bench = Bench::new();
    let checked = bench.faulty("never fails", &[]);
    assert_eq!(checked.unhappy(), ["the provider exited with status 0, as if all were well"; 3]);
    let checked = bench.faulty("leaves a file", &[]);
    assert_eq!(checked.unhappy(), ["the provider failed, but left a state file"; 2]);
}

#[test]
fn rounding_to_bf16_is_no_fault() {
    if !has_python() {
        return;
    }
    let bench = Bench::new();
    let provider = bench.script("faulty", FAULTY);
    let mut command = bench.command(&provider, &model::tiny(), &["--json", "--ctx-size", "512"]);
    command.env("FAULT", "bf16");
    let checked = read(command);
    assert_eq!(checked.code, 0, "{:#}", checked.report);
    let error = checked.prompt("64 tokens")["worst_tensor"]["relative_error"].as_f64().unwrap();
    assert!((5e-4..5e-3).contains(&error), "{error}");
}

#[test]
fn providers_that_do_not_run() {
    let bench = Bench::new();
    let contract = |provider: &Path, args: &[&str]| {
        let args = [&["--ctx-size", "512"], args].concat();
        let checked = bench.check(provider, &model::tiny(), &args);
        assert_eq!(checked.code, 1, "{:#}", checked.report);
        Checked::faults_of(checked.prompt("7 tokens"))[0].1.to_owned()
    };
    // A bare name is looked up in PATH when it is started; a path is looked at before the model is loaded.
    let missing = contract(Path::new("no-such-provider"), &[]);
    assert_eq!(missing, "cannot start the provider no-such-provider: No such file or directory");
    let output = bench.command(Path::new("/no/such/provider"), &model::tiny(), &[]).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert_eq!(stderr.trim_end(), "onebit provider check: /no/such/provider: there is no such program");
    let fails = bench.script("fails", "#!/bin/sh\necho 'no NPU found' >&2\nexit 9\n");
    assert_eq!(contract(&fails, &[]), "the provider exited with status 9: no NPU found");
    let slow = bench.script("slow", "#!/bin/sh\nsleep 60\n");
    assert_eq!(contract(&slow, &["--timeout", "0.1"]), "the provider did not finish within 0.1 s");
    let silent = bench.script("silent", "#!/bin/sh\n");
    assert_eq!(contract(&silent, &[]), "the provider wrote no reply to stdout");
}

#[test]
fn wrong_flags_and_models() {
    let bench = Bench::new();
    let code = |model: &str, args: &[&str]| {
        bench.command(Path::new("true"), Path::new(model), args).output().unwrap().status.code().unwrap()
    };
    assert_eq!(code("/no/such.gguf", &[]), 3);
    assert_eq!(code("/no/such.gguf", &["--timeout", "0"]), 2);
    assert_eq!(code("/no/such.gguf", &["--max-kl", "-1"]), 2);
    assert_eq!(code("/no/such.gguf", &["--cache-type-k", "f17"]), 2);
}

#[test]
fn the_minimal_example_passes() {
    // Cargo builds examples with all tests, not with a single one.
    let binary = Path::new(env!("CARGO_BIN_EXE_onebit")).parent().unwrap().join("examples/minimal");
    if !binary.exists() {
        eprintln!("SKIPPED: no {}; `cargo build --example minimal` makes it", binary.display());
        return;
    }
    let checked = Bench::new().check(&binary, &model::tiny(), &["--ctx-size", "512"]);
    assert_eq!(checked.code, 0, "{:#}", checked.report);
}

/// `ONEBIT_TEST_LLAMA_SERVER` names a llama-server of the pinned build.
#[test]
fn the_llama_server_example_passes() {
    let Some(server) = std::env::var_os("ONEBIT_TEST_LLAMA_SERVER").filter(|_| has_python()) else {
        return eprintln!("SKIPPED: ONEBIT_TEST_LLAMA_SERVER does not name a llama-server");
    };
    let bench = Bench::new();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut command = Command::new(server);
    command
        .arg("-m")
        .arg(model::tiny())
        .args(["--port", &port.to_string(), "--slot-save-path"])
        .arg(bench.folder.path());
    command.args(["-np", "1", "-fa", "on", "-c", "2048", "-t", "1"]);
    let mut server = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let ready = || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok();
    common::process::until("llama-server listens", common::process::SOON, ready);
    // It listens before the model is loaded, and answers 503 until then; the tiny model takes no time.
    std::thread::sleep(std::time::Duration::from_secs(2));

    let provider = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/providers/llama_server.py");
    let mut command = bench.command(&provider, &model::tiny(), &["--json"]);
    command.env("LLAMA_SERVER_URL", format!("http://127.0.0.1:{port}"));
    command.env("LLAMA_SERVER_SLOTS", bench.folder.path());
    let checked = read(command);
    server.kill().unwrap();
    server.wait().unwrap();
    assert_eq!(checked.code, 0, "{:#}", checked.report);
}
