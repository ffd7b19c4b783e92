//! Errors, counts, times.

use serde::Serialize;
use utoipa::ToSchema;

/// On Anthropic's paths with `"type": "error"` beside it.
#[derive(Serialize, ToSchema)]
pub struct ErrorReply {
    error: ErrorObject,
    r#type: Option<String>,
}

#[derive(Serialize, ToSchema)]
pub struct ErrorObject {
    message: String,
    r#type: String,
    /// The field that is wrong.
    #[schema(required)]
    param: Option<String>,
    /// The status again.
    code: u16,
    /// Of a prompt that does not fit.
    n_prompt_tokens: Option<u64>,
    n_ctx: Option<u64>,
}

#[derive(Serialize, ToSchema)]
pub struct Usage {
    /// Cached ones included.
    prompt_tokens: u64,
    completion_tokens: u64,
    total_tokens: u64,
    prompt_tokens_details: PromptTokensDetails,
    completion_tokens_details: CompletionTokensDetails,
}

#[derive(Serialize, ToSchema)]
pub struct PromptTokensDetails {
    cached_tokens: u64,
}

#[derive(Serialize, ToSchema)]
pub struct CompletionTokensDetails {
    reasoning_tokens: u64,
}

/// llama-server's. After a handoff, `prefill_ms` and `restore_ms` are what it took; `restore_ms` alone is of the prefix store.
#[derive(Serialize, ToSchema)]
pub struct Timings {
    cache_n: u64,
    prompt_n: u64,
    prompt_ms: f64,
    prompt_per_token_ms: f64,
    prompt_per_second: f64,
    predicted_n: u64,
    predicted_ms: f64,
    predicted_per_token_ms: f64,
    predicted_per_second: f64,
    prefill_ms: Option<f64>,
    restore_ms: Option<f64>,
}

/// A token and how likely it was, by the model's logits alone.
#[derive(Serialize, ToSchema)]
pub struct TokenLogprob {
    id: i32,
    /// Cut to valid UTF-8.
    token: String,
    bytes: Vec<u8>,
    logprob: f64,
    top_logprobs: Vec<TopLogprob>,
}

#[derive(Serialize, ToSchema)]
pub struct TopLogprob {
    id: i32,
    token: String,
    bytes: Vec<u8>,
    logprob: f64,
}
