//! The stream that a caller of [`Hybrid::generate`](super::Hybrid::generate) reads.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use futures_core::Stream;
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio::time::{Sleep, sleep};

use super::backend::Events;
use super::policy::Policy;
use super::report::{HandoffTimes, LineSink, handoff_line};
use super::slot_dir::RunDir;
use super::turns::Turn;
use crate::engine::{EngineError, Event, PromptReport, Report};

/// A generation whose prompt was handed over, or, after a failure, evaluated by the engine: the events are the same.
///
/// A `Stream` of `Result<Event, EngineError>`, as [`Generation`](crate::engine::Generation) is. It holds the one slot
/// until it ends. Dropping it ends the generation before its next token.
pub struct Handoff {
    // Fields drop in this order: the generation has stopped when the next request gets its turn.
    events: Events,
    restored: Option<Restored>,
    turn: Option<Turn>,
    /// Learns what evaluating costs here, of a prompt that was evaluated here.
    policy: Option<Arc<Mutex<Policy>>>,
    /// The last event, kept back until the state file has been removed.
    done: Option<Report>,
}

/// What is known of a prompt that came from the provider.
pub(super) struct Restored {
    /// When the request got its turn.
    pub since: Instant,
    /// The provider's run.
    pub prefill: Duration,
    /// The engine's first event; `None` once it was passed on.
    pub prompt: Option<PromptReport>,
    /// The run's files.
    pub files: Files,
    /// Where the line goes; `None` once it was said.
    pub line: Option<(PromptReport, LineSink)>,
}

/// How long the files stay after the first text was told: until it is with the client, by and large.
const FIRST_TEXT_FIRST: Duration = Duration::from_millis(5);

/// The files of a provider's run. Freeing the memory of a large one takes a CPU for milliseconds, for which the first text does
/// not wait: neither until it is told nor while it is sent.
pub(super) struct Files {
    there: Option<RunDir>,
    due: Option<Pin<Box<Sleep>>>,
    removal: Option<JoinHandle<()>>,
}

impl From<RunDir> for Files {
    fn from(run_dir: RunDir) -> Self {
        Self { there: Some(run_dir), due: None, removal: None }
    }
}

impl Files {
    /// Removes them soon, or wakes the caller to ask again then.
    fn remove_soon(&mut self, cx: &mut Context<'_>) {
        if self.there.is_some() {
            let due = self.due.get_or_insert_with(|| Box::pin(sleep(FIRST_TEXT_FIRST)));
            if due.as_mut().poll(cx).is_ready() {
                self.remove();
            }
        }
    }

    fn remove(&mut self) {
        if let Some(run_dir) = self.there.take() {
            self.removal = Some(tokio::task::spawn_blocking(move || drop(run_dir)));
        }
    }

    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.remove();
        if let Some(removal) = &mut self.removal {
            // An error is a panic or the runtime's end; the answer is no worse for it.
            let _ = ready!(Pin::new(removal).poll(cx));
            self.removal = None;
        }
        Poll::Ready(())
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        // Not on this thread, which others' answers may be waiting for.
        if tokio::runtime::Handle::try_current().is_ok() {
            self.remove();
        }
    }
}

impl Handoff {
    pub(super) fn local(events: Events, turn: Turn, policy: Arc<Mutex<Policy>>) -> Self {
        Self { events, turn: Some(turn), restored: None, policy: Some(policy), done: None }
    }

    /// `events` without the first one, which is in `restored`.
    pub(super) fn restored(events: Events, turn: Turn, restored: Restored) -> Self {
        Self { events, turn: Some(turn), restored: Some(restored), policy: None, done: None }
    }

    /// Once the state file is gone, so that a caller that has seen `Done` finds none.
    fn poll_done(&mut self, cx: &mut Context<'_>) -> Poll<Option<Report>> {
        if let Some(restored) = &mut self.restored {
            ready!(restored.files.poll_gone(cx));
        }
        let mut report = self.done.take();
        if let (Some(report), Some(restored)) = (&mut report, &self.restored) {
            report.external_prefill = Some(restored.prefill);
        }
        self.turn = None;
        Poll::Ready(report)
    }
}

impl Stream for Handoff {
    type Item = Result<Event, EngineError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if let Some(prompt) = this.restored.as_mut().and_then(|restored| restored.prompt.take()) {
            return Poll::Ready(Some(Ok(Event::Prompt(prompt))));
        }
        if let Some(restored) = this.restored.as_mut().filter(|restored| restored.line.is_none()) {
            restored.files.remove_soon(cx);
        }
        if this.done.is_none() {
            let event = ready!(this.events.as_mut().poll_next(cx));
            if let (Some(Ok(event)), Some(restored)) = (&event, &mut this.restored) {
                restored.note(event);
            }
            if let (Some(Ok(Event::Prompt(prompt))), Some(policy)) = (&event, &this.policy) {
                policy.lock().evaluated(prompt.n_prompt - prompt.n_cached, prompt.evaluate);
            }
            match event {
                Some(Ok(Event::Done(report))) => this.done = Some(report),
                Some(Ok(event)) => return Poll::Ready(Some(Ok(event))),
                last => {
                    this.restored = None;
                    this.turn = None;
                    return Poll::Ready(last);
                }
            }
        }
        this.poll_done(cx).map(|report| report.map(|report| Ok(Event::Done(report))))
    }
}

impl Restored {
    /// Says the line at the first text, or at the end of an answer without any.
    fn note(&mut self, event: &Event) {
        let is_first_byte = match event {
            Event::Progress(_) | Event::Prompt(_) => false,
            Event::Piece(piece) => !piece.text.is_empty(),
            Event::Done(_) => true,
        };
        if !is_first_byte {
            return;
        }
        if let Some((prompt, sink)) = self.line.take() {
            sink.say(&handoff_line(&HandoffTimes {
                n_prompt: prompt.n_prompt,
                prefill: self.prefill,
                restore: prompt.restore.unwrap_or_default(),
                first_byte: self.since.elapsed(),
            }));
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{StreamExt, stream};

    use super::super::slot_dir::SlotDir;
    use super::super::testing::{Collected, until};
    use super::super::turns::Turns;
    use super::*;
    use crate::engine::Piece;
    use crate::llama::Token;

    /// They do not wait for the end of a long answer, and not for its next token either.
    #[tokio::test]
    async fn the_files_go_while_the_answer_goes_on() {
        let base = tempfile::tempdir().unwrap();
        let slot_dir = SlotDir::new(Some(base.path()), 0).unwrap();
        let run_dir = slot_dir.new_run(&[Token(1)]).unwrap();
        let path = run_dir.path().to_owned();
        let argmax = Token(5);
        let prompt = PromptReport { n_prompt: 1, n_cached: 0, restore: None, evaluate: Duration::ZERO, argmax };
        let line = Some((prompt, Collected::default().sink()));
        let restored = Restored {
            since: Instant::now(),
            prefill: Duration::ZERO,
            prompt: Some(prompt),
            files: run_dir.into(),
            line,
        };
        let text = Event::Piece(Piece { text: "hi".to_owned(), ..Piece::default() });
        let events = stream::iter([Ok(text)]).chain(stream::pending());
        let turn = Turns::new(0).enter().await.unwrap().without_provider().slot().await.unwrap();
        let mut handoff = Handoff::restored(Box::pin(events), turn, restored);

        assert!(matches!(handoff.next().await, Some(Ok(Event::Prompt(_)))));
        assert!(matches!(handoff.next().await, Some(Ok(Event::Piece(_)))));
        assert!(path.exists());
        tokio::select! {
            _ = handoff.next() => panic!("there is nothing more"),
            () = until("the files are gone", || !path.exists()) => {}
        }
    }
}
