//! Readiness. The `ready` layer answers 503 before these routes are reached, so what is left to say is "ok".

use axum::{Router, routing::get};
use serde_json::json;

use super::{extract::ApiJson, state::AppState};

pub fn routes() -> Router<AppState> {
    Router::new().route("/health", get(health)).route("/v1/health", get(health))
}

async fn health() -> ApiJson<serde_json::Value> {
    ApiJson(json!({"status": "ok"}))
}
