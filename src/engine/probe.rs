//! What structure cannot show: whether the values in a state file are this model's.
//!
//! Other weights of the same shape, K and V of another layer order, another rope or rotation setting all make files that
//! pass every check and quietly change the answer. So, from time to time, the KV of the prompt's first tokens is computed
//! here and compared with the file's rows, layer by layer.

use std::io::Cursor;
use std::sync::Arc;

use crate::llama::{Batch, Context, ContextParams, Model, SeqId, Token};
use crate::state::layout::SectionKind;
use crate::state::{self, BlockDiff, Layout};

/// Tokens that are computed and compared. Enough for rope to differ between positions, few enough to cost one small pass.
const N_TOKENS: usize = 8;

/// Largest accepted relative error (L2, of all compared rows of one tensor) for caches of float or 8-bit values.
///
/// What a right provider may differ by: f16 rounding of equal values 3e-4; another order of summation in f32, up to 1e-3;
/// computing in bf16 (8 bits of mantissa, so 2e-3 for each rounding, which adds up over the layers), 1e-2 to 3e-2 in the
/// last layers; a q8_0 cache adds 5e-3. What a wrong one differs by: values of other weights are uncorrelated, 1.4; another
/// layer's, the same; K without rope or with it turned the other way, above 0.5. The limit stands well above the first and
/// well below the second.
const LIMIT: f64 = 0.2;

/// The same for caches of 4 and 5 bits, whose own rounding is 3e-2 (q5) to 9e-2 (q4).
const LIMIT_COARSE: f64 = 0.3;

/// A running state can only be compared as a whole, which means to evaluate the prompt here. Longer ones are not.
const MAX_RUNNING: usize = 256;

/// A tensor whose rows are not what this model computes.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Mismatch {
    pub block: state::BlockId,
    pub relative_error: f64,
    pub limit: f64,
    pub n_tokens: usize,
}

impl std::fmt::Display for Mismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "the values are not this model's: {} differs from what is computed here for the first {} tokens by {:.2} \
             (relative error, at most {} expected): other weights, layer order or rope setting?",
            self.block, self.n_tokens, self.relative_error, self.limit
        )
    }
}

/// What came of a probe.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Verdict {
    Good,
    Wrong(Mismatch),
    /// There was nothing to compare: a window that has moved on, or a running state of a long prompt.
    NotCompared,
}

/// Decides when to probe, and does it in a context of its own, so that the serving one is left alone.
pub(super) struct Probe {
    model: Arc<Model>,
    params: ContextParams,
    /// Probe the first restore and every n-th after it; `None` never.
    every: Option<u32>,
    /// Restores since one passed; `None` before the first did.
    since_passed: Option<u32>,
    context: Option<Context>,
}

impl Probe {
    /// `params` are the serving context's: cache types and flash attention must be the same, its size need not.
    pub fn new(model: Arc<Model>, params: &ContextParams, every: Option<u32>) -> Self {
        let n_tokens = N_TOKENS as u32;
        let n_ctx = if model.is_recurrent() { MAX_RUNNING as u32 } else { n_tokens };
        let params = ContextParams {
            n_ctx,
            n_batch: n_tokens,
            n_ubatch: n_tokens,
            n_seq: 1,
            unified: true,
            embeddings: None,
            ..params.clone()
        };
        Self { model, params, every: every.filter(|&n| n > 0), since_passed: None, context: None }
    }

    /// Whether the next restore is one to look at. Stays so until one has passed: a provider that was wrong once is looked at
    /// again.
    pub fn is_due(&self) -> bool {
        let Some(every) = self.every else { return false };
        self.since_passed.is_none_or(|n| n + 1 >= every)
    }

    /// Counts a restore; `compared` says that its values were looked at and found good.
    pub fn count(&mut self, compared: bool) {
        self.since_passed = if compared { Some(0) } else { self.since_passed.map(|n| n.saturating_add(1)) };
    }

    /// Compares the first rows of a proven file, given as its bytes, with this model's own.
    pub fn compare(&mut self, file: &[u8], layout: &Layout, states: &[Token]) -> Result<Verdict, String> {
        let is_running = layout.sections.iter().all(|section| section.kind == SectionKind::Recurrent);
        let n_tokens = if is_running { states.len() } else { states.len().min(N_TOKENS) };
        if is_running && n_tokens > MAX_RUNNING {
            return Ok(Verdict::NotCompared);
        }
        let tokens = &states[..n_tokens];
        let own = self.own_state(tokens)?;
        let n = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
        let (own_len, len) = (own.len() as u64, file.len() as u64);
        let diff = state::diff((&mut Cursor::new(own), own_len), (&mut Cursor::new(file), len), layout, Some(n));
        let blocks = diff.map_err(|err| err.to_string())?.blocks;
        Ok(match worst(&blocks, tokens.len()) {
            Some(mismatch) => Verdict::Wrong(mismatch),
            None if blocks.iter().any(|block| block.errors.is_some()) => Verdict::Good,
            None => Verdict::NotCompared,
        })
    }

    /// The state file of these tokens, as this model computes it.
    fn own_state(&mut self, tokens: &[Token]) -> Result<Vec<u8>, String> {
        let context = match &mut self.context {
            Some(context) => context,
            empty => {
                let context = Context::new(self.model.clone(), &self.params).map_err(|err| err.to_string())?;
                empty.insert(context)
            }
        };
        let seq = SeqId(0);
        context.clear_seq(seq);
        let mut batch = Batch::new();
        let mut position = 0;
        for chunk in tokens.chunks(N_TOKENS) {
            batch.clear();
            for &token in chunk {
                batch.push(token, position, seq, position as usize + 1 == tokens.len());
                position += 1;
            }
            context.decode(&mut batch, Vec::new()).map_err(|err| err.to_string())?;
        }
        context.state_bytes(seq, tokens).map_err(|err| err.to_string())
    }
}

/// The tensor that is furthest beyond its limit.
fn worst(blocks: &[BlockDiff], n_tokens: usize) -> Option<Mismatch> {
    let beyond = blocks.iter().filter_map(|block| {
        let relative_error = block.errors?.relative_l2;
        let limit = limit(block);
        (relative_error > limit).then_some(Mismatch { block: block.id, relative_error, limit, n_tokens })
    });
    beyond.max_by(|a, b| a.relative_error.total_cmp(&b.relative_error))
}

fn limit(block: &BlockDiff) -> f64 {
    let is_coarse =
        block.row.ty.name.contains("q4") || block.row.ty.name.contains("q5") || block.row.ty.name == "iq4_nl";
    if is_coarse { LIMIT_COARSE } else { LIMIT }
}
