//! What is good enough, and why. The same reasons, shorter, are in docs/writing-a-provider.md.

use crate::state::GgmlType;

/// Greedy tokens that are compared. How many agree is told, not judged: one near tie early on changes all that follow,
/// which the KL divergence measures without the luck.
pub const N_GREEDY: usize = 32;

/// Default of the most KL divergence, in nats, of the next token's distribution after any one prompt.
///
/// An honest provider that dequantizes the weights and computes in f32 is 0.002 to 0.007 from this build's kernels, which
/// round activations to 8 bits, and at worst 0.04, among special tokens; rounding to bf16 at every step makes it no worse
/// (measured with SmolLM2-135M Q4_1, whose few parameters make it jumpy). In llama.cpp's own measurements
/// (`tools/perplexity/README.md`, Llama 3 8B, means over many tokens) weights in q8_0 cost 0.0014, in q6_K 0.0055, in
/// q4_K_M 0.031, in q2_K 0.45. So 0.1 is well above honest arithmetic, and where a model begins to be another one. With a
/// large or hardly quantized model ask for less.
pub const MAX_KL: f64 = 0.1;

/// Most `|a - b| / |a|` of one tensor, for a cache of f16 or f32.
///
/// Rounding to f16 is 0.0002 to 0.0005, arithmetic in bf16 0.003 to 0.008 after many layers. The largest honest
/// difference is between two ways to multiply quantized weights: ggml's CPU kernels round the activations to 8 bits for
/// that, a provider that dequantizes the weights does not. With SmolLM2-135M Q4_1 this makes 0.05 of V in the later layers
/// at any length, and up to 0.11 with one to three positions; with Gemma 3 270M Q4_K_M, llama.cpp evaluating a prompt in
/// other batches than we do makes 0.08. What is wrong (another rope, a transposed head, a missing
/// norm) is off by 0.3 and more.
pub const MAX_RELATIVE: f64 = 0.2;

/// Most deviation of a tensor's gain from 1, before noise is allowed for: see [`gain_limit`].
///
/// Half of a scale error of 1 %. One truncation to bf16 in place of rounding shrinks values by 0.28 % on average and is
/// within; a provider that truncates at every step shrinks K of the first layer by 1 % already, and is told (measured: its
/// KL divergence is up to 0.12).
pub const MAX_GAIN_ERROR: f64 = 0.005;

/// Most `|a - b| / |a|` for a cache of this type. Both caches are rounded, so quantized types add twice their own noise.
pub fn relative_limit(ty: GgmlType) -> f64 {
    let rounding = match ty.name {
        "bf16" => 0.003,
        "q8_0" => 0.008,
        "q4_0" => 0.12,
        _ => 0.0,
    };
    MAX_RELATIVE + 2.0 * rounding
}

/// Most deviation of the gain from 1, for a tensor of `n_rows` rows whose error, once the gain is taken out, is `residual`
/// of its norm.
///
/// A relative error cannot find a tensor that is scaled by 1.01: honest arithmetic is off by as much. But an honest error
/// has no direction. Its projection on the right values, which is what moves the gain, averages out over the rows: with
/// independent rows to `residual / sqrt(n_rows)` (the values within a row come from one vector and count as one).
/// Four times that is allowed on top of [`MAX_GAIN_ERROR`].
pub fn gain_limit(residual: f64, n_rows: usize) -> f64 {
    #[allow(clippy::cast_precision_loss)] // a count of rows
    let n_rows = n_rows.max(1) as f64;
    MAX_GAIN_ERROR + 4.0 * residual / n_rows.sqrt()
}

/// Most nats by which this build may prefer its own argmax to the provider's: less is a near tie.
///
/// For small errors of the logits the KL divergence is half their variance, so a divergence of `max_kl` allows an error
/// of `sqrt(2 max_kl)` in each logit, and twice that between two of them.
pub fn near_tie(max_kl: f64) -> f64 {
    2.0 * (2.0 * max_kl).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_of_one_percent_is_found_under_rounding_and_noise_is_not_taken_for_one() {
        // f16 rounding, one row
        assert!(gain_limit(5e-4, 1) < 0.01);
        // bf16 arithmetic from two rows on
        assert!(gain_limit(8e-3, 64) < 0.01);
        // one row with a large error says nothing about scale
        assert!(gain_limit(0.05, 1) > 0.2);
        assert!((near_tie(0.02) - 0.4).abs() < 1e-4);
    }
}
