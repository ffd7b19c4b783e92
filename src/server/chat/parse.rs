//! From the text of an answer to content, reasoning and tool calls, as it grows.
//!
//! The parsing is llama.cpp's. It reads the whole text each time, so it is called only where the text may mean something
//! else than plain content, and ever more rarely as the text grows. What has been sent stays sent; what the parser cannot
//! read comes as content.

use futures_util::StreamExt;
use serde_json::Value;

use super::{CallDelta, CallHead, ChatStep, ChatSteps, Delta, End, Finish};
use crate::{
    engine::{FinishReason, Piece, Report},
    llama::ChatParser,
    server::{
        error::ApiError,
        generation::{Step, Steps},
        openai::random_id,
    },
};

/// Text of up to this many bytes is parsed at each piece; beyond it, when it has grown by a `GROWTH`-th part.
const SHORT: usize = 2048;
const GROWTH: usize = 64;

/// How answers to one prompt are parsed.
#[derive(Debug, Clone)]
pub enum ParserSpec {
    /// Everything is content.
    Content,
    /// By llama.cpp, with the parameters that it gave when it rendered the prompt.
    Common(String),
    /// The answer is one call `{"name", "arguments"}`, or an array of them.
    ForcedCalls,
}

impl ParserSpec {
    /// A parser for each answer.
    pub fn attach(&self, steps: Steps) -> Result<ChatSteps, ApiError> {
        let mut parser = AnswerParser::new(self)?;
        Ok(Box::pin(steps.flat_map(move |step| {
            let steps: Vec<Result<ChatStep, ApiError>> = match step {
                Ok(Step::Piece(piece)) => {
                    parser.push(piece).into_iter().map(|delta| Ok(ChatStep::Delta(delta))).collect()
                }
                Ok(Step::Done(report)) => {
                    let (last, end) = parser.finish(report);
                    last.map(ChatStep::Delta).into_iter().chain([ChatStep::Done(end)]).map(Ok).collect()
                }
                Err(error) => vec![Err(error)],
            };
            futures_util::stream::iter(steps)
        })))
    }
}

enum Kind {
    Content,
    Common(ChatParser),
    ForcedCalls,
}

/// Turns the pieces of one answer into deltas.
struct AnswerParser {
    kind: Kind,
    /// The answer so far.
    text: String,
    /// How much of it the last parse saw.
    n_parsed: usize,
    /// At the last parse, all of the text was accounted for as content.
    is_plain: bool,
    /// Bytes sent of each part.
    n_reasoning_sent: usize,
    n_content_sent: usize,
    calls: Vec<SentCall>,
    /// Content that the prompt began already.
    n_content_given: usize,
    n_reasoning_given: usize,
    /// Tokens and log-probabilities of text that has not led to a delta.
    waiting: Delta,
    n_reasoning_tokens: usize,
}

struct SentCall {
    n_arguments_sent: usize,
}

/// What the parser makes of the text.
struct Parsed {
    reasoning: String,
    content: String,
    /// Name and arguments of each call.
    calls: Vec<(String, String)>,
}

impl AnswerParser {
    fn new(spec: &ParserSpec) -> Result<Self, ApiError> {
        let kind = match spec {
            ParserSpec::Content => Kind::Content,
            ParserSpec::ForcedCalls => Kind::ForcedCalls,
            ParserSpec::Common(params) => {
                let parser = ChatParser::new(params);
                Kind::Common(parser.map_err(|error| ApiError::internal(format!("internal error: no parser: {error}")))?)
            }
        };
        let mut this = Self {
            kind,
            text: String::new(),
            n_parsed: 0,
            is_plain: false,
            n_reasoning_sent: 0,
            n_content_sent: 0,
            calls: Vec::new(),
            n_content_given: 0,
            n_reasoning_given: 0,
            waiting: Delta::default(),
            n_reasoning_tokens: 0,
        };
        // A turn that the client began is part of what the parser sees, not of the answer.
        if let Some(given) = this.parse(true) {
            this.n_reasoning_given = given.reasoning.len();
            this.n_content_given = given.content.len();
        }
        Ok(this)
    }

    fn push(&mut self, piece: Piece) -> Option<Delta> {
        self.waiting.tokens.extend(piece.tokens);
        self.waiting.logprobs.extend(piece.logprobs);
        match self.kind {
            Kind::Content => return self.delta(String::new(), piece.text, Vec::new()),
            Kind::ForcedCalls => {
                self.text.push_str(&piece.text);
                return None;
            }
            Kind::Common(_) => {}
        }
        self.text.push_str(&piece.text);
        if self.is_plain && is_harmless(&piece.text) {
            self.n_parsed = self.text.len();
            self.n_content_sent += piece.text.len();
            return self.delta(String::new(), piece.text, Vec::new());
        }
        let n_new = self.text.len() - self.n_parsed;
        if n_new == 0 || self.text.len() > SHORT && n_new < self.text.len() / GROWTH {
            return None;
        }
        let parsed = self.parse(true)?;
        self.send(&parsed)
    }

    /// The rest, and the end.
    fn finish(&mut self, report: Report) -> (Option<Delta>, End) {
        let is_cut = matches!(report.finish, FinishReason::MaxTokens | FinishReason::ContextFull);
        let last = match self.kind {
            Kind::Content => self.delta(String::new(), String::new(), Vec::new()),
            Kind::ForcedCalls => self.forced_calls(),
            // A message that is cut is no more than a part of one.
            Kind::Common(_) => match self.parse(is_cut) {
                Some(parsed) => self.send(&parsed),
                None => self.unreadable(),
            },
        };
        let finish = Finish::new(&report.finish, !self.calls.is_empty());
        (last, End { finish, report, n_reasoning: self.n_reasoning_tokens })
    }

    fn parse(&mut self, is_partial: bool) -> Option<Parsed> {
        let Kind::Common(parser) = &mut self.kind else { return None };
        self.n_parsed = self.text.len();
        self.is_plain = false;
        let reply: Value = serde_json::from_str(&parser.parse(&self.text, is_partial).ok()?).ok()?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let parsed = Parsed {
            reasoning: text(&reply["reasoning_content"]),
            content: text(&reply["content"]),
            calls: reply["tool_calls"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|call| (text(&call["name"]), text(&call["arguments"])))
                .collect(),
        };
        let n_content = parsed.content.len().saturating_sub(self.n_content_given);
        self.is_plain = parsed.calls.is_empty()
            && n_content > 0
            && self.text.ends_with(&parsed.content[self.n_content_given.min(parsed.content.len())..]);
        Some(parsed)
    }

    /// What is new in the parsed message.
    fn send(&mut self, parsed: &Parsed) -> Option<Delta> {
        let reasoning = beyond(&parsed.reasoning, self.n_reasoning_given + self.n_reasoning_sent);
        let content = beyond(&parsed.content, self.n_content_given + self.n_content_sent);
        self.n_reasoning_sent += reasoning.len();
        self.n_content_sent += content.len();
        let mut calls = Vec::new();
        for (index, (name, arguments)) in parsed.calls.iter().enumerate() {
            let is_new = index >= self.calls.len();
            if is_new && name.is_empty() {
                break;
            }
            if is_new {
                self.calls.push(SentCall { n_arguments_sent: 0 });
            }
            let sent = &mut self.calls[index];
            let arguments = beyond(arguments, sent.n_arguments_sent);
            sent.n_arguments_sent += arguments.len();
            if is_new || !arguments.is_empty() {
                let head = is_new.then(|| CallHead { id: call_id(), name: name.clone() });
                calls.push(CallDelta { index, head, arguments });
            }
        }
        self.delta(reasoning, content, calls)
    }

    /// The answer has ended and the parser cannot read it: what was not sent is content.
    fn unreadable(&mut self) -> Option<Delta> {
        tracing::debug!("the chat parser cannot read the answer; it is sent as content");
        let is_untouched = self.n_reasoning_sent == 0 && self.calls.is_empty();
        let rest = if is_untouched { beyond(&self.text, self.n_content_sent) } else { String::new() };
        self.delta(String::new(), rest, Vec::new())
    }

    fn forced_calls(&mut self) -> Option<Delta> {
        let calls = match serde_json::from_str(&self.text) {
            Ok(Value::Array(calls)) => calls,
            Ok(call) => vec![call],
            // Cut by the token limit.
            Err(_) => {
                let text = std::mem::take(&mut self.text);
                return self.delta(String::new(), text, Vec::new());
            }
        };
        let calls: Vec<CallDelta> = calls
            .iter()
            .enumerate()
            .map(|(index, call)| {
                let name = call["name"].as_str().unwrap_or_default().to_owned();
                let head = Some(CallHead { id: call_id(), name });
                CallDelta { index, head, arguments: call["arguments"].to_string() }
            })
            .collect();
        self.calls.extend(calls.iter().map(|_| SentCall { n_arguments_sent: 0 }));
        self.delta(String::new(), String::new(), calls)
    }

    /// A delta with the tokens that led to it; `None` when it has nothing to show.
    fn delta(&mut self, reasoning: String, content: String, calls: Vec<CallDelta>) -> Option<Delta> {
        let is_empty = reasoning.is_empty() && content.is_empty() && calls.is_empty();
        if is_empty && self.waiting.tokens.is_empty() && self.waiting.logprobs.is_empty() {
            return None;
        }
        if is_empty && self.waiting.logprobs.is_empty() && matches!(self.kind, Kind::Common(_)) {
            // Markers; their tokens go with the next text.
            return None;
        }
        let waiting = std::mem::take(&mut self.waiting);
        if !reasoning.is_empty() {
            self.n_reasoning_tokens += waiting.tokens.len();
        }
        Some(Delta { reasoning, content, calls, ..waiting })
    }
}

/// Text that no format takes for the beginning of a marker, and that does not end in space that a parser would trim.
fn is_harmless(text: &str) -> bool {
    let is_word =
        |c: char| c.is_alphanumeric() || matches!(c, ' ' | '.' | ',' | ';' | '!' | '?' | '\'' | '(' | ')' | '-');
    !text.ends_with(' ') && text.chars().all(is_word)
}

/// What of `text` lies beyond its first `n` bytes.
fn beyond(text: &str, n: usize) -> String {
    text.get(n..).unwrap_or_default().to_owned()
}

fn call_id() -> String {
    format!("call_{}", &random_id()[..24])
}
