//! From steps to a reply. A reply is sent whole or as a stream; both are made from the same steps, so the joined pieces
//! of a stream are the text of the whole.

use std::time::Duration;

use axum::response::Response;
use futures_util::StreamExt;

use super::{
    error::ApiError,
    generation::{Step, Steps},
    sse,
};
use crate::engine::{Piece, Report};

/// The wire form of one endpoint's replies. The chunks of a stream are JSON texts of one line.
pub trait Reply: Send + 'static {
    /// The chunks before the first piece.
    fn opening(&mut self) -> Vec<String>;
    /// The chunks for a piece; none when it has nothing to show.
    fn piece(&mut self, piece: &Piece) -> Vec<String>;
    /// The chunks at the end, without `[DONE]`.
    fn closing(&mut self, report: &Report) -> Vec<String>;
    /// The one body of a reply that is not streamed.
    fn whole(self, text: String, report: &Report) -> Response;
}

/// Sends the steps as `reply` shapes them; streamed when `keep_alive` says how often a silent stream gives a sign.
///
/// # Errors
/// That of the steps, unless streamed: then it is the stream's last frame.
pub async fn send(reply: impl Reply, steps: Steps, keep_alive: Option<Duration>) -> Result<Response, ApiError> {
    match keep_alive {
        Some(interval) => Ok(sse::response(frames(reply, steps), interval)),
        None => whole(reply, steps).await,
    }
}

async fn whole(reply: impl Reply, mut steps: Steps) -> Result<Response, ApiError> {
    let mut text = String::new();
    while let Some(step) = steps.next().await {
        match step? {
            Step::Piece(piece) => text.push_str(&piece.text),
            Step::Done(report) => return Ok(reply.whole(text, &report)),
        }
    }
    Err(ApiError::internal("internal error: the answer has no end"))
}

/// The data of each SSE frame, in order. `[DONE]` follows a good end only.
fn frames(mut reply: impl Reply, steps: Steps) -> impl futures_core::Stream<Item = String> + Send + 'static {
    let opening = futures_util::stream::iter(reply.opening());
    opening.chain(steps.flat_map(move |step| {
        let frames = match step {
            Ok(Step::Piece(piece)) => reply.piece(&piece),
            Ok(Step::Done(report)) => {
                let mut frames = reply.closing(&report);
                frames.push("[DONE]".to_owned());
                frames
            }
            Err(error) => {
                let frame = sse::json(&error.body());
                tracing::warn!("a stream ended with {frame}");
                vec![frame]
            }
        };
        futures_util::stream::iter(frames)
    }))
}
