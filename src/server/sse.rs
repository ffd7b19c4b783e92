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

/// A 200 whose body is the frames. They are taken one by one as the client reads them, and dropped when it hangs up.
pub fn response(frames: impl Stream<Item = String> + Send + 'static, keep_alive: Duration) -> Response {
    let events = AssertUnwindSafe(frames).catch_unwind().map(|frame| {
        let data = frame.unwrap_or_else(|_| {
            json(&ApiError::internal("internal error: the generation of this answer panicked").body())
        });
        Ok::<_, Infallible>(Event::default().data(data))
    });
    // nginx and others would collect the stream before they pass it on.
    let no_buffering = (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    ([no_buffering], Sse::new(events).keep_alive(KeepAlive::new().interval(keep_alive))).into_response()
}

/// `value` as JSON on one line. Our reply types have string keys only and cannot fail.
pub fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_else(|_| "{}".to_owned())
}
