//! The handoff with a real model: `ONEBIT_SERVE_TEST_GGUF` names the GGUF (`make test` sets it). Greedy answers through
//! `onebit serve --device hybrid` with the reference provider equal those of `--device cpu`.
//!
//! `ONEBIT_SERVE_TEST_GGUF_SWA` names a sliding-window model for the same at the library level.

mod common;

use std::path::PathBuf;

use common::server::Server;
use onebit::engine::{Engine, EngineConfig, Event, FlashAttention, GenerateOptions};
use onebit::llama::Token;
use serde_json::{Value, json};

/// The model that a variable names; says so when a test skips.
fn model(variable: &str) -> Option<PathBuf> {
    let path = std::env::var_os(variable).map(PathBuf::from);
    if path.is_none() {
        eprintln!("SKIPPED: {variable} is not set; `make test` sets it");
    }
    path
}

/// Text of about `n_words` words that does not repeat soon.
fn text(n_words: usize) -> String {
    const WORDS: [&str; 13] = [
        "river", "stone", "seven", "lamp", "north", "bread", "quiet", "engine", "violet", "paper", "salt", "window",
        "rope",
    ];
    let words = (0..n_words).map(|index| WORDS[(index * index + index / 7) % WORDS.len()]);
    words.collect::<Vec<_>>().join(" ")
}

fn chat(prompt: &str, stream: bool) -> Value {
    json!({
        "messages": [{"role": "user", "content": format!("{prompt}\nWhat was that about?")}],
        "temperature": 0, "max_tokens": 32, "stream": stream, "stream_options": {"include_usage": true},
    })
}

#[test]
fn greedy_answers_equal_the_cpus() {
    let Some(model) = model("ONEBIT_SERVE_TEST_GGUF") else { return };
    let provider = env!("CARGO_BIN_EXE_onebit-prefill");
    let cpu = Server::start(&model, &["--device", "cpu", "--flash-attn", "on"]);
    let hybrid = Server::start(&model, &["--device", "hybrid", "--prefill-provider", provider]);
    for n_words in [10, 200, 1100] {
        let prompt = text(n_words);
        let expected = cpu.chat(&chat(&prompt, false));
        for stream in [false, true, false] {
            let got = hybrid.chat(&chat(&prompt, stream));
            assert_eq!(got.text, expected.text, "{n_words} words, stream {stream}");
            assert_eq!(got.usage["prompt_tokens"], expected.usage["prompt_tokens"]);
            assert_eq!(got.timings["prompt_n"], 1, "{n_words} words: {}", got.timings);
            assert_eq!(got.timings["cache_n"].as_u64(), got.usage["prompt_tokens"].as_u64().map(|n| n - 1));
        }
        let streamed = cpu.chat(&chat(&prompt, true));
        assert_eq!(streamed.text, expected.text, "{n_words} words, cpu streamed");
    }
    assert_eq!(hybrid.stop(), Some(0));
    assert_eq!(cpu.stop(), Some(0));
}

fn greedy(events: impl Iterator<Item = Result<Event, onebit::engine::EngineError>>) -> (Vec<Token>, usize) {
    let (mut tokens, mut evaluated) = (Vec::new(), 0);
    for event in events {
        match event.expect("an event") {
            Event::Prompt(prompt) => evaluated = prompt.n_prompt - prompt.n_cached,
            Event::Piece(piece) => tokens.extend(piece.tokens),
            Event::Done(_) => {}
        }
    }
    (tokens, evaluated)
}

/// Tokens of the unsplit run and of the handoff, at these prompt lengths.
fn handoff_equals_unsplit(model: PathBuf, lengths: &[usize]) {
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
    if let Some(model) = model("ONEBIT_SERVE_TEST_GGUF") {
        handoff_equals_unsplit(model, &[1, 2, 20, 300, 1500]);
    }
}

#[test]
fn handoff_is_token_identical_on_a_sliding_window_model() {
    if let Some(model) = model("ONEBIT_SERVE_TEST_GGUF_SWA") {
        handoff_equals_unsplit(model, &[1, 20, 300, 600, 1500]);
    }
}
