//! Chats in OpenAI's form.

use serde::Serialize;
use utoipa::ToSchema;

use super::common::{Timings, TokenLogprob, Usage};

#[derive(Serialize, ToSchema)]
pub struct ChatCompletion {
    id: String,
    /// `chat.completion`
    object: String,
    created: u64,
    model: String,
    system_fingerprint: String,
    choices: Vec<ChatChoice>,
    usage: Usage,
    timings: Timings,
}

#[derive(Serialize, ToSchema)]
pub struct ChatChoice {
    index: u64,
    message: ChatAnswer,
    finish_reason: FinishReason,
    logprobs: Option<ChatLogprobs>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    Stop,
    Length,
    ToolCalls,
}

#[derive(Serialize, ToSchema)]
pub struct ChatAnswer {
    /// `assistant`
    role: String,
    /// Null beside tool calls without text.
    #[schema(required)]
    content: Option<String>,
    reasoning_content: Option<String>,
    tool_calls: Option<Vec<AnswerCall>>,
}

#[derive(Serialize, ToSchema)]
pub struct AnswerCall {
    id: String,
    /// `function`
    r#type: String,
    function: AnswerFunction,
}

#[derive(Serialize, ToSchema)]
pub struct AnswerFunction {
    name: String,
    /// A JSON text.
    arguments: String,
}

#[derive(Serialize, ToSchema)]
pub struct ChatLogprobs {
    content: Vec<TokenLogprob>,
}

/// The data of one event. `[DONE]` is the last one's.
#[derive(Serialize, ToSchema)]
pub struct ChatChunk {
    id: String,
    /// `chat.completion.chunk`
    object: String,
    created: u64,
    model: String,
    system_fingerprint: String,
    choices: Vec<ChunkChoice>,
    usage: Option<Usage>,
    timings: Option<Timings>,
}

#[derive(Serialize, ToSchema)]
pub struct ChunkChoice {
    index: u64,
    delta: ChatDelta,
    #[schema(required)]
    finish_reason: Option<FinishReason>,
    logprobs: Option<ChatLogprobs>,
}

#[derive(Serialize, ToSchema)]
pub struct ChatDelta {
    role: Option<String>,
    content: Option<String>,
    reasoning_content: Option<String>,
    tool_calls: Option<Vec<CallDelta>>,
}

/// Id, type and name come with the first piece of a call.
#[derive(Serialize, ToSchema)]
pub struct CallDelta {
    index: u64,
    id: Option<String>,
    r#type: Option<String>,
    function: FunctionDelta,
}

#[derive(Serialize, ToSchema)]
pub struct FunctionDelta {
    name: Option<String>,
    arguments: String,
}
