//! Anthropic's Messages API.
//!
//! `request` and `messages` read a request into a chat call, `answer` writes what comes back, `error` gives every error on
//! these paths the shape that their clients read.

mod answer;
mod error;
mod messages;
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

pub use error::shape_errors;

/// What the chat calls its fields, and what they are here.
const NAMES: &[(&str, &str)] = &[("response_format", "output_config.format")];

pub fn routes() -> Router<AppState> {
    Router::new().route("/v1/messages", post(create)).route("/v1/messages/count_tokens", post(count_tokens))
}

async fn create(State(state): State<AppState>, ApiJson(body): ApiJson<Object>) -> Result<Response, ApiError> {
    let (call, form) = request::read(&body, &state)?;
    let keep_alive = call.params.stream.then_some(state.config().keep_alive);
    let (steps, prompt) = chat::start_one(&state, call).await.map_err(|error| dialect::rename(error, NAMES))?;
    let answer = answer::Answer::new(&state, form, prompt)?;
    events::send(answer, steps, keep_alive).await
}

async fn count_tokens(State(state): State<AppState>, ApiJson(body): ApiJson<Object>) -> Result<Response, ApiError> {
    let (call, _) = request::read(&body, &state)?;
    let n_tokens = chat::count(&state, call).await.map_err(|error| dialect::rename(error, NAMES))?;
    Ok(ApiJson(json!({"input_tokens": n_tokens})).into_response())
}
