//! One run: prompts in, answers out, the times between.

use std::time::{Duration, Instant};

use futures_util::{Stream, StreamExt};

use crate::engine::{Engine, EngineError, Event, GenerateOptions, Generation, PromptReport, Report};
use crate::hybrid::Hybrid;
use crate::llama::Token;

use super::Failure;

/// The times of one run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    /// The provider's whole run.
    pub provider: Option<Duration>,
    /// From the start until the last prompt was in the memory; `None` when the provider evaluated it.
    pub prefill: Option<Duration>,
    /// The check of the provider's file, and its load.
    pub restore: Option<Duration>,
    /// From the start to the first text; of the last sequence, when there are several.
    pub first_byte: Duration,
    /// Tokens a second of all sequences together.
    pub decode_rate: f64,
}

/// Prompts of the model's own words: the same ones in each run of the program, and never the same two within one, so that
/// nothing a cache holds can help.
pub(super) struct Prompts {
    words: Vec<Token>,
}

/// Enough for prompts that look like text to the machine; finding them takes a moment for each.
const N_WORDS: usize = 512;

impl Prompts {
    pub(super) fn new(engine: &Engine) -> Self {
        let n_vocab = engine.info().n_vocab;
        // Spread over the vocabulary, whose first tokens are often bytes or special.
        let step = (n_vocab as usize / N_WORDS).max(1);
        let ids = (0..step).flat_map(|start| (start..n_vocab as usize).step_by(step));
        let ids = ids.filter_map(|id| i32::try_from(id).ok()).map(Token);
        let mut words: Vec<Token> = ids.filter(|&token| is_word(engine, token)).take(N_WORDS).collect();
        if words.is_empty() {
            // A model without a tokenizer has ids only, and says of none that it is special.
            let last = i32::try_from(n_vocab.saturating_sub(1)).unwrap_or(0);
            words = (0..=last).map(Token).filter(|token| !engine.end_tokens().contains(token)).take(N_WORDS).collect();
        }
        Self { words }
    }

    /// `parallel` prompts of `n_tokens` tokens.
    pub(super) fn of_run(&self, run: u32, parallel: u32, n_tokens: u32) -> Vec<Vec<Token>> {
        let prompt = |index: u32| {
            let mut random = u64::from(run * 256 + index + 1);
            (0..n_tokens).map(|_| self.words[next(&mut random) % self.words.len()]).collect()
        };
        (0..parallel).map(prompt).collect()
    }
}

/// Steele and others' SplitMix64: well mixed from the first number on.
fn next(state: &mut u64) -> usize {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)) as usize
}

/// Whether plain text becomes this token: a special one is spelt in many, or has no text.
fn is_word(engine: &Engine, token: Token) -> bool {
    let Ok(text) = String::from_utf8(engine.token_bytes(token)) else { return false };
    let tokens = engine.tokenize(&text, false, false).unwrap_or_default();
    !text.is_empty() && tokens.last() == Some(&token)
}

/// Options that generate exactly `n_tokens`, with one wake-up of this thread between the first and the last.
fn exactly(n_tokens: u32) -> GenerateOptions {
    GenerateOptions { ignore_eos: true, two_pieces: true, ..GenerateOptions::greedy(n_tokens) }
}

/// Prompts that are evaluated here, all at once, then answers that are generated all at once.
///
/// In two steps, so that no sequence decodes while another is still in its prompt: the second begins where the first
/// ended and has one more token, which every kind of memory can go on with.
pub(super) async fn cold(engine: &Engine, prompts: Vec<Vec<Token>>, n_gen: u32) -> Result<Sample, Failure> {
    let started = Instant::now();
    let mut answers = start(engine, &prompts, &exactly(1)).map_err(failed)?;
    for answer in &mut answers {
        prompt_report(answer).await?;
    }
    let prefill = started.elapsed();
    for answer in &mut answers {
        first_text(answer).await?;
    }
    let first_byte = started.elapsed();
    drop(answers);

    let longer: Vec<Vec<Token>> =
        prompts.into_iter().map(|prompt| [prompt.as_slice(), &prompt[..1]].concat()).collect();
    let options = GenerateOptions { reuse_prefix: true, ..exactly(n_gen + 1) };
    let mut answers = start(engine, &longer, &options).map_err(failed)?;
    let (mut n_decoded, mut slowest) = (0, Duration::ZERO);
    for answer in &mut answers {
        let report = report(answer).await?;
        n_decoded += report.n_generated.saturating_sub(1);
        slowest = slowest.max(report.generate);
    }
    let decode_rate = rate(n_decoded, slowest);
    Ok(Sample { provider: None, prefill: Some(prefill), restore: None, first_byte, decode_rate })
}

/// One answer for each prompt, in a slot of its own.
fn start(engine: &Engine, prompts: &[Vec<Token>], options: &GenerateOptions) -> Result<Vec<Generation>, EngineError> {
    let in_slot = |(prompt, slot): (&Vec<Token>, u32)| {
        engine.generate(prompt.as_slice(), &GenerateOptions { slot: Some(slot), ..options.clone() })
    };
    prompts.iter().zip(0..).map(in_slot).collect()
}

/// A prompt that the provider evaluates.
pub(super) async fn handoff(hybrid: &Hybrid, prompt: Vec<Token>, n_gen: u32) -> Result<Sample, Failure> {
    let started = Instant::now();
    let mut answer = hybrid.generate(prompt, exactly(n_gen + 1)).await.map_err(failed)?;
    let prompt = prompt_report(&mut answer).await?;
    if prompt.restore.is_none() {
        return Err(Failure::new(1, "the prompt was not handed over"));
    }
    // An answer without any text has its first byte at its end.
    let ended = first_text(&mut answer).await?;
    let first_byte = started.elapsed();
    let report = match ended {
        Some(report) => report,
        None => report(&mut answer).await?,
    };
    Ok(Sample {
        provider: report.external_prefill,
        prefill: None,
        restore: prompt.restore,
        first_byte,
        decode_rate: rate(report.n_generated.saturating_sub(1), report.generate),
    })
}

type Item = Result<Event, EngineError>;

async fn next_event(answer: &mut (impl Stream<Item = Item> + Unpin)) -> Result<Event, Failure> {
    let event = StreamExt::next(answer).await;
    event.unwrap_or(Err(EngineError::Stopped)).map_err(failed)
}

async fn prompt_report(answer: &mut (impl Stream<Item = Item> + Unpin)) -> Result<PromptReport, Failure> {
    match next_event(answer).await? {
        Event::Prompt(report) => Ok(report),
        _ => Err(Failure::new(1, "an answer began without its prompt")),
    }
}

/// Waits for the first text; the report when the answer had none.
async fn first_text(answer: &mut (impl Stream<Item = Item> + Unpin)) -> Result<Option<Report>, Failure> {
    loop {
        match next_event(answer).await? {
            Event::Progress(_) | Event::Prompt(_) => {}
            Event::Piece(piece) if piece.text.is_empty() => {}
            Event::Piece(_) => return Ok(None),
            Event::Done(report) => return Ok(Some(report)),
        }
    }
}

async fn report(answer: &mut (impl Stream<Item = Item> + Unpin)) -> Result<Report, Failure> {
    loop {
        if let Event::Done(report) = next_event(answer).await? {
            return Ok(report);
        }
    }
}

fn failed(error: EngineError) -> Failure {
    Failure::new(1, error.to_string())
}

#[allow(clippy::cast_precision_loss)] // far below 2^52 tokens
pub(super) fn rate(n_tokens: usize, time: Duration) -> f64 {
    // A clock that did not tick gives a large number, and none that JSON has no word for.
    n_tokens as f64 / time.as_secs_f64().max(1e-9)
}
