//! Positions and sequences of the KV cache.

use super::error::check;
use super::{Context, Error};

/// A sequence of the context, `0..n_seq`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeqId(pub i32);

/// A position in a sequence; the first token is at 0.
pub type Pos = i32;

impl Context {
    /// Whether there is a memory at all. Encoders have none: they see a whole text at once.
    pub fn has_memory(&self) -> bool {
        // SAFETY: the context is alive.
        unsafe { !llama_sys::llama_get_memory(self.as_ptr()).is_null() }
    }

    /// Forgets a sequence.
    pub fn clear_seq(&mut self, seq: SeqId) {
        // Removing a whole sequence never fails (llama.h); an exception would leave the memory as it was, and the next
        // use compares positions before it trusts them.
        if let Err(err) = self.remove(seq, 0, -1) {
            tracing::error!("clearing sequence {}: {err}", seq.0);
        }
    }

    /// Forgets all sequences and zeroes the memory. [`clear_seq`](Self::clear_seq) only frees cells; NaN in a freed one goes
    /// on: the next sequence's running state begins as the old one times 0, and masked cells are weighed with 0.
    pub fn wipe(&mut self) {
        // SAFETY: the context is alive and owned by this thread.
        unsafe { llama_sys::llama_memory_clear(llama_sys::llama_get_memory(self.as_ptr()), true) };
    }

    /// Removes positions `[from, to)` of a sequence; `to < 0` means to the end. False when the memory cannot forget only
    /// a part (recurrent models).
    pub fn remove(&mut self, seq: SeqId, from: Pos, to: Pos) -> Result<bool, Error> {
        let mut removed = false;
        // SAFETY: the context is alive and owned by this thread; `removed` outlives the call.
        check(|err| unsafe { llama_sys::onebit_memory_seq_rm(self.as_ptr(), seq.0, from, to, &raw mut removed, err) })?;
        Ok(removed)
    }

    /// First and last position that the memory holds of a sequence; `None` when it is empty. The first is above 0 for
    /// sliding-window models (the window) and for recurrent ones (only the last state is kept).
    pub fn positions(&self, seq: SeqId) -> Option<(Pos, Pos)> {
        // SAFETY: the context is alive; both calls read its bookkeeping only.
        let (min, max) = unsafe {
            let memory = llama_sys::llama_get_memory(self.as_ptr());
            (llama_sys::llama_memory_seq_pos_min(memory, seq.0), llama_sys::llama_memory_seq_pos_max(memory, seq.0))
        };
        (min >= 0 && max >= 0).then_some((min, max))
    }
}
