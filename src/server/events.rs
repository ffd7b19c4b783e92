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
