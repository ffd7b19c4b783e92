//! The decode thread: receive, admit, step, emit. It is the only owner of the context, and never waits for a reader.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Instant;

use futures_channel::oneshot;

use crate::llama::{Batch, CancelFlag, Context, SeqId, Token};

use super::embed::embed;
use super::image::ImageMemory;
use super::probe::Probe;
use super::restore::{self, RestoreRules};
use super::save;
use super::slot::{Job, Output, Progress, Slot, decode_error};
use super::{DecodeCounts, EngineError, PrefillReport};

mod checkpoint;
mod first_text;
mod held;
mod slot_work;
pub(super) mod stored;

pub(super) use slot_work::{SlotAction, SlotReport, SlotWork};

use held::Held;
use stored::Stored;

/// What a handle may ask for.
pub(super) enum Command {
    Job(Box<Job>),
    /// Something to be done with what a slot holds, once it is free.
    Slot(SlotWork),
    /// How much of a prompt's beginning is held.
    Held {
        prompt: Vec<Token>,
        reply: oneshot::Sender<usize>,
    },
    Shutdown,
}

/// What the loop must keep to.
#[derive(Clone, Debug)]
pub(super) struct Limits {
    /// Tokens that one sequence may hold.
    pub n_ctx: usize,
    /// Sequences.
    pub n_seq: usize,
    /// Tokens in one batch.
    pub n_batch: usize,
    /// Tokens of prompts in a batch that decodes too.
    pub prefill_chunk: usize,
    /// Tokens in one pass over the graph.
    pub n_ubatch: usize,
    /// Whether an embedding is one vector.
    pub is_pooled: bool,
    /// Sequences in one batch; 1 on HRX.
    pub max_seq_per_batch: usize,
    /// How a state file is checked.
    pub restore: RestoreRules,
}

/// Written by the loop, read by handles.
#[derive(Default)]
pub(super) struct Counts {
    n_decode: AtomicU64,
    n_sequences: AtomicU64,
}

impl Counts {
    pub fn read(&self) -> DecodeCounts {
        DecodeCounts { n_decode: self.n_decode.load(Relaxed), n_sequences: self.n_sequences.load(Relaxed) }
    }
}

pub(super) struct DecodeLoop {
    context: Context,
    commands: Receiver<Command>,
    limits: Limits,
    probe: Probe,
    stored: Option<Stored>,
    counts: Arc<Counts>,
    image_memory: ImageMemory,
    queue: VecDeque<Box<Job>>,
    slot_work: Vec<SlotWork>,
    /// Indexed by sequence.
    slots: Vec<Option<Slot>>,
    /// What the memory still holds of each sequence that no slot works on.
    held: Vec<Held>,
    needs_wipe: bool,
    n_begun: u64,
    batch: Batch,
    /// The slot that goes first into the next batch, so that a limit on sequences per batch starves nobody.
    first: usize,
}

/// A slot's share of a batch.
struct Share {
    seq: usize,
    n_tokens: usize,
    /// Where in the batch its logits are; `None` while its prompt is not finished.
    output: Option<usize>,
}

impl DecodeLoop {
    pub fn new(
        context: Context,
        commands: Receiver<Command>,
        limits: Limits,
        probe: Probe,
        stored: Option<Stored>,
    ) -> Self {
        let slots = (0..limits.n_seq).map(|_| None).collect();
        let held = (0..limits.n_seq).map(|_| Held::default()).collect();
        Self {
            context,
            commands,
            limits,
            probe,
            stored,
            counts: Arc::default(),
            image_memory: ImageMemory::default(),
            queue: VecDeque::new(),
            slot_work: Vec::new(),
            slots,
            held,
            needs_wipe: false,
            n_begun: 0,
            batch: Batch::new(),
            first: 0,
        }
    }

    pub fn counts(&self) -> Arc<Counts> {
        self.counts.clone()
    }

    /// Runs until the last handle is gone or one asks for a shutdown. What is unfinished then fails with `Stopped`.
    pub fn run(mut self) {
        while self.receive() {
            self.admit();
            self.step();
        }
        let running = self.slots.drain(..).flatten().map(|slot| slot.job);
        running.chain(self.queue.drain(..).map(|job| *job)).for_each(|job| job.fail(EngineError::Stopped));
    }

    /// Takes all commands that have arrived; waits for one when there is nothing else to do. False means stop.
    fn receive(&mut self) -> bool {
        let is_idle = self.queue.is_empty() && self.slot_work.is_empty() && self.slots.iter().all(Option::is_none);
        if is_idle {
            let Ok(command) = self.commands.recv() else { return false };
            if !self.take(command) {
                return false;
            }
        }
        loop {
            match self.commands.try_recv() {
                Ok(command) => {
                    if !self.take(command) {
                        return false;
                    }
                }
                Err(TryRecvError::Disconnected) => return false,
                Err(TryRecvError::Empty) => return true,
            }
        }
    }

    /// False for a shutdown.
    fn take(&mut self, command: Command) -> bool {
        match command {
            Command::Job(job) => self.queue.push_back(job),
            Command::Slot(work) => self.slot_work.push(work),
            Command::Held { prompt, reply } => {
                // Nobody may be waiting any more.
                let _ = reply.send(self.held_prefix(&prompt));
            }
            Command::Shutdown => return false,
        }
        true
    }

    /// Zeroes the memory when something in it was not a number. Waits until no slot works; false until then.
    fn wipe_if_needed(&mut self) -> bool {
        if !self.needs_wipe {
            return true;
        }
        if self.slots.iter().any(Option::is_some) {
            return false;
        }
        self.context.wipe();
        self.held.iter_mut().for_each(Held::clear);
        self.needs_wipe = false;
        true
    }

    /// Ends what nobody waits for, then gives waiting jobs, first come first served, to free sequences.
    fn admit(&mut self) {
        for seq in 0..self.slots.len() {
            if self.slots[seq].as_ref().is_some_and(Slot::cancelled) {
                self.free(seq);
            }
        }
        if !self.wipe_if_needed() {
            return;
        }
        let is_free = |work: &mut SlotWork| self.slots.get(work.slot).is_none_or(Option::is_none);
        let ready: Vec<SlotWork> = self.slot_work.extract_if(.., is_free).collect();
        ready.into_iter().for_each(|work| self.work_on_slot(work));
        self.queue.retain(|job| !job.cancel.is_raised() || job.then.is_some());
        while self.slots.iter().any(Option::is_none)
            && let Some(job) = self.queue.pop_front()
        {
            let Some(job) = wanted(job) else { continue };
            if !job.options.reuse_restored {
                self.forget_foreign_tokens();
            }
            let Some(seq) = self.best_free(&job) else {
                // The slot that it asks for is busy. First come, first served: the others wait with it.
                self.queue.push_front(job);
                break;
            };
            self.begin(seq, *job);
        }
    }

    fn begin(&mut self, seq: usize, job: Job) {
        let seq_id = seq_id(seq);
        self.n_begun += 1;
        let held = std::mem::take(&mut self.held[seq]);
        self.held[seq].used = self.n_begun;
        (self.held[seq].is_foreign, self.held[seq].is_from_file) = (job.restore.is_some(), false);
        if let Output::Embedding(reply) = &job.output {
            let _ = reply.send(embed(&mut self.context, seq_id, &job.tokens, self.limits.is_pooled));
            return;
        }
        let Some(path) = &job.restore else {
            let mut n_cached = match &job.output {
                _ if !job.options.reuse_prefix => 0,
                Output::File { .. } => self.keep_whole_passes(seq, &held, &job.tokens),
                _ => self.keep(seq, &held, &job.tokens),
            };
            self.held[seq].is_foreign = held.is_foreign && n_cached > 0;
            self.held[seq].is_from_file = held.is_from_file && n_cached > 0;
            self.held[seq].checkpoints = held.checkpoints;
            self.held[seq].cut_checkpoints(n_cached);
            let restore_time;
            (n_cached, restore_time) = self.take_stored(seq, &job, n_cached);
            if n_cached == 0 {
                self.context.clear_seq(seq_id);
            }
            self.occupy(seq, Slot::new(job, seq_id, n_cached, restore_time));
            return;
        };
        self.context.clear_seq(seq_id);
        let started = Instant::now();
        let restored = restore::restore(
            &mut self.context,
            seq_id,
            path,
            &job.tokens,
            &self.limits.restore,
            &mut self.probe,
            &mut self.image_memory,
        );
        match restored {
            Ok(n_restored) => {
                self.occupy(seq, Slot::new(job, seq_id, n_restored, Some(started.elapsed())));
                self.store_prompt(seq);
            }
            Err(reason) => {
                self.context.clear_seq(seq_id);
                job.fail(EngineError::Restore(reason.to_string()));
            }
        }
    }

    fn occupy(&mut self, seq: usize, slot: Slot) {
        self.slots[seq].insert(slot).tell_progress();
    }

    /// One batch over all slots.
    fn step(&mut self) {
        let shares = self.fill_batch();
        if shares.is_empty() {
            return;
        }
        self.make_checkpoints(&shares);
        let waiting =
            shares.iter().filter_map(|share| self.slots[share.seq].as_ref()).map(|slot| slot.job.cancel.clone());
        let waiting: Vec<CancelFlag> = waiting.collect();
        if let Err(error) = self.context.decode(&mut self.batch, waiting) {
            // Part of the batch may be in the memory; nothing of these sequences is to be trusted.
            shares.iter().for_each(|share| self.give_up(share.seq, &error));
            return;
        }
        self.counts.n_decode.fetch_add(1, Relaxed);
        self.counts.n_sequences.fetch_add(shares.len() as u64, Relaxed);
        for share in shares {
            self.advance(&share);
        }
        self.let_first_texts_go();
    }

    /// Every decoding slot gives one token, then prompts fill the rest of the batch, or a chunk of it where somebody waits for
    /// the next token of an answer.
    fn fill_batch(&mut self) -> Vec<Share> {
        self.batch.clear();
        let mut shares: Vec<Share> = Vec::new();
        let order = (0..self.slots.len()).map(|offset| (self.first + offset) % self.slots.len());
        let busy: Vec<usize> = order.filter(|&seq| self.slots[seq].is_some()).collect();
        // Where not all go into a batch, prompts have their turn as the others have.
        let is_limited = busy.len() > self.limits.max_seq_per_batch;
        let (decoding, prompts): (Vec<usize>, Vec<usize>) =
            busy.into_iter().partition(|&seq| is_limited || self.slots[seq].as_ref().is_some_and(|s| s.next.is_some()));
        let n_most = match decoding.len() {
            0 => self.limits.n_batch,
            n => self.limits.n_batch.min(n + self.limits.prefill_chunk),
        };
        let mut room = n_most;
        for seq in decoding.into_iter().chain(prompts) {
            if room == 0 || shares.len() >= self.limits.max_seq_per_batch {
                break;
            }
            let n_todo = self.slots[seq].as_ref().map_or(0, |slot| slot.todo().0.len());
            let n_tokens = n_todo.min(room);
            room -= n_tokens;
            shares.push(Share { seq, n_tokens, output: None });
        }
        self.first = shares.last().map_or(0, |share| (share.seq + 1) % self.slots.len());
        // llama.cpp evaluates streams together as long as their numbers go up by one (split_equal in llama-batch.cpp).
        shares.sort_unstable_by_key(|share| share.seq);
        shares.iter_mut().for_each(|share| self.push(share));
        shares
    }

    /// Puts a slot's share into the batch.
    fn push(&mut self, share: &mut Share) {
        let Some(slot) = &self.slots[share.seq] else { return };
        let (todo, completes) = slot.todo();
        for (offset, &token) in todo[..share.n_tokens].iter().enumerate() {
            let is_last = completes && offset + 1 == todo.len();
            let position = i32::try_from(slot.n_past + offset).unwrap_or(i32::MAX);
            let index = self.batch.push(token, position, slot.seq, is_last);
            share.output = is_last.then_some(index).or(share.output);
        }
    }

    /// Takes a slot's logits, if its part of the batch has any, and chooses its next token.
    fn advance(&mut self, share: &Share) {
        let Some(slot) = self.slots[share.seq].as_mut() else { return };
        slot.n_past += share.n_tokens;
        slot.tell_progress();
        let Some(index) = share.output else { return self.store_prompt(share.seq) };
        let is_prompt = slot.next.is_none();
        let vocab = self.context.model().vocab();
        let outcome = self.context.logits(index).map_err(decode_error).and_then(|logits| {
            let has_nan = || logits.iter().any(|logit| logit.is_nan());
            if is_prompt && has_nan() {
                return Ok(AfterLogits::NotNumbers);
            }
            if is_prompt {
                let argmax = crate::llama::argmax(logits).ok_or_else(|| decode_error(no_numbers()))?;
                let prompt = slot.prompt_finished(argmax)?;
                match &slot.job.output {
                    Output::Events(_) | Output::Embedding(_) => {}
                    Output::File { .. } => return Ok(AfterLogits::Save(prompt)),
                    Output::Logits(reply) => {
                        let _ = reply.send(Ok(logits.to_vec()));
                        return Ok(AfterLogits::Go(Progress::Finished));
                    }
                }
            }
            match slot.choose(logits, vocab, self.limits.n_ctx) {
                Err(_) if has_nan() => Ok(AfterLogits::NotNumbers),
                progress => progress.map(AfterLogits::Go),
            }
        });
        if is_prompt && matches!(outcome, Ok(AfterLogits::Go(_))) {
            self.store_prompt(share.seq);
        }
        match outcome {
            Ok(AfterLogits::Go(Progress::Continue)) => {}
            Ok(AfterLogits::Go(Progress::Finished)) => self.free(share.seq),
            Ok(AfterLogits::Save(prompt)) => self.save(share.seq, prompt),
            Ok(AfterLogits::NotNumbers) => self.not_numbers(share.seq),
            Err(error) => self.fail(share.seq, error),
        }
    }

    /// Logits are not numbers: something in the memory is not, by a restored state or by what was computed on one. The memory is
    /// zeroed; a job that brought no state has not caused this, and is done again.
    fn not_numbers(&mut self, seq: usize) {
        self.needs_wipe = true;
        let Some(mut slot) = self.slots[seq].take() else { return };
        self.context.clear_seq(seq_id(seq));
        if slot.is_in_prompt() && slot.job.restore.is_none() && !slot.job.is_retry {
            slot.job.is_retry = true;
            self.queue.push_front(Box::new(slot.job));
        } else {
            slot.job.fail(decode_error(no_numbers()));
        }
    }

    /// Writes a prefilled sequence to its file and ends the job.
    fn save(&mut self, seq: usize, prompt: super::PromptReport) {
        let Some(slot) = self.slots[seq].take() else { return };
        let Output::File { path, reply } = &slot.job.output else { return };
        let started = Instant::now();
        let saved = save::save(&mut self.context, slot.seq, &slot.job.tokens, &self.limits.restore.layout, path);
        let report = saved
            .map(|n_bytes| PrefillReport {
                n_tokens: slot.job.tokens.len(),
                n_cached: prompt.n_cached,
                argmax: prompt.argmax,
                evaluate: prompt.evaluate,
                save: started.elapsed(),
                n_bytes,
            })
            .map_err(|reason| EngineError::Save { path: path.display().to_string(), reason });
        let _ = reply.send(report);
        (self.held[seq].tokens, _) = slot.held();
    }

    /// Ends a slot. Its sequence keeps what it holds, for the next job that begins alike; a job of the same prompt follows at
    /// once.
    fn free(&mut self, seq: usize) {
        let Some(slot) = self.slots[seq].take() else { return };
        let uses_store = slot.job.uses_store;
        let (tokens, then) = slot.held();
        self.held[seq].cut_checkpoints(tokens.len());
        let next = then.and_then(wanted);
        if uses_store && next.is_none() {
            self.store_tokens(seq, &tokens);
        }
        self.held[seq].tokens = tokens;
        if let Some(job) = next {
            self.begin(seq, *job);
        }
    }

    /// Ends a slot whose batch was not finished. When that is because nobody waits for it any more, those behind it go on.
    fn give_up(&mut self, seq: usize, error: &crate::llama::Error) {
        let Some(slot) = self.slots[seq].take_if(|slot| slot.cancelled()) else {
            return self.fail(seq, decode_error(error.clone()));
        };
        self.context.clear_seq(seq_id(seq));
        if let Some(job) = slot.job.then.and_then(wanted) {
            self.begin(seq, *job);
        }
    }

    fn fail(&mut self, seq: usize, error: EngineError) {
        if let Some(slot) = self.slots[seq].take() {
            slot.job.fail(error);
        }
        self.context.clear_seq(seq_id(seq));
    }
}

enum AfterLogits {
    Go(Progress),
    Save(super::PromptReport),
    NotNumbers,
}

/// The job, or the first of those behind it that somebody still waits for.
fn wanted(mut job: Box<Job>) -> Option<Box<Job>> {
    while job.cancel.is_raised() {
        job = job.then.take()?;
    }
    Some(job)
}

fn seq_id(index: usize) -> SeqId {
    SeqId(i32::try_from(index).unwrap_or(i32::MAX))
}

fn no_numbers() -> crate::llama::Error {
    crate::llama::Error::Failed("the model's logits are not numbers".to_owned())
}
