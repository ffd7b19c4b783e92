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
                Ok(Step::Progress(progress)) => vec![Ok(ChatStep::Progress(progress))],
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
                // Markers with nothing in them would be lost.
                Some(parsed) if self.has_more(&parsed) || self.text.trim().is_empty() => self.send(&parsed),
                _ => self.unreadable(),
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

    /// Whether there is anything in the message beside what the client began.
    fn has_more(&self, parsed: &Parsed) -> bool {
        !parsed.calls.is_empty()
            || parsed.content.len() > self.n_content_given
            || parsed.reasoning.len() > self.n_reasoning_given
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        engine::{ChatRequest, Engine, EngineConfig},
        llama::Token,
        server::{chat::Message, testing::report},
        testing::TinyModel,
    };

    const CALL: &str = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";

    /// The parser of a template, after a request with tools.
    fn spec(template: &str) -> ParserSpec {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tiny.gguf");
        TinyModel { chat_template: Some(template.to_owned()), ..TinyModel::llama() }.write(&path).unwrap();
        let engine = Engine::load(EngineConfig::new(&path)).unwrap();
        let properties = json!({"a": {"type": "integer"}});
        let parameters = json!({"type": "object", "properties": properties});
        let tools =
            json!([{"type": "function", "function": {"name": "f", "description": "", "parameters": parameters}}]);
        let request = ChatRequest { tools: Some(tools), parallel_tool_calls: Some(true), ..ChatRequest::user("Hi") };
        let params = engine.apply_template(&request).unwrap().parser_params;
        assert!(params["parser"].as_str().is_some_and(|parser| !parser.is_empty()));
        ParserSpec::Common(params.to_string())
    }

    fn qwen() -> ParserSpec {
        spec(include_str!("../../../tests/templates/qwen.jinja"))
    }

    /// The message of a text that comes in pieces of `size` characters, and how it ended.
    fn read(spec: &ParserSpec, text: &str, size: usize, finish: FinishReason) -> (Message, End) {
        let mut parser = AnswerParser::new(spec).unwrap();
        let mut message = Message::default();
        let letters: Vec<char> = text.chars().collect();
        for chunk in letters.chunks(size) {
            let piece = Piece { text: chunk.iter().collect(), tokens: vec![Token(1)], ..Piece::default() };
            parser.push(piece).into_iter().for_each(|delta| message.add(delta));
        }
        let (last, end) = parser.finish(Report { finish, ..report(3, letters.len()) });
        last.into_iter().for_each(|delta| message.add(delta));
        (message, end)
    }

    fn whole(spec: &ParserSpec, text: &str, size: usize) -> (Message, End) {
        read(spec, text, size, FinishReason::EndOfText)
    }

    #[test]
    fn calls_are_the_same_in_pieces_of_every_size() {
        let spec = qwen();
        for (text, content, n_calls) in [
            (
                "Just text, with < and { and [ in it.\n\nAnd more.".to_owned(),
                "Just text, with < and { and [ in it.\n\nAnd more.",
                0,
            ),
            (CALL.to_owned(), "", 1),
            (format!("{CALL}\n{CALL}"), "", 2),
        ] {
            for size in [1, 2, 3, 7, 1000] {
                let (message, end) = whole(&spec, &text, size);
                assert_eq!(message.content, content, "pieces of {size}");
                assert_eq!(message.calls.len(), n_calls, "pieces of {size}: {message:?}");
                for call in &message.calls {
                    let arguments: Value = serde_json::from_str(&call.arguments).unwrap();
                    assert_eq!((&*call.name, arguments), ("f", json!({"a": 1})));
                    assert!(call.id.starts_with("call_"));
                }
                assert_eq!(end.finish, if n_calls > 0 { Finish::ToolCalls } else { Finish::Stop });
            }
        }
        let ids = whole(&spec, &format!("{CALL}\n{CALL}"), 5).0.calls;
        assert_ne!(ids[0].id, ids[1].id);
    }

    #[test]
    fn what_the_parser_cannot_read_is_content() {
        let spec = qwen();
        for text in [
            "<tool_call>\nnot JSON at all\n</tool_call>",
            "<tool_call>",
            "text <tool_call>\n{\"name\": 5}\n</tool_call>",
        ] {
            for size in [1, 4, 1000] {
                let (message, end) = whole(&spec, text, size);
                assert_eq!((&*message.content, message.calls.len()), (text, 0), "pieces of {size}");
                assert_eq!(end.finish, Finish::Stop);
            }
        }
    }

    #[test]
    fn a_call_that_is_cut_is_no_error() {
        let (message, end) = read(&qwen(), &CALL[..45], 3, FinishReason::MaxTokens);
        assert_eq!(end.finish, Finish::Length);
        assert_eq!(message.calls.len(), 1, "{message:?}");
        assert!("{\"a\": 1}".starts_with(&message.calls[0].arguments), "{message:?}");
    }

    #[test]
    fn thoughts_come_first_and_are_counted() {
        let spec = spec(include_str!("../../../tests/templates/deepseek-r1.jinja"));
        for size in [1, 3, 1000] {
            let (message, end) = whole(&spec, "I think.\n</think>\n\nI say.", size);
            assert_eq!((message.reasoning.trim(), message.content.trim()), ("I think.", "I say."), "pieces of {size}");
            assert!(end.n_reasoning > 0 && (size > 1 || end.n_reasoning < 20), "{}", end.n_reasoning);
        }
    }

    /// Text that grows is parsed ever more rarely: the bound that keeps the cost from growing with its square.
    #[test]
    fn long_answers_are_parsed_rarely() {
        let mut parser = AnswerParser::new(&qwen()).unwrap();
        let mut n_parsed = 0;
        for _ in 0..20_000 {
            let before = parser.n_parsed;
            parser.push(Piece { text: "{a}\n".to_owned(), tokens: vec![Token(1)], ..Piece::default() });
            n_parsed += usize::from(parser.n_parsed != before);
        }
        assert!(n_parsed < 1500, "{n_parsed} times for 20,000 pieces");
    }
}
