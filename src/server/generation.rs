//! From a prompt to the steps of its answer. Every endpoint goes through [`start`].

use std::pin::Pin;

use futures_core::Stream;
use futures_util::{
    StreamExt, TryStreamExt,
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

/// Starts `n` answers to a prompt and waits until it is evaluated.
///
/// # Errors
/// Whatever goes wrong up to then, so that it can still become the status of the reply.
pub async fn start(
    state: &AppState,
    prompt: Vec<Token>,
    options: GenerateOptions,
    n: usize,
) -> Result<Vec<Steps>, ApiError> {
    Ok(start_told(state, prompt, options, n).await?.0)
}

/// Like [`start`], and tells how the prompt was taken in.
pub async fn start_told(
    state: &AppState,
    prompt: Vec<Token>,
    options: GenerateOptions,
    n: usize,
) -> Result<(Vec<Steps>, Option<PromptReport>), ApiError> {
    let backend = state.backend()?;
    let n_ctx = backend.info().n_ctx as usize;
    if prompt.len() >= n_ctx {
        // Said here, since a prefill provider must not be started for nothing.
        return Err(ApiError::context_overflow(prompt.len(), n_ctx));
    }
    let tasks: Vec<_> = (0..n).map(|_| state.activity().begin(prompt.len(), &options)).collect();
    let answers = backend.generate(prompt, options, n).await?;
    let answers = tasks.into_iter().zip(answers).map(|(task, events)| task.watch(events));
    let mut answers: Vec<_> = answers.map(StreamExt::peekable).collect();
    let mut report = None;
    if let Some(first) = answers.first_mut() {
        match Pin::new(first).peek().await {
            Some(Err(error)) => return Err(error.clone().into()),
            Some(Ok(Event::Prompt(prompt))) => report = Some(*prompt),
            _ => {}
        }
    }
    Ok((answers.into_iter().map(|events| steps(state, events)).collect(), report))
}

/// `n` answers to a prompt, which may have no tokens.
pub async fn start_one(
    state: &AppState,
    prompt: Vec<Token>,
    options: GenerateOptions,
    n: usize,
) -> Result<Vec<Steps>, ApiError> {
    if prompt.is_empty() {
        return Ok((0..n).map(|_| empty(state)).collect());
    }
    start(state, prompt, options, n).await
}

/// `n` answers to each of several prompts. The first prompt is evaluated when this returns, the others begin as they are
/// read; a prompt that does not fit is told of at once.
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
    let mut prompts = prompts.into_iter();
    let first = prompts.next().unwrap_or_default();
    let mut answers = start_one(state, first, options.clone(), n).await?;
    for prompt in prompts {
        // Each answer on its own: those of one prompt share their beginning in the cache anyway.
        for index in 0..n {
            let (state, prompt, mut options) = (state.clone(), prompt.clone(), options.clone());
            options.sampling.seed =
                options.sampling.seed.map(|seed| seed.wrapping_add(u32::try_from(index).unwrap_or(0)));
            let begun =
                async move { Ok::<_, ApiError>(stream::iter(start_one(&state, prompt, options, 1).await?).flatten()) };
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
