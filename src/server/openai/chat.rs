//! `POST /v1/chat/completions`.

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use serde::Serialize;

use super::{
    later, messages,
    params::Params,
    wire::{Body, Head, Totals, finish_reason},
};
use crate::{
    engine::{ChatRequest, GenerateOptions, Piece, Report},
    llama::Token,
    server::{
        error::ApiError,
        extract::{ApiJson, Object},
        fields::Fields,
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
    later::refuse_in_chat(&fields)?;
    let messages = messages::read(&fields)?;

    let reply = ChatReply::new(&state, params.stream, params.include_usage)?;
    let keep_alive = params.stream.then_some(state.config().keep_alive);
    let backend = state.backend()?.clone();
    let (prompt, options) = blocking(move || prepare(&backend, &ChatRequest::new(messages), params)).await?;
    let steps = generation::start(&state, prompt, options).await?;
    reply::send(reply, steps, keep_alive).await
}

/// Messages to a prompt, and what its template adds to the options.
fn prepare(
    backend: &Backend,
    request: &ChatRequest,
    params: Params,
) -> Result<(Vec<Token>, GenerateOptions), ApiError> {
    let chat = backend.apply_template(request)?;
    let prompt = backend.tokenize(&chat.prompt, true, true)?;
    let mut options = params.into_options(backend)?;
    options.stop.extend(chat.stop);
    options.preserved_tokens.extend(chat.preserved_tokens);
    if options.sampling.grammar.is_none() {
        options.sampling.grammar = chat.grammar;
    }
    Ok((prompt, options))
}

struct ChatReply {
    head: Head,
    include_usage: bool,
}

#[derive(Serialize)]
struct Choice {
    index: u32,
    message: Message,
    finish_reason: &'static str,
}

#[derive(Serialize)]
struct Message {
    role: &'static str,
    content: String,
}

#[derive(Serialize)]
struct ChunkChoice<'a> {
    index: u32,
    delta: Delta<'a>,
    finish_reason: Option<&'static str>,
}

#[derive(Serialize, Default)]
struct Delta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    /// The first chunk has a content of null, later ones a text or none at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<Option<&'a str>>,
}

impl ChatReply {
    fn new(state: &AppState, stream: bool, include_usage: bool) -> Result<Self, ApiError> {
        let object = if stream { "chat.completion.chunk" } else { "chat.completion" };
        Ok(Self { head: Head::new(state, "chatcmpl-", object)?, include_usage })
    }

    fn delta(&self, delta: Delta) -> String {
        sse::json(&Body::chunk(&self.head, ChunkChoice { index: 0, delta, finish_reason: None }))
    }
}

impl Reply for ChatReply {
    fn opening(&mut self) -> Vec<String> {
        vec![self.delta(Delta { role: Some("assistant"), content: Some(None) })]
    }

    fn piece(&mut self, piece: &Piece) -> Vec<String> {
        if piece.text.is_empty() {
            return Vec::new();
        }
        vec![self.delta(Delta { role: None, content: Some(Some(&piece.text)) })]
    }

    fn closing(&mut self, report: &Report) -> Vec<String> {
        let finish_reason = Some(finish_reason(&report.finish));
        let end = ChunkChoice { index: 0, delta: Delta::default(), finish_reason };
        if !self.include_usage {
            return vec![sse::json(&Body::last(&self.head, vec![end], Totals::without_usage(report)))];
        }
        let usage = Body::<ChunkChoice>::last(&self.head, Vec::new(), Totals::new(report));
        vec![sse::json(&Body::chunk(&self.head, end)), sse::json(&usage)]
    }

    fn whole(self, text: String, report: &Report) -> Response {
        let message = Message { role: "assistant", content: text };
        let choice = Choice { index: 0, message, finish_reason: finish_reason(&report.finish) };
        ApiJson(Body::last(&self.head, vec![choice], Totals::new(report))).into_response()
    }
}
