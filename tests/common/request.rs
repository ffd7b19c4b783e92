//! Questions to a server and its answers, in whatever form they were asked.

use std::collections::HashMap;

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::http::Reply;
use super::model;
use super::server::Setup;

/// A question: greedy, and the answer is visible text of a known length.
#[derive(Clone, Debug)]
pub struct Request {
    pub path: &'static str,
    pub body: Value,
}

/// Length of answers in tokens.
pub const N_ANSWER: usize = 24;

impl Request {
    /// To `/v1/completions`. The tiny model has a token for each byte, and one in front.
    pub fn text(prompt: &str) -> Self {
        Self::new("/v1/completions", "prompt", prompt.into())
    }

    /// To `/v1/chat/completions`.
    pub fn chat(content: &str) -> Self {
        Self::new("/v1/chat/completions", "messages", json!([{"role": "user", "content": content}]))
    }

    fn new(path: &'static str, name: &str, value: Value) -> Self {
        let forbidden: Vec<Value> = model::invisible_tokens().map(|token| json!([token.0, false])).collect();
        let body = json!({
            name: value, "max_tokens": N_ANSWER, "temperature": 0, "ignore_eos": true, "logit_bias": forbidden,
            // The whole prompt is evaluated, so that counts tell who evaluated it.
            "cache_prompt": false,
        });
        Self { path, body }
    }

    pub fn streamed(self) -> Self {
        self.with("stream", true.into()).with("stream_options", json!({"include_usage": true}))
    }

    pub fn with(mut self, field: &str, value: Value) -> Self {
        self.body[field] = value;
        self
    }
}

/// What was answered, and what the reply says about it.
#[derive(Clone, Debug)]
pub struct Answer {
    pub text: String,
    pub finish_reason: String,
    pub usage: Value,
    pub timings: Value,
}

impl Answer {
    /// From a reply of either endpoint, streamed or not. Panics unless it is a good one.
    pub fn read(reply: &Reply) -> Self {
        assert_eq!(reply.status, 200, "{}", reply.body);
        if !reply.is_event_stream() {
            return Self::join(&[reply.json()]);
        }
        let events = reply.events();
        let (done, chunks) = events.split_last().expect("a stream has events");
        assert_eq!(*done, "[DONE]");
        let chunks: Vec<Value> = chunks.iter().map(|chunk| serde_json::from_str(chunk).expect("JSON")).collect();
        Self::join(&chunks)
    }

    fn join(bodies: &[Value]) -> Self {
        let choices = || bodies.iter().map(|body| &body["choices"][0]);
        let text = |choice: &Value| {
            let places = [&choice["text"], &choice["message"]["content"], &choice["delta"]["content"]];
            places.into_iter().find_map(Value::as_str).unwrap_or_default().to_owned()
        };
        let last = |field: &str| bodies.iter().rev().map(|body| &body[field]).find(|value| !value.is_null());
        Self {
            text: choices().map(text).collect(),
            finish_reason: choices().find_map(|choice| choice["finish_reason"].as_str()).expect("an end").to_owned(),
            usage: last("usage").expect("usage").clone(),
            timings: last("timings").expect("timings").clone(),
        }
    }

    pub fn n_prompt(&self) -> usize {
        number(&self.usage, "prompt_tokens")
    }

    pub fn n_cached(&self) -> usize {
        number(&self.timings, "cache_n")
    }

    pub fn n_evaluated(&self) -> usize {
        number(&self.timings, "prompt_n")
    }

    /// What a client sees, which must not depend on where the prompt was evaluated.
    pub fn visible(&self) -> (&str, &str, usize, &Value) {
        (&self.text, &self.finish_reason, self.n_prompt(), &self.usage["completion_tokens"])
    }
}

fn number(object: &Value, field: &str) -> usize {
    let number = object[field].as_u64().unwrap_or_else(|| panic!("no {field} in {object}"));
    usize::try_from(number).unwrap()
}

/// The answer of a plain `--device cpu` server, which is started for each question that is new.
pub fn cpu_answer(request: &Request) -> Answer {
    static KNOWN: Mutex<Option<HashMap<String, Answer>>> = Mutex::new(None);
    let mut known = KNOWN.lock();
    let answer =
        known.get_or_insert_default().entry(format!("{} {}", request.path, request.body)).or_insert_with(|| {
            let server = Setup::cpu().start();
            let answer = server.ask(request);
            server.stop();
            answer
        });
    assert_eq!(answer.text.len(), N_ANSWER, "{answer:?}");
    answer.clone()
}
