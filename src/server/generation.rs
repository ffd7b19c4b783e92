//! From a prompt to the steps of its answer. Every endpoint goes through [`start`].

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use futures_core::Stream;
use futures_util::{
    StreamExt, TryStreamExt,
    stream::{self, Peekable},
};
use tokio::sync::oneshot;
use tracing::Span;

use super::{
    activity::Admission,
    error::ApiError,
    state::{AppState, Busy, EventStream},
};
use crate::{
    engine::{Event, FinishReason, GenerateOptions, Piece, PromptProgress, PromptReport, Report},
    llama::Token,
};

/// How long a stream is not opened while its prompt waits or is evaluated. What fails at once is a status of its own; after
/// this, clients and proxies between must see that somebody works for them.
const OPEN_AFTER: Duration = Duration::from_millis(250);

/// One step of an answer. A stream of them ends with `Done` or an error, exactly one of the two, as its last item.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// More of the prompt is evaluated; only when asked for, and before all text.
    Progress(PromptProgress),
    /// More text.
    Piece(Piece),
    /// The end.
    Done(Report),
}

/// The steps of one answer; dropping it ends the generation.
pub type Steps = Pin<Box<dyn Stream<Item = Result<Step, ApiError>> + Send>>;

/// Answers to one prompt that have begun, and what is known of the prompt by now.
pub type Begun = (Vec<Steps>, PromptTokens);

/// The tokens of a prompt.
#[derive(Clone, Copy, Debug, Default)]
pub struct PromptTokens {
    /// All of them.
    pub n_prompt: usize,
    /// Of these, taken from a cache; 0 while that is not known.
    pub n_cached: usize,
}

impl From<&PromptReport> for PromptTokens {
    fn from(report: &PromptReport) -> Self {
        Self { n_prompt: report.n_prompt, n_cached: report.n_cached }
    }
}

/// Starts `n` answers to a prompt. Waits until it is evaluated; when they are to be streamed, no longer than [`OPEN_AFTER`].
///
/// # Errors
/// Whatever goes wrong up to then, so that it can still become the status of the reply.
pub async fn start(
    state: &AppState,
    prompt: Vec<Token>,
    options: GenerateOptions,
    n: usize,
    is_streamed: bool,
) -> Result<Begun, ApiError> {
    start_in(&admit(state)?, state, prompt, options, n, is_streamed).await
}

/// A request's place among those at work and those that wait; its last answer gives it back.
pub type Place = Arc<Option<Admission>>;

/// A place for a request.
///
/// # Errors
/// All are taken: 503.
pub fn admit(state: &AppState) -> Result<Place, ApiError> {
    let max_queue = state.config().max_queue;
    let admission = state.activity().admit(max_queue).ok_or_else(|| ApiError::queue_full(max_queue))?;
    Ok(Arc::new(Some(admission)))
}

async fn start_in(
    place: &Place,
    state: &AppState,
    prompt: Vec<Token>,
    options: GenerateOptions,
    n: usize,
    is_streamed: bool,
) -> Result<Begun, ApiError> {
    let n_ctx = state.backend()?.info().n_ctx as usize;
    if prompt.len() >= n_ctx {
        // Said here, since a prefill provider must not be started for nothing.
        return Err(ApiError::context_overflow(prompt.len(), n_ctx));
    }
    let tokens = PromptTokens { n_prompt: prompt.len(), n_cached: 0 };
    let mut begun = Box::pin(begin(state.clone(), prompt, options, n, place.clone()));
    if !is_streamed {
        return begun.await;
    }
    match tokio::time::timeout(OPEN_AFTER, &mut begun).await {
        Ok(begun) => begun,
        Err(_) => Ok((open_early(state, begun, n), tokens)),
    }
}

/// Returns with the first event of the first answer.
async fn begin(
    state: AppState,
    prompt: Vec<Token>,
    options: GenerateOptions,
    n: usize,
    place: Place,
) -> Result<Begun, ApiError> {
    let backend = state.backend()?;
    let mut tokens = PromptTokens { n_prompt: prompt.len(), n_cached: 0 };
    let tasks: Vec<_> = (0..n).map(|_| state.activity().begin(prompt.len(), &options)).collect();
    let answers = backend.generate(prompt, options, n).await?;
    let answers = tasks.into_iter().zip(answers).map(|(task, events)| task.watch(events));
    let mut answers: Vec<_> = answers.map(StreamExt::peekable).collect();
    if let Some(first) = answers.first_mut() {
        match Pin::new(first).peek().await {
            Some(Err(error)) => return Err(error.clone().into()),
            Some(Ok(Event::Prompt(prompt))) => tokens = prompt.into(),
            _ => {}
        }
    }
    Ok((answers.into_iter().map(|events| steps(&state, events, place.clone())).collect(), tokens))
}

/// Answers that are still to begin. The first drives them all; dropping it ends them.
fn open_early(
    state: &AppState,
    begun: impl Future<Output = Result<Begun, ApiError>> + Send + 'static,
    n: usize,
) -> Vec<Steps> {
    let (senders, receivers): (Vec<_>, Vec<_>) = (1..n).map(|_| oneshot::channel::<Steps>()).unzip();
    let (state, busy) = (state.clone(), state.busy());
    let first = async move {
        let (mut answers, _) = tokio::select! {
            begun = begun => begun?,
            () = state.cancelled() => return Err(ApiError::shutting_down()),
        };
        drop(busy);
        for (sender, answer) in senders.into_iter().zip(answers.drain(1..)) {
            let _ = sender.send(answer);
        }
        answers.pop().ok_or_else(|| ApiError::internal("internal error: no answer was begun"))
    };
    let first: Steps = Box::pin(stream::once(first).try_flatten());
    let others = receivers.into_iter().map(|receiver| -> Steps {
        // The first has the reason when there is none.
        Box::pin(stream::once(receiver).filter_map(|answer| std::future::ready(answer.ok())).flatten())
    });
    std::iter::once(first).chain(others).collect()
}

/// `n` answers to one prompt of a request, which may have no tokens.
pub async fn start_one(
    place: &Place,
    state: &AppState,
    prompt: Vec<Token>,
    options: GenerateOptions,
    n: usize,
) -> Result<Vec<Steps>, ApiError> {
    if prompt.is_empty() {
        return Ok((0..n).map(|_| empty(state)).collect());
    }
    Ok(start_in(place, state, prompt, options, n, false).await?.0)
}

/// `n` answers to each of several prompts, to be streamed. The others begin as they are read; a prompt that does not fit is
/// told of at once.
pub async fn start_all(
    state: &AppState,
    prompts: Vec<Vec<Token>>,
    options: &GenerateOptions,
    n: usize,
) -> Result<Vec<Steps>, ApiError> {
    let n_ctx = state.backend()?.info().n_ctx as usize;
    if let Some(prompt) = prompts.iter().find(|prompt| prompt.len() >= n_ctx) {
        return Err(ApiError::context_overflow(prompt.len(), n_ctx));
    }
    let place = admit(state)?;
    let mut prompts = prompts.into_iter();
    let first = prompts.next().unwrap_or_default();
    let mut answers = match first.is_empty() {
        true => (0..n).map(|_| empty(state)).collect(),
        false => start_in(&place, state, first, options.clone(), n, true).await?.0,
    };
    for prompt in prompts {
        // Each answer on its own: those of one prompt share their beginning in the cache anyway.
        for index in 0..n {
            let (place, state, prompt, mut options) = (place.clone(), state.clone(), prompt.clone(), options.clone());
            options.sampling.seed =
                options.sampling.seed.map(|seed| seed.wrapping_add(u32::try_from(index).unwrap_or(0)));
            let begun = async move {
                let answers = match prompt.is_empty() {
                    true => vec![empty(&state)],
                    false => start_in(&place, &state, prompt, options, 1, true).await?.0,
                };
                Ok::<_, ApiError>(stream::iter(answers).flatten())
            };
            answers.push(Box::pin(stream::once(begun).try_flatten()));
        }
    }
    Ok(answers)
}

/// A whole answer.
pub struct Gathered {
    /// All of its text and tokens.
    pub piece: Piece,
    /// The end.
    pub report: Report,
}

/// Reads an answer to its end.
pub async fn gather(mut steps: Steps) -> Result<Gathered, ApiError> {
    let mut whole = Piece::default();
    while let Some(step) = steps.next().await {
        match step? {
            Step::Piece(piece) => {
                whole.text.push_str(&piece.text);
                whole.tokens.extend(piece.tokens);
                whole.logprobs.extend(piece.logprobs);
            }
            Step::Progress(_) => {}
            Step::Done(report) => return Ok(Gathered { piece: whole, report }),
        }
    }
    Err(ApiError::internal("internal error: the answer has no end"))
}

/// The answer to a prompt without a single token: nothing, at once.
fn empty(state: &AppState) -> Steps {
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
    steps(state, events.peekable(), Arc::default())
}

struct Running {
    events: Peekable<EventStream>,
    state: AppState,
    span: Span,
    _busy: Busy,
    _place: Place,
}

fn steps(state: &AppState, events: Peekable<EventStream>, place: Place) -> Steps {
    let running = Running { events, state: state.clone(), span: Span::current(), _busy: state.busy(), _place: place };
    Box::pin(stream::unfold(Some(running), async |running| {
        let mut running = running?;
        let step = running.next().await;
        // After the last step the generation is dropped at once, not when the client has read everything.
        let rest = if matches!(step, Ok(Step::Piece(_) | Step::Progress(_))) { Some(running) } else { None };
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
                Some(Ok(Event::Progress(progress))) => return Ok(Step::Progress(progress)),
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
