//! The Responses API.

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::common::Timings;

/// Much of it repeats the request.
#[derive(Serialize, ToSchema)]
pub struct Response {
    id: String,
    /// `response`
    object: String,
    created_at: u64,
    #[schema(required)]
    completed_at: Option<u64>,
    status: ResponseStatus,
    model: String,
    output: Vec<OutputItem>,
    #[schema(required)]
    usage: Option<ResponseUsage>,
    #[schema(required)]
    error: Option<ResponseError>,
    #[schema(required)]
    incomplete_details: Option<IncompleteDetails>,
    timings: Option<Timings>,
    background: bool,
    instructions: Option<Value>,
    max_output_tokens: Option<i64>,
    max_tool_calls: Option<Value>,
    metadata: Option<Value>,
    parallel_tool_calls: Value,
    previous_response_id: Option<String>,
    reasoning: Option<Value>,
    service_tier: String,
    store: bool,
    temperature: f64,
    text: Value,
    tool_choice: Value,
    #[schema(value_type = Vec<Object>)]
    tools: Vec<Value>,
    top_logprobs: u64,
    top_p: f64,
    truncation: String,
    user: Option<Value>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ResponseStatus {
    InProgress,
    Completed,
    Incomplete,
    Failed,
}

/// A `reasoning`, a `message` or a `function_call`.
#[derive(Serialize, ToSchema)]
pub struct OutputItem {
    r#type: String,
    id: String,
    status: String,
    role: Option<String>,
    content: Option<Vec<OutputPart>>,
    #[schema(value_type = Option<Vec<Object>>)]
    summary: Option<Vec<Value>>,
    call_id: Option<String>,
    name: Option<String>,
    arguments: Option<String>,
}

#[derive(Serialize, ToSchema)]
pub struct OutputPart {
    r#type: String,
    text: String,
    #[schema(value_type = Option<Vec<Object>>)]
    annotations: Option<Vec<Value>>,
    #[schema(value_type = Option<Vec<Object>>)]
    logprobs: Option<Vec<Value>>,
}

#[derive(Serialize, ToSchema)]
pub struct ResponseUsage {
    input_tokens: u64,
    input_tokens_details: InputDetails,
    output_tokens: u64,
    output_tokens_details: OutputDetails,
    total_tokens: u64,
}

#[derive(Serialize, ToSchema)]
pub struct InputDetails {
    cached_tokens: u64,
    cache_write_tokens: u64,
}

#[derive(Serialize, ToSchema)]
pub struct OutputDetails {
    reasoning_tokens: u64,
}

#[derive(Serialize, ToSchema)]
pub struct ResponseError {
    code: String,
    message: String,
}

#[derive(Serialize, ToSchema)]
pub struct IncompleteDetails {
    reason: String,
}

/// The data of one event; its name is `type`.
#[derive(Serialize, ToSchema)]
pub struct ResponseEvent {
    r#type: String,
    sequence_number: u64,
    response: Option<Response>,
    output_index: Option<u64>,
    content_index: Option<u64>,
    item_id: Option<String>,
    item: Option<OutputItem>,
    part: Option<OutputPart>,
    delta: Option<String>,
    text: Option<String>,
    name: Option<String>,
    arguments: Option<String>,
    #[schema(value_type = Option<Vec<Object>>)]
    logprobs: Option<Vec<Value>>,
    timings: Option<Timings>,
}

#[derive(Serialize, ToSchema)]
pub struct InputTokens {
    /// `response.input_tokens`
    object: String,
    input_tokens: u64,
}
