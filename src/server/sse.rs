//! Server-sent events: `data: <one line>` and a blank line for each frame, a comment when there is nothing to say.

use std::{convert::Infallible, panic::AssertUnwindSafe, time::Duration};

use axum::{
    http::{HeaderName, HeaderValue},
    response::{
        IntoResponse, Response, Sse,
        sse::{Event, KeepAlive},
    },
};
use futures_core::Stream;
use futures_util::StreamExt;
use serde::Serialize;

use super::error::ApiError;

/// One event of a stream.
#[derive(Debug, PartialEq)]
pub struct Frame {
    /// Its name, in the APIs that have names.
    pub event: Option<&'static str>,
    /// JSON on one line, or a word.
    pub data: String,
}

impl Frame {
    /// A frame without a name.
    pub fn data(data: String) -> Self {
        Self { event: None, data }
    }

    /// A value under a name.
    pub fn named(event: &'static str, value: &impl Serialize) -> Self {
        Self { event: Some(event), data: json(value) }
    }
}

/// A 200 whose body is the frames. They are taken one by one as the client reads them, and dropped when it hangs up.
pub fn response(frames: impl Stream<Item = Frame> + Send + 'static, keep_alive: Duration) -> Response {
    let events = AssertUnwindSafe(frames).catch_unwind().map(|frame| {
        let frame = frame.unwrap_or_else(|_| {
            let error = ApiError::internal("internal error: the generation of this answer panicked");
            Frame::data(json(&error.body()))
        });
        // The name comes first, as simple clients expect.
        let event = match frame.event {
            Some(name) => Event::default().event(name),
            None => Event::default(),
        };
        Ok::<_, Infallible>(event.data(frame.data))
    });
    // nginx and others would collect the stream before they pass it on.
    let no_buffering = (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    ([no_buffering], Sse::new(events).keep_alive(KeepAlive::new().interval(keep_alive))).into_response()
}

/// `value` as JSON on one line. Our reply types have string keys only and cannot fail.
pub fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_else(|_| "{}".to_owned())
}
