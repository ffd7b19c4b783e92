//! Log-probabilities of tokens, from one row of logits.

use crate::llama::Token;

use super::TokenLogprob;

/// Of the chosen token, and of the `n` most likely ones. A softmax over all logits, as the model gave them.
pub(super) fn of(logits: &[f32], chosen: Token, n: usize) -> TokenLogprob {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    // Summed in f64: a vocabulary of 200,000 small terms loses digits in f32.
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit - max).exp()).sum();
    let log_sum = f64::from(max) + sum.ln();
    #[allow(clippy::cast_possible_truncation)] // a logarithm of f32 values
    let logprob = |index: usize| match (f64::from(logits[index]) - log_sum) as f32 {
        value if value.is_finite() => value.min(0.0),
        // JSON has no infinity.
        _ => f32::MIN,
    };
    let index = usize::try_from(chosen.0).unwrap_or(0);
    let top = top(logits, n).into_iter().map(|index| (Token(i32::try_from(index).unwrap_or(0)), logprob(index)));
    TokenLogprob { token: chosen, logprob: logprob(index), top: top.collect() }
}

/// Indices of the `n` largest, largest first; the lower index first among equals.
fn top(logits: &[f32], n: usize) -> Vec<usize> {
    let by_logit = |a: &usize, b: &usize| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b));
    let n = n.min(logits.len());
    let mut order: Vec<usize> = (0..logits.len()).collect();
    if n == 0 {
        return Vec::new();
    }
    if n < order.len() {
        order.select_nth_unstable_by(n - 1, by_logit);
        order.truncate(n);
    }
    order.sort_unstable_by(by_logit);
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_sum_to_one_and_come_best_first() {
        let logits = [1.0, 3.0, 2.0, 3.0, f32::NEG_INFINITY];
        let all = of(&logits, Token(2), 5);
        let ids: Vec<i32> = all.top.iter().map(|(token, _)| token.0).collect();
        assert_eq!(ids, [1, 3, 2, 0, 4]);
        let sum: f32 = all.top.iter().map(|(_, logprob)| logprob.exp()).sum();
        assert!((sum - 1.0).abs() < 1e-6, "{sum}");
        assert_eq!(all.logprob, all.top[2].1);
        assert_eq!(all.top[4].1, f32::MIN, "a finite number in place of minus infinity");
        assert_eq!(of(&logits, Token(1), 2).top.len(), 2);
        assert!(of(&logits, Token(1), 0).top.is_empty());
    }
}
