//! What sequences still hold when no slot works on them, and how much of it serves the next job.

use crate::llama::{SeqId, Token};

use super::{DecodeLoop, seq_id};
use crate::engine::slot::Job;

/// The tokens of a sequence whose last job is done; the next one may begin with the same.
#[derive(Default)]
pub(super) struct Held {
    pub tokens: Vec<Token>,
    /// Another program computed them. They serve the request that brought them and no other: what is evaluated here must not
    /// depend on whether a provider was right.
    pub is_foreign: bool,
    /// When it was last used, in jobs begun since the start.
    pub used: u64,
}

impl DecodeLoop {
    /// The free sequence that holds most of the job's beginning; of those that hold nothing of worth, the one that was not
    /// used for longest.
    pub(super) fn best_free(&self, job: &Job) -> Option<usize> {
        let wanted = |seq: &usize| job.options.slot.is_none_or(|slot| slot as usize == *seq);
        let free = (0..self.slots.len()).filter(|&seq| self.slots[seq].is_none()).filter(wanted);
        free.max_by_key(|&seq| {
            let held = &self.held[seq];
            let n_common =
                if job.options.reuse_prefix && !held.is_foreign { common_prefix(&held.tokens, &job.tokens) } else { 0 };
            // A template's first words are common to all chats.
            let is_worth = n_common * 10 >= job.tokens.len();
            (if is_worth { n_common } else { 0 }, std::cmp::Reverse(held.used))
        })
    }

    /// Between requests; answers to one request follow each other without this.
    pub(super) fn forget_foreign_tokens(&mut self) {
        for seq in 0..self.held.len() {
            if self.slots[seq].is_none() && std::mem::take(&mut self.held[seq].is_foreign) {
                self.held[seq].tokens.clear();
                self.context.clear_seq(seq_id(seq));
            }
        }
    }

    /// Cuts a sequence that holds the tokens `held` down to what it has in common with a prompt, of which at least the last
    /// token is left to evaluate. Returns how many tokens stay; 0 when the memory cannot be cut there.
    pub(super) fn keep(&mut self, seq: SeqId, held: &[Token], prompt: &[Token]) -> usize {
        let n_common = common_prefix(held, prompt).min(prompt.len().saturating_sub(1));
        if n_common == 0 || !self.reaches_back(seq, held.len(), n_common) {
            return 0;
        }
        if n_common == held.len() {
            return n_common;
        }
        let from = i32::try_from(n_common).unwrap_or(i32::MAX);
        match self.context.remove(seq, from, -1) {
            Ok(true) => n_common,
            Ok(false) | Err(_) => 0,
        }
    }

    /// As [`keep`](Self::keep), so that the result is bit for bit that of a cold run: kernels round otherwise in passes of
    /// another size, so only whole passes stay, which a cold run evaluates alike. The last token of what is held was evaluated
    /// alone, so its pass was not whole. A memory that cannot step back has no such choice, and goes on from its end.
    pub(super) fn keep_whole_passes(&mut self, seq: SeqId, held: &[Token], prompt: &[Token]) -> usize {
        let n_ubatch = self.limits.n_ubatch.max(1);
        let n_common = common_prefix(held, prompt).min(prompt.len().saturating_sub(1));
        if n_common == held.len() && !self.limits.restore.can_step_back {
            return self.keep(seq, held, prompt);
        }
        let n_whole = n_common.min(held.len().saturating_sub(1)) / n_ubatch * n_ubatch;
        self.keep(seq, held, &prompt[..(n_whole + 1).min(prompt.len())])
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

/// How many tokens two sequences begin with alike.
fn common_prefix(a: &[Token], b: &[Token]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
