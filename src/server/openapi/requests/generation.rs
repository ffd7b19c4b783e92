//! What all requests for text have in common. Defaults are those of the start's flags.

use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

/// Fields of every generation, llama-server's names among them.
#[derive(Deserialize, ToSchema)]
pub struct Generation {
    /// Any name; the one model that is served answers.
    model: Option<String>,
    /// Server-sent events instead of one body.
    stream: Option<bool>,
    /// `timings` in every chunk.
    timings_per_token: Option<bool>,
    /// Chunks of a stream that tell how far the prompt is.
    return_progress: Option<bool>,
    /// 0 is greedy; negative numbers count as 0.
    temperature: Option<f32>,
    /// 0 keeps all tokens.
    top_k: Option<i64>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    typical_p: Option<f32>,
    #[schema(exclusive_minimum = 0)]
    repeat_penalty: Option<f32>,
    #[schema(minimum = 0)]
    repeat_last_n: Option<i64>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    /// -1 draws one.
    seed: Option<i64>,
    stop: Option<Stop>,
    ignore_eos: Option<bool>,
    logit_bias: Option<LogitBias>,
    /// GBNF, as llama.cpp has it.
    grammar: Option<String>,
    /// Continue from the beginning of the prompt that is still in a slot.
    cache_prompt: Option<bool>,
    /// -1 for any.
    #[schema(minimum = -1)]
    id_slot: Option<i64>,
    /// Log-probabilities of so many alternatives.
    #[schema(minimum = 0, maximum = 100)]
    n_probs: Option<i64>,
}

/// What the Responses and Messages APIs say otherwise, or do not have.
#[derive(Deserialize, ToSchema)]
pub struct Limits {
    stream_options: Option<StreamOptions>,
    /// Stronger than `max_completion_tokens`, which is stronger than `max_tokens`.
    #[schema(minimum = -1)]
    n_predict: Option<i64>,
    #[schema(minimum = -1)]
    max_tokens: Option<i64>,
    #[schema(minimum = -1)]
    max_completion_tokens: Option<i64>,
    #[schema(minimum = 1, maximum = 128)]
    n: Option<i64>,
    #[schema(minimum = 1, maximum = 128)]
    n_cmpl: Option<i64>,
}

/// What a text may have to follow.
#[derive(Deserialize, ToSchema)]
pub struct Constraints {
    response_format: Option<ResponseFormat>,
    /// Instead of `response_format`; `{}` is any JSON value.
    json_schema: Option<Value>,
}

/// Known, and only accepted as what they are when left out.
#[derive(Deserialize, ToSchema)]
pub struct Later {
    #[schema(maximum = 0)]
    top_n_sigma: Option<f32>,
    #[schema(maximum = 0)]
    xtc_probability: Option<f32>,
    #[schema(maximum = 0)]
    dynatemp_range: Option<f32>,
    #[schema(minimum = 0, maximum = 0)]
    mirostat: Option<i64>,
    #[schema(exclusive_maximum = 0)]
    adaptive_target: Option<f32>,
    #[schema(maximum = 0)]
    min_keep: Option<f32>,
    #[schema(maximum = 0)]
    dry_multiplier: Option<f32>,
    #[schema(maximum = 0)]
    n_indent: Option<f32>,
    #[schema(maximum = 0)]
    t_max_predict_ms: Option<f32>,
    #[schema(max_items = 0)]
    lora: Option<Vec<Value>>,
}

#[derive(Deserialize, ToSchema)]
pub struct StreamOptions {
    /// One more chunk at the end, with `usage`.
    include_usage: Option<bool>,
}

#[derive(Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Stop {
    One(String),
    Many(Vec<String>),
}

/// `{"token id or text": bias}`, or pairs of these; false is never.
#[derive(Deserialize, ToSchema)]
#[serde(untagged)]
pub enum LogitBias {
    #[schema(value_type = Object)]
    Object(Value),
    Pairs(Vec<Vec<Value>>),
}

#[derive(Deserialize, ToSchema)]
pub struct ResponseFormat {
    r#type: FormatType,
    json_schema: Option<JsonSchema>,
    /// With `json_object`.
    schema: Option<Value>,
}

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FormatType {
    Text,
    JsonObject,
    JsonSchema,
}

#[derive(Deserialize, ToSchema)]
pub struct JsonSchema {
    name: Option<String>,
    strict: Option<bool>,
    schema: Option<Value>,
}
