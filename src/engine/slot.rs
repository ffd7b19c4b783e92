//! A job, and the slot that works on it: one sequence, its sampler, its text.

use std::path::PathBuf;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use crate::llama::{CancelFlag, Sampler, SeqId, Token, Vocab};

use super::generation::EventSender;
use super::logprob;
use super::text::{Pushed, TextAssembler};
use super::{
    Embedding, EngineError, Event, FinishReason, GenerateOptions, Piece, PrefillReport, PromptProgress, PromptReport,
    Report,
};

/// From this length on, a prompt's last token is evaluated in a batch of its own.
///
/// After a handoff the last token is always evaluated alone. ggml's CPU attention computes 64 rows and more in tiles, and a
/// single row over 512 cells and more in parts, with other rounding each; so a prompt that is evaluated here takes the same
/// way, and the answer does not depend on where the prompt came from. Shorter prompts take one kernel either way.
const LAST_ALONE_FROM: usize = 64;

/// Work for the decode thread.
pub(super) struct Job {
    pub tokens: Vec<Token>,
    /// A state file that holds the prompt's KV cache.
    pub restore: Option<PathBuf>,
    pub options: GenerateOptions,
    pub sampler: Sampler,
    pub seed: u32,
    pub output: Output,
    pub cancel: CancelFlag,
    /// The prefix store may be asked, and may get the prompt.
    pub uses_store: bool,
    /// The next job for the same sequence, before any that waits: further answers to the same prompt.
    pub then: Option<Box<Job>>,
    /// It is the second try, after the first found NaN in the memory.
    pub is_retry: bool,
}

/// Where a job's result goes.
pub(super) enum Output {
    /// Events of a generation.
    Events(EventSender),
    /// The prompt's state goes into a file; nothing is generated.
    File { path: PathBuf, reply: Sender<Result<PrefillReport, EngineError>> },
    /// The logits after the prompt, one for each token of the vocabulary; nothing is generated.
    Logits(Sender<Result<Vec<f32>, EngineError>>),
    /// The embedding of the prompt; nothing is generated.
    Embedding(Sender<Result<Embedding, EngineError>>),
}

impl Job {
    pub fn new(
        tokens: Vec<Token>,
        restore: Option<PathBuf>,
        options: GenerateOptions,
        sampler: Sampler,
        seed: u32,
        output: Output,
    ) -> Self {
        let (cancel, uses_store, then, is_retry) = (CancelFlag::new(), false, None, false);
        Self { tokens, restore, options, sampler, seed, output, cancel, uses_store, then, is_retry }
    }

    pub fn fail(self, error: EngineError) {
        if let Some(then) = self.then {
            then.fail(error.clone());
        }
        match self.output {
            Output::Events(events) => {
                let _ = events.unbounded_send(Err(error));
            }
            Output::File { reply, .. } => {
                let _ = reply.send(Err(error));
            }
            Output::Logits(reply) => {
                let _ = reply.send(Err(error));
            }
            Output::Embedding(reply) => {
                let _ = reply.send(Err(error));
            }
        }
    }
}

/// A job in the works.
pub(super) struct Slot {
    pub job: Job,
    pub seq: SeqId,
    /// Tokens of this sequence that are in the KV cache: the position of the next one.
    pub n_past: usize,
    /// The generated token that is to be evaluated next; `None` while the prompt is.
    pub next: Option<Token>,
    text: TextAssembler,
    bytes: Vec<u8>,
    n_cached: usize,
    restore_time: Option<Duration>,
    started: Instant,
    prompt: Option<PromptReport>,
    prompt_done: Instant,
    n_generated: usize,
    /// Generated tokens.
    answer: Vec<Token>,
    /// Pieces kept back for `two_pieces`.
    gathered: Piece,
    has_told_text: bool,
    /// That it has is not known to the decode loop yet.
    tells_first_text: bool,
}

/// Whether a slot goes on.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Progress {
    Continue,
    Finished,
}

impl Slot {
    /// A slot whose sequence holds the first `n_cached` tokens of the job already.
    pub fn new(job: Job, seq: SeqId, n_cached: usize, restore_time: Option<Duration>) -> Self {
        let now = Instant::now();
        let text = TextAssembler::new(&job.options.stop);
        Self {
            job,
            seq,
            n_past: n_cached,
            next: None,
            text,
            bytes: Vec::new(),
            n_cached,
            restore_time,
            started: now,
            prompt: None,
            prompt_done: now,
            n_generated: 0,
            answer: Vec::new(),
            gathered: Piece::default(),
            has_told_text: false,
            tells_first_text: false,
        }
    }

    /// Tokens that are to be evaluated next, and whether the last of them completes what is known: the token that was
    /// chosen last, or the rest of the prompt.
    pub fn todo(&self) -> (&[Token], bool) {
        if let Some(token) = &self.next {
            return (std::slice::from_ref(token), true);
        }
        let rest = &self.job.tokens[self.n_past.min(self.job.tokens.len())..];
        match rest.split_last() {
            Some((_, before)) if self.job.tokens.len() >= LAST_ALONE_FROM && !before.is_empty() => (before, false),
            _ => (rest, true),
        }
    }

    pub fn cancelled(&self) -> bool {
        self.job.cancel.is_raised()
    }

    /// Whether the prompt is still being evaluated.
    pub fn is_in_prompt(&self) -> bool {
        self.prompt.is_none()
    }

    /// Says how far the prompt is, where that was asked for.
    pub fn tell_progress(&mut self) {
        if self.job.options.report_progress && self.is_in_prompt() {
            self.send(Event::Progress(PromptProgress {
                n_prompt: self.job.tokens.len(),
                n_cached: self.n_cached,
                n_processed: self.n_past,
                elapsed: self.started.elapsed(),
            }));
        }
    }

    /// What the memory holds of this sequence: the first `n_past` tokens of prompt and answer.
    pub fn held(mut self) -> (Vec<Token>, Option<Box<Job>>) {
        self.job.tokens.append(&mut self.answer);
        self.job.tokens.truncate(self.n_past);
        (self.job.tokens, self.job.then)
    }

    /// How many tokens of its prompt and answer a prompt begins with, and how many there are so far.
    pub fn common_prefix(&self, prompt: &[Token]) -> (usize, usize) {
        let known = self.job.tokens.iter().chain(&self.answer);
        (known.zip(prompt).take_while(|(a, b)| a == b).count(), self.job.tokens.len() + self.answer.len())
    }

    /// The prompt is in the cache: says so, and lets the penalties see it.
    pub fn prompt_finished(&mut self, argmax: Token) -> Result<PromptReport, EngineError> {
        self.prompt_done = Instant::now();
        let report = PromptReport {
            n_prompt: self.job.tokens.len(),
            n_cached: self.n_cached,
            restore: self.restore_time,
            evaluate: self.prompt_done - self.started,
            argmax,
        };
        self.prompt = Some(report);
        let window = self.job.options.sampling.repeat_last_n as usize;
        let recent = self.job.tokens.len().saturating_sub(window);
        self.job.sampler.accept_prompt(&self.job.tokens[recent..]).map_err(decode_error)?;
        self.send(Event::Prompt(report));
        Ok(report)
    }

    /// Chooses a token from the logits and tells what it adds. `n_ctx` is the room of one sequence.
    pub fn choose(&mut self, logits: &[f32], vocab: Vocab<'_>, n_ctx: usize) -> Result<Progress, EngineError> {
        if self.job.options.max_tokens == Some(0) {
            return Ok(self.finish(FinishReason::MaxTokens));
        }
        let token = self.job.sampler.sample(logits).map_err(decode_error)?;
        let logprob = self.job.options.top_logprobs.map(|n| logprob::of(logits, token, n));
        self.job.sampler.accept(token).map_err(decode_error)?;
        self.n_generated += 1;
        self.answer.push(token);
        if vocab.is_end(token) && !self.job.options.ignore_eos {
            return Ok(self.finish(FinishReason::EndOfText));
        }
        self.bytes.clear();
        vocab.append_bytes(token, self.job.options.preserved_tokens.contains(&token), &mut self.bytes);
        match self.text.push(token, &self.bytes, logprob) {
            Pushed::Piece(piece) => self.tell(piece),
            Pushed::Stop(piece, stop) => {
                self.tell(piece);
                return Ok(self.report(FinishReason::StopString(stop)));
            }
        }
        if self.job.options.max_tokens.is_some_and(|max| self.n_generated >= max as usize) {
            return Ok(self.finish(FinishReason::MaxTokens));
        }
        if self.job.tokens.len() + self.n_generated >= n_ctx {
            return Ok(self.finish(FinishReason::ContextFull));
        }
        self.next = Some(token);
        Ok(Progress::Continue)
    }

    /// Releases text that was held back, then reports.
    fn finish(&mut self, reason: FinishReason) -> Progress {
        let rest = self.text.finish();
        self.tell(rest);
        self.report(reason)
    }

    fn tell(&mut self, piece: Piece) {
        if self.job.options.two_pieces && self.has_told_text {
            self.gathered.text.push_str(&piece.text);
            self.gathered.tokens.extend(piece.tokens);
            self.gathered.logprobs.extend(piece.logprobs);
        } else if !piece.text.is_empty() || !piece.tokens.is_empty() {
            let is_first_text = !self.has_told_text && !piece.text.is_empty();
            self.tells_first_text |= is_first_text;
            self.has_told_text |= is_first_text;
            self.send(Event::Piece(piece));
        }
    }

    /// Who reads the first text, if that was told since this was asked last, and is read as it comes.
    pub fn reader_of_first_text(&mut self) -> Option<EventSender> {
        let is_told = std::mem::take(&mut self.tells_first_text) && !self.job.options.two_pieces;
        match &self.job.output {
            Output::Events(events) if is_told => Some(events.clone()),
            _ => None,
        }
    }

    fn report(&mut self, finish: FinishReason) -> Progress {
        if let Some(prompt) = self.prompt {
            let gathered = std::mem::take(&mut self.gathered);
            if !gathered.tokens.is_empty() {
                self.send(Event::Piece(gathered));
            }
            let generate = if self.n_generated == 0 { Duration::ZERO } else { self.prompt_done.elapsed() };
            self.send(Event::Done(Report {
                finish,
                prompt,
                n_generated: self.n_generated,
                generate,
                external_prefill: None,
                seed: self.job.seed,
            }));
        }
        Progress::Finished
    }

    /// A closed channel means that the reader is gone: the slot ends before its next step.
    fn send(&mut self, event: Event) {
        if let Output::Events(events) = &self.job.output
            && events.unbounded_send(Ok(event)).is_err()
        {
            self.job.cancel.raise();
        }
    }
}

pub(super) fn decode_error(error: crate::llama::Error) -> EngineError {
    EngineError::Decode(error.to_string())
}
