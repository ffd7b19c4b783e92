//! Continued texts and vectors.

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::{
    chat::FinishReason,
    common::{Timings, TokenLogprob, Usage},
};

/// Whole, and in streams the data of each event but the last, which is `[DONE]`.
#[derive(Serialize, ToSchema)]
pub struct Completion {
    id: String,
    /// `text_completion`
    object: String,
    created: u64,
    model: String,
    system_fingerprint: String,
    choices: Vec<TextChoice>,
    usage: Option<Usage>,
    timings: Option<Timings>,
}

#[derive(Serialize, ToSchema)]
pub struct TextChoice {
    index: u64,
    text: String,
    #[schema(required)]
    logprobs: Option<TextLogprobs>,
    #[schema(required)]
    finish_reason: Option<FinishReason>,
}

/// OpenAI's lists, and the entries of chats.
#[derive(Serialize, ToSchema)]
pub struct TextLogprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<f64>,
    #[schema(value_type = Vec<Object>)]
    top_logprobs: Vec<Value>,
    text_offset: Vec<u64>,
    content: Vec<TokenLogprob>,
}

/// One answer, or an array of several. `response_fields` picks some of the fields.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub enum NativeReply {
    One(Box<NativeChunk>),
    Many(Vec<NativeChunk>),
}

/// An answer, or in streams a part of one; `stop` is true for the last.
#[derive(Serialize, ToSchema)]
pub struct NativeChunk {
    index: Option<u64>,
    content: Option<String>,
    tokens: Option<Vec<i32>>,
    id_slot: Option<i64>,
    stop: Option<bool>,
    model: Option<String>,
    tokens_predicted: Option<u64>,
    tokens_evaluated: Option<u64>,
    generation_settings: Option<super::service::Settings>,
    prompt: Option<String>,
    has_new_line: Option<bool>,
    truncated: Option<bool>,
    stop_type: Option<StopType>,
    stopping_word: Option<String>,
    tokens_cached: Option<u64>,
    timings: Option<Timings>,
    completion_probabilities: Option<Vec<TokenLogprob>>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum StopType {
    Eos,
    Word,
    Limit,
}

#[derive(Serialize, ToSchema)]
pub struct Embeddings {
    /// `list`
    object: String,
    model: String,
    data: Vec<Embedding>,
    usage: EmbeddingUsage,
}

#[derive(Serialize, ToSchema)]
pub struct Embedding {
    /// `embedding`
    object: String,
    index: u64,
    embedding: Vector,
}

/// Numbers, or their bytes (32-bit little endian) in base64.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub enum Vector {
    Numbers(Vec<f64>),
    Base64(String),
}

#[derive(Serialize, ToSchema)]
pub struct EmbeddingUsage {
    prompt_tokens: u64,
    total_tokens: u64,
}

#[derive(Serialize, ToSchema)]
pub struct NativeEmbeddings(Vec<NativeEmbedding>);

/// One vector, or one for each token when the server does not pool them.
#[derive(Serialize, ToSchema)]
pub struct NativeEmbedding {
    index: u64,
    embedding: Vec<Vec<f64>>,
}
