//! Anthropic's Messages API.

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

#[derive(Serialize, ToSchema)]
pub struct AnthropicMessage {
    id: String,
    /// `message`
    r#type: String,
    /// `assistant`
    role: String,
    model: String,
    content: Vec<AnswerBlock>,
    #[schema(required)]
    stop_reason: Option<StopReason>,
    #[schema(required)]
    stop_sequence: Option<String>,
    usage: AnthropicUsage,
}

/// `thinking`, `text` or `tool_use`.
#[derive(Serialize, ToSchema)]
pub struct AnswerBlock {
    r#type: String,
    text: Option<String>,
    thinking: Option<String>,
    signature: Option<String>,
    id: Option<String>,
    name: Option<String>,
    #[schema(value_type = Option<Object>)]
    input: Option<Value>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    EndTurn,
    MaxTokens,
    StopSequence,
    ToolUse,
}

/// Cached tokens are not part of the input's.
#[derive(Serialize, ToSchema)]
pub struct AnthropicUsage {
    input_tokens: u64,
    cache_creation_input_tokens: u64,
    cache_read_input_tokens: u64,
    output_tokens: u64,
    output_tokens_details: AnthropicOutputDetails,
}

#[derive(Serialize, ToSchema)]
pub struct AnthropicOutputDetails {
    thinking_tokens: u64,
}

/// The data of one event; its name is `type`.
#[derive(Serialize, ToSchema)]
pub struct AnthropicEvent {
    r#type: String,
    message: Option<AnthropicMessage>,
    index: Option<u64>,
    content_block: Option<AnswerBlock>,
    delta: Option<AnthropicDelta>,
    usage: Option<AnthropicUsage>,
}

#[derive(Serialize, ToSchema)]
pub struct AnthropicDelta {
    r#type: Option<String>,
    text: Option<String>,
    thinking: Option<String>,
    signature: Option<String>,
    partial_json: Option<String>,
    stop_reason: Option<StopReason>,
    stop_sequence: Option<String>,
}

#[derive(Serialize, ToSchema)]
pub struct TokenCount {
    input_tokens: u64,
}
