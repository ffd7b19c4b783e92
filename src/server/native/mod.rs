//! llama-server's own generation endpoints.

mod completion;
mod infill;
mod slots;

use axum::{Router, routing::post};

use super::state::AppState;

pub fn routes() -> Router<AppState> {
    Router::new()
        .route("/completion", post(completion::create))
        // Without /v1 it is this API, not OpenAI's.
        .route("/completions", post(completion::create))
        .route("/infill", post(infill::create))
        .route("/slots/{id}", post(slots::act))
}
