//! Replies of the APIs whose streams are made of named events, with a beginning and an end for each part of the answer.
//! The whole reply is what the events add up to, so the two cannot differ.

use std::time::Duration;

use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use serde_json::Value;

use super::{
    chat::{ChatStep, ChatSteps, End},
    error::ApiError,
    extract::ApiJson,
    reply::{self, Writer},
};

/// The wire form of one API's answers.
pub trait Events: Writer<ChatStep> {
    /// The body of a reply that is not streamed, once all steps were written.
    fn whole(self, end: &End) -> Value;

    /// Writes the end; the frames of a stream.
    fn end(&mut self, end: &End) -> Vec<super::sse::Frame>;
}

/// Sends an answer; streamed when `keep_alive` says how often a silent stream gives a sign.
///
/// # Errors
/// That of the steps, unless streamed.
pub async fn send(
    mut events: impl Events,
    mut steps: ChatSteps,
    keep_alive: Option<Duration>,
) -> Result<Response, ApiError> {
    if let Some(interval) = keep_alive {
        return Ok(reply::stream(events, vec![steps], interval));
    }
    while let Some(step) = steps.next().await {
        match step? {
            ChatStep::Done(end) => {
                events.end(&end);
                return Ok(ApiJson(events.whole(&end)).into_response());
            }
            delta => drop(events.step(0, delta)),
        }
    }
    Err(ApiError::internal("internal error: the answer has no end"))
}

#[cfg(test)]
pub mod testing {
    //! Answers to be written by the tests of each wire form.

    use serde_json::Value;

    use crate::server::{
        AppState, Backend, ServerConfig,
        chat::{CallDelta, CallHead, Delta, End, Finish},
        sse::Frame,
        testing::{Play, Script, report},
    };

    pub fn state() -> AppState {
        let state = AppState::new(ServerConfig::default());
        state.set_ready(Backend::Scripted(Script::new(Play::Items(Vec::new()))));
        state
    }

    pub fn text(content: &str) -> Delta {
        Delta { content: content.into(), ..Delta::default() }
    }

    pub fn thought(reasoning: &str) -> Delta {
        Delta { reasoning: reasoning.into(), ..Delta::default() }
    }

    /// The first piece of a call when it has a name.
    pub fn call(index: usize, name: Option<&str>, arguments: &str) -> Delta {
        let head = name.map(|name| CallHead { id: format!("call_{index}"), name: name.into() });
        Delta { calls: vec![CallDelta { index, head, arguments: arguments.into() }], ..Delta::default() }
    }

    /// Thoughts, text and two calls, with the borders of pieces where they hurt.
    pub fn everything() -> Vec<Delta> {
        let both = Delta { reasoning: "mm.".into(), content: "Hé".into(), ..Delta::default() };
        let text_and_call = Delta { content: "!".into(), ..call(0, Some("f"), "") };
        let mut two_calls = call(0, None, "1}");
        two_calls.calls.extend(call(1, Some("g"), "{").calls);
        vec![thought("H"), both, text_and_call, call(0, None, "{\"a\":"), two_calls, call(1, None, "}")]
    }

    pub fn end(finish: Finish) -> End {
        let mut report = report(12, 7);
        report.prompt.n_cached = 4;
        End { finish, report, n_reasoning: 3 }
    }

    /// The events of a stream; each names itself in its data too.
    pub fn events(frames: Vec<Frame>) -> Vec<Value> {
        let event = |frame: Frame| {
            let data: Value = serde_json::from_str(&frame.data).unwrap();
            assert_eq!(data["type"].as_str(), frame.event, "{data}");
            data
        };
        frames.into_iter().map(event).collect()
    }
}
