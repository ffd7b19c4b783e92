//! OpenAI's Responses API, without its memory: every request brings the whole conversation.
//!
//! `request` and `input` read a request into a chat call, `answer` writes what comes back.

mod answer;
mod input;
mod request;

use axum::{
    Router,
    extract::State,
    response::{IntoResponse, Response},
    routing::post,
};
use serde_json::json;

use super::{
    chat, dialect,
    error::ApiError,
    events,
    extract::{ApiJson, Object},
    state::AppState,
};

/// What the chat calls its fields, and what they are here.
const NAMES: &[(&str, &str)] = &[("messages", "input"), ("response_format", "text.format")];

pub fn routes() -> Router<AppState> {
    Router::new()
        .route("/v1/responses", post(create))
        .route("/responses", post(create))
        .route("/v1/responses/input_tokens", post(count_input))
        .route("/responses/input_tokens", post(count_input))
}

async fn create(State(state): State<AppState>, ApiJson(body): ApiJson<Object>) -> Result<Response, ApiError> {
    let (call, echo) = request::read(&body, &state)?;
    let answer = answer::Answer::new(&state, echo)?;
    let keep_alive = call.params.stream.then_some(state.config().keep_alive);
    let (steps, _) = chat::start_one(&state, call).await.map_err(|error| dialect::rename(error, NAMES))?;
    events::send(answer, steps, keep_alive).await
}

async fn count_input(State(state): State<AppState>, ApiJson(body): ApiJson<Object>) -> Result<Response, ApiError> {
    let (call, _) = request::read(&body, &state)?;
    let n_tokens = chat::count(&state, call).await.map_err(|error| dialect::rename(error, NAMES))?;
    Ok(ApiJson(json!({"object": "response.input_tokens", "input_tokens": n_tokens})).into_response())
}
