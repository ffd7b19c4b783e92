//! The handoff with a real model: `ONEBIT_SERVE_TEST_GGUF` names the GGUF (`make test` sets it). Greedy answers through
//! `onebit serve --device hybrid` with the reference provider equal those of `--device cpu`.
//!
//! `ONEBIT_SERVE_TEST_GGUF_SWA` names a sliding-window model for the same at the library level.

mod common;

use std::path::{Path, PathBuf};

use common::request::Request;
use common::server::{HybridLine, Server, Setup};
use onebit::engine::{Engine, EngineConfig, Event, FlashAttention, GenerateOptions};
use onebit::llama::Token;
use parking_lot::{Mutex, MutexGuard};
use serde_json::json;

/// One test at a time: each computes on all cores.
static TURN: Mutex<()> = Mutex::new(());

/// The model that a variable names; says so when a test skips.
fn model(variable: &str) -> Option<(PathBuf, MutexGuard<'static, ()>)> {
    let path = std::env::var_os(variable).map(PathBuf::from);
    if path.is_none() {
        eprintln!("SKIPPED: {variable} is not set; `make test` sets it");
    }
    path.map(|path| (path, TURN.lock()))
}

/// About `n_words` words that a small model goes on with confidently. Where two continuations are as good as equal, rounding
/// decides: after a restore the cells of a sliding window lie at other places of the cache, and ggml's CPU attention adds up
/// in the order of the places.
fn text(n_words: usize) -> String {
    const ANIMALS: [&str; 7] = ["horse", "dog", "sheep", "cow", "cat", "goat", "hen"];
    const FRUITS: [&str; 5] = ["apples", "pears", "plums", "cherries", "figs"];
    let sentences = (1..=n_words.div_ceil(9)).map(|n| {
        let (animal, fruit) = (ANIMALS[n % ANIMALS.len()], FRUITS[n % FRUITS.len()]);
        format!("On day {n} the {animal} ate {n} {fruit}.")
    });
    sentences.collect::<Vec<_>>().join(" ")
}

fn chat(prompt: &str) -> Request {
    let body = json!({
        "messages": [{"role": "user", "content": format!("{prompt}\nWhat was that about?")}],
        "temperature": 0, "max_tokens": 32,
    });
    Request { path: "/v1/chat/completions", body }
}

fn start(model: &Path, args: &[&str]) -> Server {
    Setup::bare(["--port", "0", "--model"]).arg(model).args(args).start()
}

#[test]
fn greedy_answers_equal_the_cpus() {
    let Some((model, _turn)) = model("ONEBIT_SERVE_TEST_GGUF") else { return };
    let provider = env!("CARGO_BIN_EXE_onebit-prefill");
    let cpu = start(&model, &["--device", "cpu", "--flash-attn", "on"]);
    let hybrid = start(&model, &["--device", "hybrid", "--prefill-provider", provider]);
    for n_words in [6, 280, 1450] {
        let request = chat(&text(n_words));
        let expected = cpu.ask(&request);
        // The second request answers the same; the long one is asked once in each form, because it takes its time.
        let mut forms = vec![request.clone(), request.clone().streamed()];
        if n_words < 1000 {
            assert_eq!(cpu.ask(&forms[1]).visible(), expected.visible(), "{n_words} words, cpu streamed");
            forms.push(request);
        }
        for request in forms {
            let got = hybrid.ask(&request);
            assert_eq!(got.visible(), expected.visible(), "{n_words} words: {}", request.body["stream"]);
            assert_eq!((got.n_evaluated(), got.n_cached()), (1, got.n_prompt() - 1), "{n_words} words");
            assert_eq!(hybrid.hybrid_line(), HybridLine::Handoff { n_prompt: got.n_prompt() });
        }
    }
    hybrid.stop();
    cpu.stop();
}

fn greedy(events: impl Iterator<Item = Result<Event, onebit::engine::EngineError>>) -> (Vec<Token>, usize) {
    let (mut tokens, mut evaluated) = (Vec::new(), 0);
    for event in events {
        match event.expect("an event") {
            Event::Prompt(prompt) => evaluated = prompt.n_prompt - prompt.n_cached,
            Event::Piece(piece) => tokens.extend(piece.tokens),
            Event::Progress(_) | Event::Done(_) => {}
        }
    }
    (tokens, evaluated)
}

/// Tokens of the unsplit run and of the handoff, at these prompt lengths.
fn handoff_equals_unsplit(model: &Path, lengths: &[usize]) {
    let mut config = EngineConfig::new(model);
    config.n_ctx = Some(4096);
    config.flash_attention = FlashAttention::On;
    let engine = Engine::load(config).expect("the model loads");
    let folder = tempfile::tempdir().expect("a folder");
    let all = engine.tokenize(&text(4000), true, false).expect("tokens");
    for &n in lengths {
        let prompt = &all[..n];
        let options = GenerateOptions::greedy(32);
        let (expected, evaluated) = greedy(engine.generate(prompt, &options).expect("starts"));
        assert_eq!(evaluated, n);
        let path = folder.path().join(format!("{n}.state"));
        engine.prefill_to_file(prompt, &path).expect("a state file");
        let (got, evaluated) = greedy(engine.restore_and_generate(&path, prompt, &options).expect("starts"));
        assert_eq!(got, expected, "{n} tokens");
        assert_eq!(evaluated, 1, "{n} tokens");
    }
}

#[test]
fn handoff_is_token_identical_on_a_plain_model() {
    if let Some((model, _turn)) = model("ONEBIT_SERVE_TEST_GGUF") {
        handoff_equals_unsplit(&model, &[1, 2, 20, 300, 1500]);
    }
}

#[test]
fn handoff_is_token_identical_on_a_sliding_window_model() {
    if let Some((model, _turn)) = model("ONEBIT_SERVE_TEST_GGUF_SWA") {
        handoff_equals_unsplit(&model, &[1, 20, 300, 600, 1500, 3000]);
    }
}
