//! Log-probabilities on the wire.

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::{engine::TokenLogprob, llama::Token, server::state::Backend};

/// One token: `token` is cut to valid UTF-8, `bytes` is exact.
#[derive(Debug, Serialize)]
pub struct Entry {
    id: i32,
    token: String,
    bytes: Vec<u8>,
    logprob: f32,
    top_logprobs: Vec<Alternative>,
}

#[derive(Debug, Serialize)]
struct Alternative {
    id: i32,
    token: String,
    bytes: Vec<u8>,
    logprob: f32,
}

/// Chat's form of the entries.
#[derive(Debug, Serialize)]
pub struct ChatLogprobs {
    content: Vec<Entry>,
}

impl ChatLogprobs {
    /// `None` when nobody asked.
    pub fn new(backend: &Backend, logprobs: &[TokenLogprob], asked: bool) -> Option<Self> {
        asked.then(|| Self { content: entries(backend, logprobs) })
    }
}

/// The entries of these tokens.
pub fn entries(backend: &Backend, logprobs: &[TokenLogprob]) -> Vec<Entry> {
    logprobs.iter().map(|logprob| entry(backend, logprob)).collect()
}

fn entry(backend: &Backend, logprob: &TokenLogprob) -> Entry {
    let (token, bytes) = text(backend, logprob.token);
    let top = logprob.top.iter().map(|&(token, logprob)| {
        let id = token.0;
        let (token, bytes) = text(backend, token);
        Alternative { id, token, bytes, logprob }
    });
    Entry { id: logprob.token.0, token, bytes, logprob: logprob.logprob, top_logprobs: top.collect() }
}

fn text(backend: &Backend, token: Token) -> (String, Vec<u8>) {
    let bytes = backend.token_bytes(token);
    let valid = match std::str::from_utf8(&bytes) {
        Ok(text) => text.to_owned(),
        Err(error) => String::from_utf8_lossy(&bytes[..error.valid_up_to()]).into_owned(),
    };
    (valid, bytes)
}

/// Both forms that clients of text completions look for: OpenAI's parallel lists, and chat's entries, as llama-server
/// sends them. `offset` is the number of characters before the first token.
pub fn text_logprobs(backend: &Backend, logprobs: &[TokenLogprob], offset: usize) -> Value {
    let entries = entries(backend, logprobs);
    let mut at = offset;
    let mut offsets = Vec::new();
    for entry in &entries {
        offsets.push(at);
        at += entry.token.chars().count();
    }
    let top = |entry: &Entry| -> Map<String, Value> {
        entry.top_logprobs.iter().map(|other| (other.token.clone(), json!(other.logprob))).collect()
    };
    json!({
        "tokens": entries.iter().map(|entry| &entry.token).collect::<Vec<_>>(),
        "token_logprobs": entries.iter().map(|entry| entry.logprob).collect::<Vec<_>>(),
        "top_logprobs": entries.iter().map(top).collect::<Vec<_>>(),
        "text_offset": offsets,
        "content": entries,
    })
}
