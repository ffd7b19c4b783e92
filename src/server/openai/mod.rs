//! OpenAI's endpoints, with llama-server's extra fields.

mod chat;
mod completions;
mod embeddings;
mod later;
mod logprobs;
mod messages;
mod models;
mod params;
mod prompt;
mod wire;

use axum::{
    Router,
    routing::{get, post},
};

use super::state::AppState;

pub use chat::{read as read_chat, usage};
pub use later::refuse_in_text;
pub use logprobs::entries as logprob_entries;
pub use params::Params;
pub use prompt::{Prompt, read_all as read_prompts, read_one as read_prompt};
pub use wire::{Progress, Timings, random_id, unix_time};

pub fn routes() -> Router<AppState> {
    Router::new()
        .route("/v1/models", get(models::list))
        .route("/models", get(models::list))
        // A wildcard, since ids such as `org/model` have a slash.
        .route("/v1/models/{*id}", get(models::retrieve))
        .route("/v1/chat/completions", post(chat::create))
        .route("/chat/completions", post(chat::create))
        .route("/v1/chat/completions/input_tokens", post(chat::count_input))
        .route("/chat/completions/input_tokens", post(chat::count_input))
        .route("/v1/completions", post(completions::create))
        .route("/v1/embeddings", post(embeddings::create))
        .route("/embeddings", post(embeddings::native))
        .route("/embedding", post(embeddings::native))
}
