//! Endpoints that clients look for and that this server does not have: 501 with the reason, where 404 would look like a
//! wrong address.

use serde_json::{Value, json};

use crate::server::{error::ApiError, extract::ApiJson};

/// The adapters that are loaded: none.
pub async fn no_adapters() -> ApiJson<Value> {
    ApiJson(json!([]))
}

pub async fn adapters() -> ApiError {
    ApiError::not_supported("onebit has no LoRA adapters: merge them into the model file")
}

pub async fn rerank() -> ApiError {
    ApiError::not_supported("onebit has no reranking yet")
}

pub async fn audio() -> ApiError {
    ApiError::not_supported("audio input is not supported: the model reads text")
}
