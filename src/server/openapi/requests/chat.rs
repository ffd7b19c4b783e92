//! Chats in OpenAI's form.

use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::generation::{Constraints, Generation, Later, Limits};

#[derive(Deserialize, ToSchema)]
pub struct ChatRequest {
    messages: Vec<ChatMessage>,
    tools: Option<Vec<ChatTool>>,
    tool_choice: Option<ChatToolChoice>,
    #[serde(flatten)]
    options: ChatOptions,
    #[serde(flatten)]
    limits: Limits,
    logprobs: Option<bool>,
    /// Needs `logprobs`.
    #[schema(minimum = 0, maximum = 100)]
    top_logprobs: Option<i64>,
}

/// What other APIs of chat have too.
#[derive(Deserialize, ToSchema)]
pub struct ChatOptions {
    #[serde(flatten)]
    generation: Generation,
    #[serde(flatten)]
    constraints: Constraints,
    #[serde(flatten)]
    later: Later,
    parallel_tool_calls: Option<bool>,
    /// `none` switches thoughts off; other words go to the template.
    reasoning_effort: Option<String>,
    /// Where thoughts go: `none` leaves them in the content.
    reasoning_format: Option<ReasoningFormat>,
    /// Variables of the template. `enable_thinking` is true or false.
    #[schema(value_type = Option<Object>)]
    chat_template_kwargs: Option<Value>,
    add_generation_prompt: Option<bool>,
    continue_final_message: Option<Continue>,
    parse_tool_calls: Option<bool>,
    /// The answer begins with the assistant's message that it continues.
    echo: Option<bool>,
    /// Other values than -1 are not supported yet.
    #[schema(minimum = -1, maximum = -1)]
    reasoning_budget_tokens: Option<i64>,
    #[schema(minimum = -1, maximum = -1)]
    thinking_budget_tokens: Option<i64>,
}

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ReasoningFormat {
    None,
    Auto,
    Deepseek,
    DeepseekLegacy,
}

/// Whether an assistant's message at the end is continued.
#[derive(Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Continue {
    Bool(bool),
    Part(ContinuePart),
}

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ContinuePart {
    Content,
    ReasoningContent,
}

#[derive(Deserialize, ToSchema)]
pub struct ChatMessage {
    role: ChatRole,
    content: Option<ChatContent>,
    reasoning_content: Option<String>,
    name: Option<String>,
    tool_calls: Option<Vec<ChatCall>>,
    /// Of a tool's message.
    tool_call_id: Option<String>,
}

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ChatRole {
    System,
    Developer,
    User,
    Assistant,
    Tool,
}

#[derive(Deserialize, ToSchema)]
#[serde(untagged)]
pub enum ChatContent {
    Text(String),
    Parts(Vec<TextPart>),
}

#[derive(Deserialize, ToSchema)]
pub struct TextPart {
    r#type: TextType,
    text: String,
}

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum TextType {
    Text,
}

#[derive(Deserialize, ToSchema)]
pub struct ChatCall {
    id: Option<String>,
    r#type: Option<FunctionType>,
    function: ChatCallFunction,
}

#[derive(Deserialize, ToSchema)]
pub struct ChatCallFunction {
    name: String,
    /// A JSON text.
    arguments: String,
}

#[derive(Deserialize, ToSchema)]
pub struct ChatTool {
    r#type: Option<FunctionType>,
    function: ChatFunction,
}

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum FunctionType {
    Function,
}

#[derive(Deserialize, ToSchema)]
pub struct ChatFunction {
    #[schema(min_length = 1)]
    name: String,
    description: Option<String>,
    /// A JSON schema.
    #[schema(value_type = Option<Object>)]
    parameters: Option<Value>,
}

#[derive(Deserialize, ToSchema)]
#[serde(untagged)]
pub enum ChatToolChoice {
    Word(ToolChoiceWord),
    Named(ChatNamedTool),
}

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ToolChoiceWord {
    Auto,
    None,
    Required,
}

#[derive(Deserialize, ToSchema)]
pub struct ChatNamedTool {
    r#type: Option<FunctionType>,
    function: ToolName,
}

#[derive(Deserialize, ToSchema)]
pub struct ToolName {
    name: String,
}
