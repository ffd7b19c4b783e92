//! Anthropic's Messages API.

use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::chat::ChatOptions;

#[derive(Deserialize, ToSchema)]
pub struct MessagesRequest {
    messages: Vec<MessagesMessage>,
    system: Option<MessagesSystem>,
    #[schema(minimum = 0)]
    max_tokens: Option<i64>,
    stop_sequences: Option<Vec<String>>,
    tools: Option<Vec<MessagesTool>>,
    tool_choice: Option<MessagesToolChoice>,
    thinking: Option<MessagesThinking>,
    output_config: Option<MessagesOutput>,
    #[serde(flatten)]
    options: ChatOptions,
}

#[derive(Deserialize, ToSchema)]
pub struct MessagesMessage {
    role: MessagesRole,
    /// Text, or blocks: `text`, `tool_use`, `tool_result`, `thinking`.
    content: MessagesContent,
}

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum MessagesRole {
    User,
    Assistant,
    System,
}

#[derive(Deserialize, ToSchema)]
#[serde(untagged)]
pub enum MessagesContent {
    Text(String),
    Blocks(Vec<MessagesBlock>),
}

#[derive(Deserialize, ToSchema)]
#[serde(untagged)]
pub enum MessagesSystem {
    Text(String),
    Blocks(Vec<MessagesBlock>),
}

#[derive(Deserialize, ToSchema)]
pub struct MessagesBlock {
    r#type: String,
    text: Option<String>,
    thinking: Option<String>,
    id: Option<String>,
    name: Option<String>,
    input: Option<Value>,
    tool_use_id: Option<String>,
    content: Option<Value>,
}

#[derive(Deserialize, ToSchema)]
pub struct MessagesTool {
    name: String,
    description: Option<String>,
    #[schema(value_type = Option<Object>)]
    input_schema: Option<Value>,
}

#[derive(Deserialize, ToSchema)]
pub struct MessagesToolChoice {
    r#type: MessagesChoiceType,
    name: Option<String>,
    disable_parallel_tool_use: Option<bool>,
}

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum MessagesChoiceType {
    Auto,
    Any,
    Tool,
    None,
}

#[derive(Deserialize, ToSchema)]
pub struct MessagesThinking {
    r#type: MessagesThinkingType,
    #[schema(minimum = 0)]
    budget_tokens: Option<i64>,
}

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum MessagesThinkingType {
    Enabled,
    Adaptive,
    Disabled,
}

#[derive(Deserialize, ToSchema)]
pub struct MessagesOutput {
    effort: Option<String>,
    #[schema(value_type = Option<Object>)]
    format: Option<Value>,
}
