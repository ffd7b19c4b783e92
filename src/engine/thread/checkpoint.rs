//! Where memories that cannot step back can be taken up again.
//!
//! A running state has no past, and a window forgets what has left it. So what cannot be taken back is copied before a
//! prompt's last token is evaluated; the next request that shares the prompt goes on from there, though what was generated
//! after it was another answer, or was left out of the conversation.

use super::{DecodeLoop, Held, Output, Share, seq_id};

/// Copies that are kept of one sequence; each is as large as a running state, or a window.
const MOST: usize = 4;

/// The memory of a sequence's first `n_tokens` tokens, as far as it cannot step back.
pub(super) struct Checkpoint {
    n_tokens: usize,
    data: Vec<u8>,
}

impl Held {
    /// What is held now are the first `n_tokens` tokens.
    pub(super) fn cut_checkpoints(&mut self, n_tokens: usize) {
        self.checkpoints.retain(|checkpoint| checkpoint.n_tokens <= n_tokens);
    }

    /// The tokens from which a sequence that shares its first `n_common` can go on.
    pub(super) fn checkpoint(&self, n_common: usize) -> Option<usize> {
        self.checkpoints.iter().map(|checkpoint| checkpoint.n_tokens).filter(|&n| n <= n_common).max()
    }
}

impl DecodeLoop {
    /// Copies what is to be copied before this batch is evaluated.
    pub(super) fn make_checkpoints(&mut self, shares: &[Share]) {
        if self.limits.restore.can_step_back && self.limits.restore.n_swa == 0 {
            return;
        }
        for share in shares {
            let Some(slot) = &self.slots[share.seq] else { continue };
            let n_tokens = slot.n_past;
            let is_last = slot.is_in_prompt() && n_tokens > 0 && n_tokens + 1 == slot.job.tokens.len();
            // A provider's files are made of whole passes only.
            let reuses = slot.job.options.reuse_prefix && !matches!(slot.job.output, Output::File { .. });
            if !is_last || !reuses || self.held[share.seq].checkpoint(n_tokens) == Some(n_tokens) {
                continue;
            }
            // Without it the next prompt is evaluated whole, no worse.
            let Ok(data) = self.context.partial_state(seq_id(share.seq)) else { continue };
            let checkpoints = &mut self.held[share.seq].checkpoints;
            if checkpoints.len() == MOST {
                checkpoints.remove(0);
            }
            checkpoints.push(Checkpoint { n_tokens, data });
        }
    }

    /// Takes a sequence back to its checkpoint at `n_tokens`. False when that fails; the sequence is of no use then.
    pub(super) fn go_back(&mut self, seq: usize, held: &Held, n_tokens: usize) -> bool {
        let seq_id = seq_id(seq);
        let Some(checkpoint) = held.checkpoints.iter().find(|checkpoint| checkpoint.n_tokens == n_tokens) else {
            return false;
        };
        let Ok(from) = i32::try_from(n_tokens) else { return false };
        self.context.restore_partial(seq_id, &checkpoint.data).is_ok()
            && self.context.remove(seq_id, from, -1).is_ok_and(|removed| removed)
            && self.context.positions(seq_id).is_some_and(|(_, last)| last + 1 == from)
    }
}
