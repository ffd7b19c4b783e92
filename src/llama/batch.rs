//! Tokens for one call of `llama_decode`. The arrays are Rust's; C borrows them for the call.

use super::{Pos, SeqId, Token};

/// A batch of tokens, each at a position of one sequence.
#[derive(Debug, Default)]
pub struct Batch {
    tokens: Vec<Token>,
    positions: Vec<Pos>,
    sequences: Vec<SeqId>,
    outputs: Vec<i8>,
    // Scratch that C's struct points into.
    n_seq_id: Vec<i32>,
    seq_id: Vec<*mut i32>,
}

// SAFETY: the raw pointers in `seq_id` are written anew from `sequences` by every lend() and never read between calls.
unsafe impl Send for Batch {}

impl Batch {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether it has no tokens.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Takes all tokens out.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.positions.clear();
        self.sequences.clear();
        self.outputs.clear();
    }

    /// Adds a token; with `output`, its logits are kept. Returns its index in the batch.
    pub fn push(&mut self, token: Token, position: Pos, sequence: SeqId, output: bool) -> usize {
        self.tokens.push(token);
        self.positions.push(position);
        self.sequences.push(sequence);
        self.outputs.push(i8::from(output));
        self.tokens.len() - 1
    }

    /// The C view; valid until the batch is changed or dropped.
    pub(super) fn lend(&mut self) -> llama_sys::llama_batch {
        self.n_seq_id.clear();
        self.n_seq_id.resize(self.tokens.len(), 1);
        self.seq_id.clear();
        // One sequence for each token: a pointer to the one id in `sequences` (SeqId is an i32).
        self.seq_id.extend(self.sequences.iter_mut().map(|seq| &raw mut seq.0));
        llama_sys::llama_batch {
            n_tokens: i32::try_from(self.tokens.len()).unwrap_or(i32::MAX),
            token: self.tokens.as_mut_ptr().cast(),
            embd: std::ptr::null_mut(),
            pos: self.positions.as_mut_ptr(),
            n_seq_id: self.n_seq_id.as_mut_ptr(),
            seq_id: self.seq_id.as_mut_ptr(),
            logits: self.outputs.as_mut_ptr(),
        }
    }
}
