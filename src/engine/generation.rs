//! How events travel from the decode thread to whoever asked.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use futures_channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use futures_core::Stream;

use crate::llama::CancelFlag;

use super::{EngineError, Event, Shared};

pub(super) type EventSender = UnboundedSender<Result<Event, EngineError>>;

/// A running generation: a blocking [`Iterator`] and an async [`Stream`] of [`Event`]s. Dropping it stops the work before
/// the next token. Where both `Iterator` and `StreamExt` are in scope, name the one you mean: `StreamExt::next(&mut events)`.
///
/// The channel behind it has no bound of its own, so that the decode thread never waits for a slow reader; a generation
/// sends at most one event for each token that fits the context, which is the bound.
#[must_use = "dropping a generation cancels it"]
pub struct Generation {
    events: UnboundedReceiver<Result<Event, EngineError>>,
    cancel: CancelFlag,
    finished: bool,
    // The thread must outlive the generation even when the last engine handle is dropped first.
    _shared: Arc<Shared>,
}

pub(super) fn channel(shared: Arc<Shared>) -> (EventSender, Generation) {
    let (sender, events) = unbounded();
    (sender, Generation { events, cancel: CancelFlag::new(), finished: false, _shared: shared })
}

impl Generation {
    pub(super) fn cancel_flag(&self) -> CancelFlag {
        self.cancel.clone()
    }

    /// `Done` and errors are the last item; a thread that went away without a word is an error too.
    fn note(&mut self, item: Option<Result<Event, EngineError>>) -> Option<Result<Event, EngineError>> {
        let item = item.unwrap_or(Err(EngineError::Stopped));
        self.finished = matches!(item, Ok(Event::Done(_)) | Err(_));
        Some(item)
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.cancel.raise();
    }
}

impl Stream for Generation {
    type Item = Result<Event, EngineError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.finished {
            return Poll::Ready(None);
        }
        match Pin::new(&mut self.events).poll_next(cx) {
            Poll::Ready(item) => Poll::Ready(self.note(item)),
            Poll::Pending => Poll::Pending,
        }
    }
}

/// Wakes a thread that waits in [`Generation::next`].
struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl Iterator for Generation {
    type Item = Result<Event, EngineError>;

    /// Blocks the thread until the next event. Works on any thread, one of an async runtime included (where it keeps the
    /// worker busy: prefer the stream there).
    fn next(&mut self) -> Option<Self::Item> {
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let mut cx = Context::from_waker(&waker);
        loop {
            match Pin::new(&mut *self).poll_next(&mut cx) {
                Poll::Ready(item) => return item,
                Poll::Pending => std::thread::park(),
            }
        }
    }
}
