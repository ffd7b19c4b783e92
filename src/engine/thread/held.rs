//! What sequences still hold when no slot works on them, and how much of it serves the next job.

use crate::llama::{SeqId, Token};

use super::checkpoint::Checkpoint;
use super::{DecodeLoop, seq_id};
use crate::engine::slot::Job;

/// The tokens of a sequence whose last job is done; the next one may begin with the same.
#[derive(Default)]
pub(super) struct Held {
    pub tokens: Vec<Token>,
    /// Another program computed them. They serve the request that brought them and no other: what is evaluated here must not
    /// depend on whether a provider was right.
    pub is_foreign: bool,
    /// A slot file brought them, of which nobody knows who computed it: they go to no store.
    pub is_from_file: bool,
    /// When it was last used, in jobs begun since the start.
    pub used: u64,
    /// Of the first tokens; the oldest first.
    pub checkpoints: Vec<Checkpoint>,
}

impl Held {
    pub(super) fn clear(&mut self) {
        self.tokens.clear();
        self.checkpoints.clear();
        (self.is_foreign, self.is_from_file) = (false, false);
    }
}

impl DecodeLoop {
    /// The free sequence that holds most of the job's beginning; of those that hold nothing of worth, the one that was not
    /// used for longest.
    pub(super) fn best_free(&self, job: &Job) -> Option<usize> {
        let wanted = |seq: &usize| job.options.slot.is_none_or(|slot| slot as usize == *seq);
        let free = (0..self.slots.len()).filter(|&seq| self.slots[seq].is_none()).filter(wanted);
        free.max_by_key(|&seq| {
            let held = &self.held[seq];
            let n_common = if job.options.reuse_prefix && may_serve(held, job) {
                common_prefix(&held.tokens, &job.tokens)
            } else {
                0
            };
            // A template's first words are common to all chats.
            let is_worth = n_common * 10 >= job.tokens.len();
            (if is_worth { n_common } else { 0 }, std::cmp::Reverse(held.used))
        })
    }

    /// How many tokens of a prompt's beginning some slot holds, or will when its job is done.
    pub(super) fn held_prefix(&self, prompt: &[Token]) -> usize {
        let most = prompt.len().saturating_sub(1);
        let of_slot = |seq: usize| match &self.slots[seq] {
            None => {
                let held = &self.held[seq].tokens;
                let n_common = common_prefix(held, prompt).min(most);
                let reaches = self.reaches_back(seq_id(seq), held.len(), n_common);
                if reaches { n_common } else { self.held[seq].checkpoint(n_common).unwrap_or(0) }
            }
            Some(slot) => {
                let (n_common, n_known) = slot.common_prefix(prompt);
                let n_common = n_common.min(most);
                if self.limits.restore.can_step_back || n_common == n_known { n_common } else { 0 }
            }
        };
        (0..self.slots.len()).map(of_slot).max().unwrap_or(0)
    }

    /// Between requests; answers to one request follow each other without this.
    pub(super) fn forget_foreign_tokens(&mut self) {
        for seq in 0..self.held.len() {
            if self.slots[seq].is_none() && std::mem::take(&mut self.held[seq].is_foreign) {
                self.held[seq].clear();
                self.context.clear_seq(seq_id(seq));
            }
        }
    }

    /// Cuts a sequence down to what it has in common with a prompt, of which at least the last token is left to evaluate.
    /// Returns how many tokens stay; 0 when the memory cannot be cut there, nor at a checkpoint before.
    pub(super) fn keep(&mut self, seq: usize, held: &Held, prompt: &[Token]) -> usize {
        let n_common = common_prefix(&held.tokens, prompt).min(prompt.len().saturating_sub(1));
        if self.cut(seq, held.tokens.len(), n_common) {
            return n_common;
        }
        held.checkpoint(n_common).filter(|&n_tokens| self.go_back(seq, held, n_tokens)).unwrap_or(0)
    }

    /// Cuts a sequence of `n_held` tokens down to its first ones, where the memory allows that.
    fn cut(&mut self, seq: usize, n_held: usize, n_tokens: usize) -> bool {
        if n_tokens == 0 || !self.reaches_back(seq_id(seq), n_held, n_tokens) {
            return false;
        }
        let from = i32::try_from(n_tokens).unwrap_or(i32::MAX);
        n_tokens == n_held || self.context.remove(seq_id(seq), from, -1).is_ok_and(|removed| removed)
    }

    /// As [`keep`](Self::keep), so that the result is bit for bit that of a cold run: kernels round otherwise in passes of
    /// another size, so only whole passes stay, which a cold run evaluates alike. The last token of what is held was evaluated
    /// alone, so its pass was not whole. A memory that cannot step back has no such choice, and goes on from its end. Of a window
    /// whose ring has gone round nothing stays: what follows would lie elsewhere, and be added up in another order.
    pub(super) fn keep_whole_passes(&mut self, seq: usize, held: &Held, prompt: &[Token]) -> usize {
        let n_ubatch = self.limits.n_ubatch.max(1);
        let n_held = held.tokens.len();
        let n_common = common_prefix(&held.tokens, prompt).min(prompt.len().saturating_sub(1));
        let n_kept = match n_common == n_held && !self.limits.restore.can_step_back {
            true => n_common,
            false if self.has_gone_round(n_held) => 0,
            false => n_common.min(n_held.saturating_sub(1)) / n_ubatch * n_ubatch,
        };
        if self.cut(seq, n_held, n_kept) { n_kept } else { 0 }
    }

    /// Whether this many tokens are more than a window's cache has cells, by which it is a ring (llama_kv_cache_iswa).
    fn has_gone_round(&self, n_held: usize) -> bool {
        let n_swa = self.limits.restore.n_swa as usize;
        n_swa > 0 && n_held > (n_swa + self.limits.n_ubatch).next_multiple_of(256)
    }

    /// Whether position `next` can be evaluated on what the memory holds: a running state has no past, and a window may have
    /// moved beyond the tokens that this position attends to.
    fn reaches_back(&self, seq: SeqId, n_held: usize, next: usize) -> bool {
        let Some((first, last)) = self.context.positions(seq) else { return false };
        let is_whole = usize::try_from(last).is_ok_and(|last| last + 1 == n_held);
        if !is_whole {
            return false;
        }
        if next == n_held {
            return true;
        }
        let rules = &self.limits.restore;
        let window = rules.n_swa as usize;
        let oldest = if window == 0 { 0 } else { (next + 1).saturating_sub(window) };
        rules.can_step_back && usize::try_from(first).is_ok_and(|first| first <= oldest)
    }
}

fn may_serve(held: &Held, job: &Job) -> bool {
    !held.is_foreign || job.options.reuse_restored
}

/// How many tokens two sequences begin with alike.
fn common_prefix(a: &[Token], b: &[Token]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
