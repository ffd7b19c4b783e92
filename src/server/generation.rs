//! From a prompt to the steps of its answer. Every endpoint goes through [`start`].

use std::pin::Pin;

use futures_core::Stream;
use futures_util::{
    StreamExt,
    stream::{self, Peekable},
};
use tracing::Span;

use super::{
    error::ApiError,
    state::{AppState, Busy, EventStream},
};
use crate::{
    engine::{Event, FinishReason, GenerateOptions, Piece, PromptReport, Report},
    llama::Token,
};

/// One step of an answer. A stream of them ends with `Done` or an error, exactly one of the two, as its last item.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// More text.
    Piece(Piece),
    /// The end.
    Done(Report),
}

/// The steps of one answer; dropping it ends the generation.
pub type Steps = Pin<Box<dyn Stream<Item = Result<Step, ApiError>> + Send>>;

/// Starts a generation and waits until its prompt is evaluated.
///
/// # Errors
/// Whatever goes wrong up to then, so that it can still become the status of the reply.
pub async fn start(state: &AppState, prompt: Vec<Token>, options: GenerateOptions) -> Result<Steps, ApiError> {
    let backend = state.backend()?;
    let n_ctx = backend.info().n_ctx as usize;
    if prompt.len() >= n_ctx {
        // Said here, since a prefill provider must not be started for nothing.
        return Err(ApiError::context_overflow(prompt.len(), n_ctx));
    }
    let task = state.activity().begin(prompt.len(), &options);
    let mut events = task.watch(backend.generate(prompt, options).await?).peekable();
    if let Some(Err(error)) = Pin::new(&mut events).peek().await {
        return Err(error.clone().into());
    }
    Ok(steps(state, events))
}

/// The answer to a prompt without a single token: nothing, at once.
pub fn empty(state: &AppState) -> Steps {
    let prompt = PromptReport {
        n_prompt: 0,
        n_cached: 0,
        restore: None,
        evaluate: Default::default(),
        argmax: Token::default(),
    };
    let report = Report {
        finish: FinishReason::MaxTokens,
        prompt,
        n_generated: 0,
        generate: Default::default(),
        external_prefill: None,
        seed: 0,
    };
    let events: EventStream = Box::pin(stream::iter([Ok(Event::Done(report))]));
    steps(state, events.peekable())
}

struct Running {
    events: Peekable<EventStream>,
    state: AppState,
    span: Span,
    _busy: Busy,
}

fn steps(state: &AppState, events: Peekable<EventStream>) -> Steps {
    let running = Running { events, state: state.clone(), span: Span::current(), _busy: state.busy() };
    Box::pin(stream::unfold(Some(running), async |running| {
        let mut running = running?;
        let step = running.next().await;
        // After the last step the generation is dropped at once, not when the client has read everything.
        let rest = if matches!(step, Ok(Step::Piece(_))) { Some(running) } else { None };
        Some((step, rest))
    }))
}

impl Running {
    async fn next(&mut self) -> Result<Step, ApiError> {
        loop {
            let event = tokio::select! {
                event = self.events.next() => event,
                () = self.state.cancelled() => return Err(ApiError::shutting_down()),
            };
            match event {
                Some(Ok(Event::Prompt(_))) => {}
                Some(Ok(Event::Piece(piece))) => return Ok(Step::Piece(piece)),
                Some(Ok(Event::Done(report))) => {
                    self.span.in_scope(|| log(&report));
                    return Ok(Step::Done(report));
                }
                Some(Err(error)) => return Err(error.into()),
                None => return Err(ApiError::internal("internal error: the generation ended without a report")),
            }
        }
    }
}

fn log(report: &Report) {
    tracing::debug!(
        prompt = report.prompt.n_prompt,
        cached = report.prompt.n_cached,
        prompt_ms = report.prompt.evaluate.as_millis() as u64,
        generated = report.n_generated,
        generate_ms = report.generate.as_millis() as u64,
        finish = ?report.finish,
        "generation done"
    );
}
