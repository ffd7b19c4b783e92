//! Texts to be continued, filled in, or embedded.

use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::generation::{Constraints, Generation, Later, Limits};

#[derive(Deserialize, ToSchema)]
pub struct CompletionRequest {
    prompt: Prompts,
    /// Text behind the place that is to be filled; needs a model with tokens for that.
    suffix: Option<String>,
    /// The answer begins with the prompt.
    echo: Option<bool>,
    logprobs: Option<Logprobs>,
    /// At most `n`.
    best_of: Option<i64>,
    #[serde(flatten)]
    generation: Generation,
    #[serde(flatten)]
    limits: Limits,
    #[serde(flatten)]
    constraints: Constraints,
    #[serde(flatten)]
    later: Later,
}

#[derive(Deserialize, ToSchema)]
pub struct NativeRequest {
    prompt: Prompts,
    #[serde(flatten)]
    native: Native,
}

#[derive(Deserialize, ToSchema)]
pub struct InfillRequest {
    input_prefix: OnePrompt,
    input_suffix: OnePrompt,
    /// Goes on behind the prefix.
    prompt: Option<String>,
    input_extra: Option<Vec<ExtraFile>>,
    #[serde(flatten)]
    native: Native,
}

#[derive(Deserialize, ToSchema)]
pub struct Native {
    #[serde(flatten)]
    generation: Generation,
    #[serde(flatten)]
    limits: Limits,
    #[serde(flatten)]
    constraints: Constraints,
    #[serde(flatten)]
    later: Later,
    return_tokens: Option<bool>,
    /// Paths of the reply's fields that are wanted, such as `timings/predicted_ms`.
    response_fields: Option<Vec<String>>,
}

#[derive(Deserialize, ToSchema)]
pub struct ExtraFile {
    text: String,
    filename: Option<String>,
}

#[derive(Deserialize, ToSchema)]
pub struct EmbeddingRequest {
    /// llama-server's other name for it is `content`.
    input: Prompts,
    encoding_format: Option<EncodingFormat>,
    #[schema(minimum = 1)]
    dimensions: Option<i64>,
    /// -1 not at all, 0 by the largest, otherwise the p of the norm.
    embd_normalize: Option<i64>,
}

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum EncodingFormat {
    Float,
    Base64,
}

/// A text; a row of token ids and texts, which is one prompt if it has ids; or an array of prompts.
#[derive(Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Prompts {
    Text(String),
    Many(Vec<Value>),
    Object(PromptObject),
}

/// A text, or a row of token ids and texts.
#[derive(Deserialize, ToSchema)]
#[serde(untagged)]
pub enum OnePrompt {
    Text(String),
    Row(Vec<Value>),
    Object(PromptObject),
}

#[derive(Deserialize, ToSchema)]
pub struct PromptObject {
    prompt_string: String,
}

/// A number of alternatives; true is 1.
#[derive(Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Logprobs {
    Bool(bool),
    Number(i64),
}
