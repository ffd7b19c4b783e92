//! From the steps of answers to the frames of a stream.

use std::{panic::AssertUnwindSafe, time::Duration};

use axum::response::Response;
use futures_core::Stream;
use futures_util::{StreamExt, stream};

use super::{
    error::ApiError,
    sse::{self, Frame},
};

/// The wire form of one endpoint's streams. `T` is a step of an answer.
pub trait Writer<T>: Send + 'static {
    /// The frames before the first step.
    fn opening(&mut self) -> Vec<Frame> {
        Vec::new()
    }

    /// The frames for a step of the answer with this index; none when it has nothing to show.
    fn step(&mut self, index: usize, step: T) -> Vec<Frame>;

    /// The frames after the last step of the last answer.
    fn closing(&mut self) -> Vec<Frame> {
        Vec::new()
    }

    /// The last frame of a stream that fails.
    fn failed(&mut self, error: &ApiError) -> Frame {
        Frame::data(sse::json(&error.body()))
    }
}

/// A stream of the answers, whose steps come as they are made. A silent one gives a sign after `keep_alive`.
pub fn stream<T, S>(mut writer: impl Writer<T>, answers: Vec<S>, keep_alive: Duration) -> Response
where
    T: Send + 'static,
    S: Stream<Item = Result<T, ApiError>> + Send + Unpin + 'static,
{
    let opening = stream::iter(writer.opening());
    let numbered = answers.into_iter().enumerate().map(|(index, steps)| steps.map(move |step| (index, step)));
    // `None` comes when all have ended.
    let steps = stream::select_all(numbered).map(Some).chain(stream::iter([None]));
    // A panic is told in the API's own shape, which `sse` does not know.
    let steps = AssertUnwindSafe(steps).catch_unwind().map(|step| {
        let panicked = || ApiError::internal("internal error: the generation of this answer panicked");
        step.unwrap_or_else(|_| Some((0, Err(panicked()))))
    });
    let frames = steps.scan((writer, false), |(writer, has_failed), step| {
        if *has_failed {
            // Ends the stream, and with it the answers that still run.
            return std::future::ready(None);
        }
        let frames = match step {
            Some((index, Ok(step))) => writer.step(index, step),
            Some((_, Err(error))) => {
                *has_failed = true;
                let frame = writer.failed(&error);
                tracing::warn!("a stream ended with {}", frame.data);
                vec![frame]
            }
            None => writer.closing(),
        };
        std::future::ready(Some(stream::iter(frames)))
    });
    sse::response(opening.chain(frames.flatten()), keep_alive)
}

/// What ends a good stream in OpenAI's API.
pub fn done() -> Frame {
    Frame::data("[DONE]".to_owned())
}
