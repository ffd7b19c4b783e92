//! `POST /v1/completions`.

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use serde::Serialize;
use serde_json::Value;

use super::{
    later,
    params::Params,
    wire::{Body, Head, Totals, finish_reason},
};
use crate::{
    engine::{GenerateOptions, Piece, Report},
    llama::Token,
    server::{
        error::ApiError,
        extract::{ApiJson, Object},
        fields::{Fields, integer, wrong},
        generation,
        reply::{self, Reply},
        sse,
        state::{AppState, Backend, blocking},
    },
};

/// The handler.
pub async fn create(State(state): State<AppState>, ApiJson(body): ApiJson<Object>) -> Result<Response, ApiError> {
    let fields = Fields::root(&body);
    let params = Params::read(&fields, &state.config().defaults)?;
    later::refuse_in_text(&fields)?;
    let backend = state.backend()?.clone();
    let prompt = Prompt::read(&fields, backend.info().n_vocab)?;

    let reply = TextReply { head: Head::new(&state, "cmpl-", "text_completion")?, include_usage: params.include_usage };
    let keep_alive = params.stream.then_some(state.config().keep_alive);
    let steps = if prompt.is_empty() {
        generation::empty(&state)
    } else {
        let (prompt, options) = blocking(move || prepare(&backend, prompt, params)).await?;
        generation::start(&state, prompt, options).await?
    };
    reply::send(reply, steps, keep_alive).await
}

fn prepare(backend: &Backend, prompt: Prompt, params: Params) -> Result<(Vec<Token>, GenerateOptions), ApiError> {
    let tokens = match prompt {
        Prompt::Text(text) => backend.tokenize(&text, true, true)?,
        Prompt::Tokens(tokens) => tokens,
    };
    Ok((tokens, params.into_options(backend)?))
}

#[derive(Debug, PartialEq)]
enum Prompt {
    Text(String),
    Tokens(Vec<Token>),
}

impl Prompt {
    /// A string, an array of token ids, or an array with one of these in it.
    fn read(fields: &Fields, n_vocab: u32) -> Result<Self, ApiError> {
        match fields.get("prompt") {
            None => Err(ApiError::field("prompt", "missing; expected a string or an array of token ids")),
            Some(Value::Array(items)) => match items.as_slice() {
                [] => Err(ApiError::field("prompt", "is an empty array")),
                [one @ (Value::String(_) | Value::Array(_))] => Self::one("prompt[0]", one, n_vocab),
                [Value::Number(_), ..] => Self::ids("prompt", items, n_vocab),
                [_, _, ..] => Err(ApiError::field("prompt", "several prompts in one request are not supported yet")),
                [other] => Err(wrong("prompt[0]".into(), "a string or a token id", other)),
            },
            Some(value) => Self::one("prompt", value, n_vocab),
        }
    }

    fn one(path: &str, value: &Value, n_vocab: u32) -> Result<Self, ApiError> {
        match value {
            Value::String(text) => Ok(Self::Text(text.clone())),
            Value::Array(items) if items.is_empty() => Err(ApiError::field(path, "is an empty array")),
            Value::Array(items) => Self::ids(path, items, n_vocab),
            other => Err(wrong(path.into(), "a string or an array of token ids", other)),
        }
    }

    fn ids(path: &str, items: &[Value], n_vocab: u32) -> Result<Self, ApiError> {
        let id = |(idx, item)| {
            let path = || format!("{path}[{idx}]");
            let id = integer(item).ok_or_else(|| wrong(path(), "a token id", item))?;
            let known = u32::try_from(id).is_ok_and(|id| id < n_vocab);
            let outside = || format!("token id {id} is outside the vocabulary of {n_vocab} tokens");
            known.then_some(Token(id as i32)).ok_or_else(|| ApiError::field(path(), outside()))
        };
        items.iter().enumerate().map(id).collect::<Result<_, _>>().map(Self::Tokens)
    }

    /// Without BOS even where the model wants one: an empty prompt has an empty answer on every model.
    fn is_empty(&self) -> bool {
        matches!(self, Self::Text(text) if text.is_empty())
    }
}

struct TextReply {
    head: Head,
    include_usage: bool,
}

#[derive(Serialize)]
struct Choice<'a> {
    index: u32,
    text: &'a str,
    logprobs: Option<()>,
    finish_reason: Option<&'static str>,
}

impl<'a> Choice<'a> {
    fn new(text: &'a str, finish_reason: Option<&'static str>) -> Self {
        Self { index: 0, text, logprobs: None, finish_reason }
    }
}

impl Reply for TextReply {
    fn opening(&mut self) -> Vec<String> {
        Vec::new()
    }

    fn piece(&mut self, piece: &Piece) -> Vec<String> {
        if piece.text.is_empty() {
            return Vec::new();
        }
        vec![sse::json(&Body::chunk(&self.head, Choice::new(&piece.text, None)))]
    }

    /// The finish chunk carries the usage even when not asked (llama-server's clients read it there); when asked, it
    /// moves to a chunk without choices, so that it is never counted twice.
    fn closing(&mut self, report: &Report) -> Vec<String> {
        let end = Choice::new("", Some(finish_reason(&report.finish)));
        let totals = Totals::new(report);
        if !self.include_usage {
            return vec![sse::json(&Body::last(&self.head, vec![end], totals))];
        }
        let usage = Body::<Choice>::last(&self.head, Vec::new(), totals);
        vec![sse::json(&Body::chunk(&self.head, end)), sse::json(&usage)]
    }

    fn whole(self, text: String, report: &Report) -> Response {
        let choice = Choice::new(&text, Some(finish_reason(&report.finish)));
        ApiJson(Body::last(&self.head, vec![choice], Totals::new(report))).into_response()
    }
}
