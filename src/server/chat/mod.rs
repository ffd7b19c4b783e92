//! Chat, whatever API it comes in by: a request in OpenAI's terms in, deltas of a message out.
//!
//! The endpoints read their own wire format into a [`ChatCall`] and write [`ChatStep`]s in their own wire format; what is
//! between is here. `call` is what goes in, `prepare` renders it and settles how the answer is constrained, `parse` turns
//! text into content, reasoning and tool calls, `schema` says which JSON schemas can be enforced (`combine` and `pattern`
//! help it), `force` makes an answer a tool call.

mod call;
mod combine;
mod force;
mod limits;
mod parse;
mod pattern;
mod prepare;
mod schema;

use std::pin::Pin;

use futures_core::Stream;
use futures_util::StreamExt;

use super::{
    error::ApiError,
    generation::{self, PromptTokens},
    state::AppState,
};
use crate::engine::{FinishReason, PromptProgress, Report, TokenLogprob};

pub use call::{
    ChatCall, ChatDefaults, Tool, ToolChoice, check_tool_choice, read_format, read_function, read_tool_choice,
    read_tools,
};
pub use prepare::{Prepared, prepare, render};
pub use schema::{check_schema, schema_grammar};

/// The steps of one answer, `Done` or an error last; dropping it ends the generation.
pub type ChatSteps = Pin<Box<dyn Stream<Item = Result<ChatStep, ApiError>> + Send>>;

/// One step of an answer.
#[derive(Debug)]
pub enum ChatStep {
    /// More of the prompt is evaluated; only when asked for, and before all deltas.
    Progress(PromptProgress),
    /// More of the message.
    Delta(Delta),
    /// The end.
    Done(End),
}

/// More of a message. Any part may be empty, but not all at once.
#[derive(Debug, Default)]
pub struct Delta {
    /// Of the thoughts, which come before the content.
    pub reasoning: String,
    /// Of the text.
    pub content: String,
    /// Of tool calls.
    pub calls: Vec<CallDelta>,
    /// Of the tokens behind this delta, when asked for.
    pub logprobs: Vec<TokenLogprob>,
    /// The tokens behind this delta.
    pub tokens: Vec<crate::llama::Token>,
}

/// More of a tool call.
#[derive(Clone, Debug, PartialEq)]
pub struct CallDelta {
    /// Which call of the message.
    pub index: usize,
    /// Id and name, with the first piece of a call only.
    pub head: Option<CallHead>,
    /// Of the arguments, a JSON text; may be empty.
    pub arguments: String,
}

/// What a tool call begins with.
#[derive(Clone, Debug, PartialEq)]
pub struct CallHead {
    /// Unique, `call_...`.
    pub id: String,
    /// One of the request's tools.
    pub name: String,
}

/// How an answer ended.
#[derive(Debug)]
pub struct End {
    /// Why.
    pub finish: Finish,
    /// Counts and times.
    pub report: Report,
    /// Tokens that went into thoughts.
    pub n_reasoning: usize,
}

/// Why an answer ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Finish {
    /// The model ended its turn.
    Stop,
    /// This stop string appeared.
    StopString(String),
    /// Out of tokens or context.
    Length,
    /// The model ended its turn with tool calls.
    ToolCalls,
}

impl Finish {
    fn new(reason: &FinishReason, has_calls: bool) -> Self {
        match reason {
            FinishReason::MaxTokens | FinishReason::ContextFull => Self::Length,
            _ if has_calls => Self::ToolCalls,
            FinishReason::StopString(stop) => Self::StopString(stop.clone()),
            FinishReason::EndOfText => Self::Stop,
        }
    }
}

/// A whole message.
#[derive(Debug, Default)]
pub struct Message {
    pub reasoning: String,
    pub content: String,
    pub calls: Vec<Call>,
    pub logprobs: Vec<TokenLogprob>,
    pub tokens: Vec<crate::llama::Token>,
}

/// A whole tool call.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    pub id: String,
    pub name: String,
    /// A JSON text.
    pub arguments: String,
}

impl Message {
    /// Adds a delta; a message is the sum of its deltas.
    pub fn add(&mut self, delta: Delta) {
        self.reasoning.push_str(&delta.reasoning);
        self.content.push_str(&delta.content);
        self.logprobs.extend(delta.logprobs);
        self.tokens.extend(delta.tokens);
        for call in delta.calls {
            if let Some(CallHead { id, name }) = call.head {
                self.calls.push(Call { id, name, arguments: String::new() });
            }
            if let Some(last) = self.calls.get_mut(call.index) {
                last.arguments.push_str(&call.arguments);
            }
        }
    }
}

/// Renders the prompt and starts `call.params.n` answers to it, as [`generation::start`] does.
///
/// # Errors
/// Whatever goes wrong up to then, so that it can still become the status of the reply.
pub async fn start(state: &AppState, call: ChatCall) -> Result<Vec<ChatSteps>, ApiError> {
    Ok(start_told(state, call).await?.0)
}

/// Like [`start`], for one answer; also tells how the prompt was taken in.
pub async fn start_one(state: &AppState, call: ChatCall) -> Result<(ChatSteps, PromptTokens), ApiError> {
    let (mut answers, prompt) = start_told(state, call).await?;
    let steps = answers.pop().ok_or_else(|| ApiError::internal("internal error: no answer was begun"))?;
    Ok((steps, prompt))
}

async fn start_told(state: &AppState, call: ChatCall) -> Result<(Vec<ChatSteps>, PromptTokens), ApiError> {
    let (n, is_streamed, echoed) = (call.params.n, call.params.stream, call.echoed());
    let Prepared { prompt, options, parser } = prepare_apart(state, call).await?;
    let (answers, tokens) = generation::start(state, prompt, options, n, is_streamed).await?;
    let parsed = |steps| -> Result<ChatSteps, ApiError> {
        let steps = parser.attach(steps)?;
        let Some(content) = echoed.clone() else { return Ok(steps) };
        let first = ChatStep::Delta(Delta { content, ..Delta::default() });
        Ok(Box::pin(futures_util::stream::iter([Ok(first)]).chain(steps)))
    };
    let answers = answers.into_iter().map(parsed).collect::<Result<_, _>>()?;
    Ok((answers, tokens))
}

/// How many tokens the prompt of a request has.
pub async fn count(state: &AppState, call: ChatCall) -> Result<usize, ApiError> {
    Ok(prepare_apart(state, call).await?.prompt.len())
}

async fn prepare_apart(state: &AppState, call: ChatCall) -> Result<Prepared, ApiError> {
    let call = call.or(&state.config().chat);
    let backend = state.backend()?.clone();
    super::state::blocking(move || prepare(&backend, call)).await
}

/// Reads an answer to its end.
pub async fn collect(mut steps: ChatSteps) -> Result<(Message, End), ApiError> {
    let mut message = Message::default();
    while let Some(step) = steps.next().await {
        match step? {
            ChatStep::Progress(_) => {}
            ChatStep::Delta(delta) => message.add(delta),
            ChatStep::Done(end) => return Ok((message, end)),
        }
    }
    Err(ApiError::internal("internal error: the answer has no end"))
}
