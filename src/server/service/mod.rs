//! llama-server's endpoints around the generation: what the server is and does, tokens, templates.

mod metrics;
mod page;
mod params;
mod props;
mod slots;
mod tokens;
mod unsupported;

use axum::{
    Router,
    routing::{get, post},
};

use super::state::AppState;
use crate::engine::GenerateOptions;

/// `generation_settings` of llama-server's replies.
pub fn settings(options: &GenerateOptions) -> params::Params {
    params::Params::new(options)
}

pub fn routes() -> Router<AppState> {
    Router::new()
        .route("/", get(page::show))
        .route("/props", get(props::show).post(props::change))
        .route("/slots", get(slots::list))
        .route("/metrics", get(metrics::show))
        .route("/tokenize", post(tokens::tokenize))
        .route("/v1/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route("/v1/detokenize", post(tokens::detokenize))
        .route("/apply-template", post(tokens::apply_template))
        .route("/lora-adapters", get(unsupported::no_adapters).post(unsupported::adapters))
        .route("/rerank", post(unsupported::rerank))
        .route("/reranking", post(unsupported::rerank))
        .route("/reranker", post(unsupported::rerank))
        .route("/v1/rerank", post(unsupported::rerank))
        .route("/v1/reranking", post(unsupported::rerank))
        .route("/v1/audio/transcriptions", post(unsupported::audio))
}
