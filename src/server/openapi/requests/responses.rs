//! The Responses API.

use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::chat::ChatOptions;

#[derive(Deserialize, ToSchema)]
pub struct ResponsesRequest {
    input: ResponsesInput,
    instructions: Option<String>,
    #[schema(minimum = 0)]
    max_output_tokens: Option<i64>,
    /// Those that are no functions are left out.
    tools: Option<Vec<ResponsesTool>>,
    /// `auto`, `none`, `required`, or an object that names a function or the allowed ones.
    tool_choice: Option<ResponsesToolChoice>,
    text: Option<ResponsesText>,
    reasoning: Option<ResponsesReasoning>,
    include: Option<Vec<String>>,
    #[serde(flatten)]
    options: ChatOptions,
}

#[derive(Deserialize, ToSchema)]
#[serde(untagged)]
pub enum ResponsesInput {
    Text(String),
    Items(Vec<ResponsesItem>),
}

/// A message, `function_call`, `function_call_output` or `reasoning`.
#[derive(Deserialize, ToSchema)]
pub struct ResponsesItem {
    r#type: Option<String>,
    role: Option<String>,
    /// Text, or parts with text.
    content: Option<Value>,
    call_id: Option<String>,
    name: Option<String>,
    arguments: Option<String>,
    output: Option<Value>,
}

#[derive(Deserialize, ToSchema)]
pub struct ResponsesTool {
    r#type: String,
    name: Option<String>,
    description: Option<String>,
    #[schema(value_type = Option<Object>)]
    parameters: Option<Value>,
}

#[derive(Deserialize, ToSchema)]
#[serde(untagged)]
pub enum ResponsesToolChoice {
    Word(super::chat::ToolChoiceWord),
    #[schema(value_type = Object)]
    Object(Value),
}

#[derive(Deserialize, ToSchema)]
pub struct ResponsesText {
    format: Option<ResponsesFormat>,
    verbosity: Option<String>,
}

#[derive(Deserialize, ToSchema)]
pub struct ResponsesFormat {
    r#type: super::generation::FormatType,
    name: Option<String>,
    schema: Option<Value>,
}

#[derive(Deserialize, ToSchema)]
pub struct ResponsesReasoning {
    effort: Option<String>,
}
