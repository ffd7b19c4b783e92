//! `POST /v1/chat/completions`.

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    later,
    logprobs::ChatLogprobs,
    messages,
    params::Params,
    wire::{Body, Head, Timings, Totals, Usage},
};
use crate::{
    engine::{Report, TokenLogprob},
    server::{
        chat::{self, CallDelta, ChatCall, ChatStep, Delta, End, Finish, Message, ToolChoice},
        error::ApiError,
        extract::{ApiJson, Object},
        fields::{Fields, wrong},
        reply::{self, Writer},
        sse::{self, Frame},
        state::{AppState, Backend},
    },
};

/// The handler.
pub async fn create(State(state): State<AppState>, ApiJson(body): ApiJson<Object>) -> Result<Response, ApiError> {
    let call = read(&Fields::root(&body), &state)?;
    let Params { stream, include_usage, .. } = call.params;
    let keep_alive = call.params.keep_alive(state.config().keep_alive);
    let has_logprobs = call.params.top_logprobs().is_some();
    let backend = state.backend()?.clone();
    let answers = chat::start(&state, call).await?;
    if stream {
        let head = Head::new(&state, "chatcmpl-", "chat.completion.chunk")?;
        let ended = Vec::new();
        let writer = ChatWriter { head, backend, n: answers.len(), include_usage, has_logprobs, ended };
        return Ok(reply::stream(writer, answers, keep_alive));
    }
    let head = Head::new(&state, "chatcmpl-", "chat.completion")?;
    let (mut choices, mut ends) = (Vec::new(), Vec::new());
    for (index, steps) in answers.into_iter().enumerate() {
        let (message, end) = chat::collect(steps).await?;
        choices.push(choice(&backend, index, message, &end.finish, has_logprobs));
        ends.push(end);
    }
    Ok(ApiJson(Body::last(&head, choices, totals(&ends))).into_response())
}

/// How many tokens the prompt of a request would have; OpenAI has this for its Responses API only.
pub async fn count_input(State(state): State<AppState>, ApiJson(body): ApiJson<Object>) -> Result<Response, ApiError> {
    let call = read(&Fields::root(&body), &state)?;
    let n_tokens = chat::count(&state, call).await?;
    Ok(ApiJson(json!({"object": "response.input_tokens", "input_tokens": n_tokens})).into_response())
}

/// The request's fields.
pub fn read(fields: &Fields, state: &AppState) -> Result<ChatCall, ApiError> {
    let mut params = Params::read(fields, &state.config().defaults)?;
    later::refuse_in_chat(fields)?;
    read_logprobs(fields, &mut params)?;
    let messages = messages::read(fields)?;
    let tools = chat::read_tools(fields)?;
    let tool_choice = chat::read_tool_choice(fields, &tools)?;
    let schema = chat::read_format(fields)?;
    let has_tools = !tools.is_empty() && tool_choice != ToolChoice::None;
    if has_tools && params.has_grammar() {
        return Err(ApiError::field("grammar", "cannot be used together with tools"));
    }
    if schema.is_some() && params.has_grammar() {
        return Err(ApiError::field("grammar", "cannot be used together with a JSON schema; leave out one of them"));
    }
    let mut call = ChatCall {
        tools,
        tool_choice,
        parallel_tool_calls: fields.bool("parallel_tool_calls")?,
        schema,
        reasoning_format: reasoning_format(fields)?,
        add_generation_prompt: fields.bool("add_generation_prompt")?,
        continue_final_message: continuation(fields)?,
        parse_tool_calls: fields.bool("parse_tool_calls")?.unwrap_or(true),
        echo: fields.bool("echo")?.unwrap_or(false),
        ..ChatCall::new(messages, params)
    };
    read_template_variables(fields, &mut call)?;
    Ok(call)
}

/// `logprobs` says whether, `top_logprobs` how many alternatives.
fn read_logprobs(fields: &Fields, params: &mut Params) -> Result<(), ApiError> {
    let top = fields.integer("top_logprobs")?;
    if top.is_some_and(|n| n < 0) {
        return Err(ApiError::field("top_logprobs", "must not be negative"));
    }
    match (fields.bool("logprobs")?.unwrap_or(false), top) {
        (true, top) => params.set_top_logprobs("top_logprobs", top.unwrap_or(0))?,
        (false, Some(1..)) => return Err(ApiError::field("top_logprobs", "needs `logprobs` to be true")),
        (false, _) => {}
    }
    Ok(())
}

fn reasoning_format(fields: &Fields) -> Result<Option<String>, ApiError> {
    match fields.string("reasoning_format")? {
        None => Ok(None),
        Some(name @ ("none" | "auto" | "deepseek" | "deepseek-legacy")) => Ok(Some(name.to_owned())),
        Some(other) => {
            let problem = format_args!(
                "unknown value {other:?}; known are \"none\", \"auto\", \"deepseek\", \"deepseek-legacy\""
            );
            Err(ApiError::field("reasoning_format", problem))
        }
    }
}

/// `true`, `"content"` and `"reasoning_content"` continue; both this and a generation prompt cannot be.
fn continuation(fields: &Fields) -> Result<Option<Value>, ApiError> {
    let value = match fields.get("continue_final_message") {
        None => return Ok(None),
        Some(value @ Value::Bool(_)) => value,
        Some(value @ Value::String(what)) if what == "content" || what == "reasoning_content" => value,
        Some(Value::String(_)) => {
            let problem = "expected a boolean, \"content\" or \"reasoning_content\"";
            return Err(ApiError::field("continue_final_message", problem));
        }
        Some(other) => return Err(wrong("continue_final_message".into(), "a boolean or a string", other)),
    };
    if value != &json!(false) && fields.bool("add_generation_prompt")? == Some(true) {
        return Err(ApiError::field("continue_final_message", "cannot be used together with `add_generation_prompt`"));
    }
    Ok(Some(value.clone()))
}

/// `chat_template_kwargs` and `reasoning_effort`.
fn read_template_variables(fields: &Fields, call: &mut ChatCall) -> Result<(), ApiError> {
    let mut variables = match fields.object("chat_template_kwargs")? {
        Some(kwargs) => {
            call.enable_thinking = kwargs.bool("enable_thinking")?;
            fields.get("chat_template_kwargs").cloned().unwrap_or_default()
        }
        None => json!({}),
    };
    match fields.string("reasoning_effort")? {
        Some("none") => call.enable_thinking = Some(false),
        Some(effort) => variables["reasoning_effort"] = json!(effort),
        None => {}
    }
    call.template_kwargs = Some(variables);
    Ok(())
}

#[derive(Serialize)]
struct Choice {
    index: usize,
    message: WireMessage,
    finish_reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<ChatLogprobs>,
}

#[derive(Serialize)]
struct WireMessage {
    role: &'static str,
    /// Null when there are calls and no text.
    content: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    reasoning_content: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<WireCall>,
}

#[derive(Serialize)]
struct WireCall {
    /// In streams.
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    r#type: Option<&'static str>,
    function: WireFunction,
}

#[derive(Serialize)]
struct WireFunction {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    arguments: String,
}

fn choice(backend: &Backend, index: usize, message: Message, finish: &Finish, has_logprobs: bool) -> Choice {
    let logprobs = ChatLogprobs::new(backend, &message.logprobs, has_logprobs);
    let tool_calls: Vec<WireCall> = message
        .calls
        .into_iter()
        .map(|call| WireCall {
            index: None,
            id: Some(call.id),
            r#type: Some("function"),
            function: WireFunction { name: Some(call.name), arguments: call.arguments },
        })
        .collect();
    let content = Some(message.content).filter(|text| !text.is_empty() || tool_calls.is_empty());
    let message = WireMessage { role: "assistant", content, reasoning_content: message.reasoning, tool_calls };
    Choice { index, message, finish_reason: finish_reason(finish), logprobs }
}

fn finish_reason(finish: &Finish) -> &'static str {
    match finish {
        Finish::Stop | Finish::StopString(_) => "stop",
        Finish::Length => "length",
        Finish::ToolCalls => "tool_calls",
    }
}

fn totals(ends: &[End]) -> Totals {
    let reports: Vec<&Report> = ends.iter().map(|end| &end.report).collect();
    Totals::of(&reports, ends.iter().map(|end| end.n_reasoning).sum())
}

struct ChatWriter {
    head: Head,
    backend: Backend,
    n: usize,
    include_usage: bool,
    has_logprobs: bool,
    ended: Vec<End>,
}

#[derive(Serialize)]
struct ChunkChoice {
    index: usize,
    delta: WireDelta,
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<ChatLogprobs>,
}

#[derive(Serialize, Default)]
struct WireDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    /// The first chunk has a content of null, later ones a text or none at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<Option<String>>,
    #[serde(skip_serializing_if = "String::is_empty")]
    reasoning_content: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<WireCall>,
}

impl ChatWriter {
    fn chunk(&self, index: usize, delta: WireDelta, logprobs: Option<ChatLogprobs>, finish: Option<&Finish>) -> Frame {
        let choice = ChunkChoice { index, delta, finish_reason: finish.map(finish_reason), logprobs };
        Frame::data(sse::json(&Body::chunk(&self.head, choice)))
    }

    /// Thoughts, content and calls in chunks of their own, as clients expect; log-probabilities go with the first.
    fn delta(&self, index: usize, delta: Delta) -> Vec<Frame> {
        let mut parts = Vec::new();
        if !delta.reasoning.is_empty() {
            parts.push(WireDelta { reasoning_content: delta.reasoning, ..WireDelta::default() });
        }
        if !delta.content.is_empty() {
            parts.push(WireDelta { content: Some(Some(delta.content)), ..WireDelta::default() });
        }
        parts.extend(
            delta.calls.into_iter().map(|call| WireDelta { tool_calls: vec![wire_call(call)], ..WireDelta::default() }),
        );
        let logprobs: &[TokenLogprob] = &delta.logprobs;
        if parts.is_empty() && !logprobs.is_empty() {
            parts.push(WireDelta { content: Some(Some(String::new())), ..WireDelta::default() });
        }
        let mut logprobs = ChatLogprobs::new(&self.backend, logprobs, self.has_logprobs && !logprobs.is_empty());
        parts.into_iter().map(|part| self.chunk(index, part, logprobs.take(), None)).collect()
    }
}

fn wire_call(call: CallDelta) -> WireCall {
    let (id, name) = call.head.map(|head| (head.id, head.name)).unzip();
    let r#type = id.is_some().then_some("function");
    WireCall { index: Some(call.index), id, r#type, function: WireFunction { name, arguments: call.arguments } }
}

impl Writer<ChatStep> for ChatWriter {
    fn opening(&mut self) -> Vec<Frame> {
        let first = || WireDelta { role: Some("assistant"), content: Some(None), ..WireDelta::default() };
        (0..self.n).map(|index| self.chunk(index, first(), None, None)).collect()
    }

    fn step(&mut self, index: usize, step: ChatStep) -> Vec<Frame> {
        match step {
            ChatStep::Progress(progress) => {
                let choice = ChunkChoice { index, delta: WireDelta::default(), finish_reason: None, logprobs: None };
                vec![Frame::data(sse::json(&Body::progress(&self.head, choice, progress)))]
            }
            ChatStep::Delta(delta) => self.delta(index, delta),
            ChatStep::Done(end) => {
                let is_last = self.ended.len() + 1 == self.n;
                let choice = ChunkChoice {
                    index,
                    delta: WireDelta::default(),
                    finish_reason: Some(finish_reason(&end.finish)),
                    logprobs: None,
                };
                let body = if is_last && !self.include_usage {
                    Body::last(&self.head, vec![choice], Totals::without_usage(&end.report))
                } else {
                    Body::chunk(&self.head, choice)
                };
                let frame = Frame::data(sse::json(&body));
                self.ended.push(end);
                vec![frame]
            }
        }
    }

    fn closing(&mut self) -> Vec<Frame> {
        let mut frames = Vec::new();
        if self.include_usage {
            let usage = Body::<ChunkChoice>::last(&self.head, Vec::new(), totals(&self.ended));
            frames.push(Frame::data(sse::json(&usage)));
        }
        frames.push(reply::done());
        frames
    }
}

/// Usage and timings of one answer, for other chat APIs.
pub fn usage(end: &End) -> (Usage, Timings) {
    (Usage::of(&[&end.report], end.n_reasoning), Timings::new(&end.report))
}
