//! `onebit-prefill --resident` by itself: its answers, and what it uses again of the last prompt.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use onebit::engine::{Engine, EngineConfig, FlashAttention};
use onebit::llama::Token;
use serde_json::{Value, json};

use crate::common::kinds::{Kind, prompt, restored, whole};
use crate::common::model;

const N_ANSWER: u32 = 12;

fn command(model: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_onebit-prefill"));
    command.arg("--model").arg(model).env("ONEBIT_PREFILL_THREADS", "1").env_remove("ONEBIT_PREFILL_CTX_SIZE");
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

struct Prefill {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    folder: tempfile::TempDir,
}

impl Prefill {
    fn start(model: &Path, args: &[&str]) -> Self {
        let mut child = command(model).arg("--resident").args(args).spawn().unwrap();
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Self { child, stdin, stdout, folder: tempfile::tempdir().unwrap() }
    }

    fn say(&mut self, line: &str) -> Value {
        writeln!(self.stdin.as_mut().unwrap(), "{line}").unwrap();
        let mut answer = String::new();
        self.stdout.read_line(&mut answer).unwrap();
        serde_json::from_str(&answer).unwrap_or_else(|err| panic!("{err}: {answer:?}"))
    }

    /// Asks for a prompt, which must go well; the state is in `state` then.
    fn ask(&mut self, id: u64, tokens: &[Token]) -> Value {
        let answer = self.try_to_ask(id, tokens);
        assert_eq!((&answer["id"], &answer["n_tokens"]), (&id.into(), &tokens.len().into()), "{answer}");
        assert!(answer["prefill_ms"].is_number() && answer["argmax"].is_i64(), "{answer}");
        answer
    }

    fn try_to_ask(&mut self, id: u64, tokens: &[Token]) -> Value {
        let ids: Vec<String> = tokens.iter().map(|token| format!("{token}\n")).collect();
        std::fs::write(self.folder.path().join("ids"), ids.concat()).unwrap();
        let request = self.request(id);
        self.say(&request.to_string())
    }

    fn request(&self, id: u64) -> Value {
        json!({"id": id, "tokens": self.folder.path().join("ids"), "out": self.state(), "more": "ignored"})
    }

    fn state(&self) -> std::path::PathBuf {
        self.folder.path().join("state")
    }

    fn end(mut self) {
        self.stdin = None;
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
    }
}

/// An engine as the server's, whose passes are those of the provider.
fn engine(kind: Kind) -> Engine {
    let config = EngineConfig {
        n_ctx: Some(2048),
        n_threads: Some(1),
        flash_attention: FlashAttention::On,
        ..EngineConfig::new(kind.model())
    };
    Engine::load(config).unwrap()
}

#[test]
fn what_is_used_again_does_not_show() {
    for kind in Kind::ALL {
        let engine = engine(kind);
        let mut prefill = Prefill::start(&kind.model(), &[]);
        let short = prompt(600, 1);
        let long = [&short[..], &prompt(550, 2)].concat();
        let prompts = [&short, &long, &short, &long, &long, &prompt(100, 3), &long];
        let mut n_cached = Vec::new();
        for (id, prompt) in (1..).zip(prompts) {
            let n_states = kind.n_states(prompt.len());
            let answer = prefill.ask(id, &prompt[..n_states]);
            n_cached.push(answer["n_cached"].as_u64().unwrap());
            if n_states == prompt.len() {
                let cold = prefill.folder.path().join("cold");
                engine.prefill_to_file(&prompt[..], &cold).unwrap();
                assert!(
                    std::fs::read(cold).unwrap() == std::fs::read(prefill.state()).unwrap(),
                    "{kind:?} {n_cached:?}"
                );
            }
            let found = restored(&engine, &prefill.state(), prompt, N_ANSWER).unwrap();
            assert_eq!(found.ids, whole(&engine, prompt, N_ANSWER).ids, "{kind:?}, {n_cached:?}");
        }
        let expected = match kind {
            Kind::Attention | Kind::MRope => [0, 512, 512, 512, 1024, 0, 0],
            // As long as the ring has not gone round: 32 and 512 cells, rounded up to 768.
            Kind::SlidingWindow => [0, 512, 0, 512, 0, 0, 0],
            // Only from the very end.
            Kind::Recurrent | Kind::Hybrid | Kind::HybridWindow => [0, 599, 0, 599, 0, 0, 0],
        };
        assert_eq!(n_cached, expected, "{kind:?}");
        prefill.end();
    }
}

#[test]
fn errors_are_answers() {
    let mut prefill = Prefill::start(&model::tiny(), &["--ctx-size", "64"]);
    let good = prompt(20, 1);
    prefill.ask(1, &good);
    let error = |answer: Value, id: Value, part: &str| {
        assert_eq!(answer["id"], id, "{answer}");
        assert!(answer["error"].as_str().unwrap().contains(part), "{answer}");
    };
    error(prefill.say("hello"), Value::Null, "is not JSON");
    error(prefill.say(r#"{"id": 2}"#), 2.into(), "missing field `tokens`");
    error(prefill.say(r#"{"id":3,"tokens":"/no/such","out":"/no/such"}"#), 3.into(), "No such file or directory");
    error(prefill.try_to_ask(4, &[Token(1 << 30)]), 4.into(), "1073741824");
    // A context has at least 256 tokens.
    error(prefill.try_to_ask(5, &prompt(300, 1)), 5.into(), "300");
    error(prefill.try_to_ask(6, &[]), 6.into(), "no ids");
    let mut request = prefill.request(7);
    std::fs::write(prefill.folder.path().join("ids"), "1\n2\n").unwrap();
    request["out"] = prefill.folder.path().join("missing/state").to_str().into();
    error(prefill.say(&request.to_string()), 7.into(), "No such file or directory");
    prefill.ask(8, &good);
    prefill.end();
}

#[test]
fn a_longer_prompt_gets_a_longer_context() {
    let mut prefill = Prefill::start(&model::tiny(), &[]);
    prefill.ask(1, &prompt(10, 1));
    let trained = 2048;
    prefill.ask(2, &prompt(trained + 100, 1));
    let answer = prefill.ask(3, &prompt(trained + 100, 1));
    assert_eq!(answer["n_cached"], trained);
    prefill.end();
}

#[test]
fn flags() {
    let code = |model: &Path, args: &[&str]| {
        let output = command(model).args(args).stderr(Stdio::null()).stdin(Stdio::null()).output().unwrap();
        (output.status.code(), output.stdout.len())
    };
    assert_eq!(code(&model::tiny(), &["--resident"]), (Some(0), 0), "nothing is asked");
    assert_eq!(code(&model::tiny(), &["--resident", "--tokens", "x"]), (Some(2), 0));
    assert_eq!(code(&model::tiny(), &["--tokens", "x"]), (Some(2), 0));
    assert_eq!(code(Path::new("/no/such.gguf"), &["--resident"]), (Some(3), 0));
}
