//! Whether a prompt is handed over, or evaluated here: the mode, what both ways have cost, and a rest for a provider that
//! keeps failing.

use std::time::{Duration, Instant};

/// When prompts are handed over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HandoffMode {
    /// Every prompt, whole.
    #[default]
    Always,
    /// Where that is expected to be quicker than to evaluate here what the slot does not hold yet.
    Auto,
    /// None: the provider is not started.
    Never,
}

/// Failures in a row after which a provider is rested.
const FAILURES: u32 = 3;
/// Between the trials of a provider that is rested.
const REST: Duration = Duration::from_secs(30);
/// What a new measurement leaves of the weight of older ones.
const DECAY: f64 = 0.9;
/// One decision in so many goes the other way, so that a way that has become quicker is found again.
const EXPLORE_EVERY: u32 = 32;
/// A way is explored only where it is not expected to cost more than this many times the other.
const EXPLORE_LIMIT: f64 = 4.0;
/// Tokens up to which the cost of evaluating here is found out by doing it.
const UNKNOWN_LIMIT: usize = 256;

/// What is done with a prompt.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Choice {
    /// The provider evaluates it. A sentence where there was a choice.
    HandOver(Option<String>),
    /// It is evaluated here. A sentence where the operator is to know why.
    Here(Option<String>),
}

/// Costs and failures so far.
pub(super) struct Policy {
    mode: HandoffMode,
    min_tokens: usize,
    provider: Cost,
    here: Cost,
    n_choices: u32,
    n_failures: u32,
    /// No trial before this moment.
    rests_until: Option<Instant>,
}

impl Policy {
    pub fn new(mode: HandoffMode, min_tokens: usize) -> Self {
        let (provider, here) = (Cost::default(), Cost::default());
        Self { mode, min_tokens, provider, here, n_choices: 0, n_failures: 0, rests_until: None }
    }

    /// Whether what the slot holds from earlier requests is continued, whoever computed it.
    pub fn continues_slot(&self) -> bool {
        self.mode == HandoffMode::Auto
    }

    /// Decides for a prompt of `n_prompt` tokens, of which the slot holds the first `n_held`.
    pub fn choose(&mut self, n_prompt: usize, n_held: usize, now: Instant) -> Choice {
        if self.mode == HandoffMode::Never {
            return Choice::Here(None);
        }
        if n_prompt < self.min_tokens {
            return Choice::Here(None);
        }
        if self.rests_until.is_some_and(|until| now < until) {
            return Choice::Here(None);
        }
        let choice = match self.mode {
            HandoffMode::Auto => self.weigh(n_prompt, n_prompt.saturating_sub(n_held).max(1)),
            _ => Choice::HandOver(None),
        };
        if let (Choice::HandOver(_), Some(until)) = (&choice, &mut self.rests_until) {
            // One trial, however many ask meanwhile.
            *until = now + REST;
        }
        choice
    }

    fn weigh(&mut self, n_prompt: usize, n_missing: usize) -> Choice {
        let (provider, here) = match (self.provider.estimate(n_prompt), self.here.estimate(n_missing)) {
            (_, None) if n_missing <= UNKNOWN_LIMIT => {
                return Choice::Here(Some(format!("{n_missing} tokens: to find out what they cost here")));
            }
            (None, _) => return Choice::HandOver(Some("to find out what it costs".to_owned())),
            (_, None) => return Choice::HandOver(Some("what it costs here is not known yet".to_owned())),
            (Some(provider), Some(here)) => (provider, here),
        };
        self.n_choices = self.n_choices.wrapping_add(1);
        let (quicker, slower) = (provider.min(here), provider.max(here));
        let explores = self.n_choices.is_multiple_of(EXPLORE_EVERY) && slower <= EXPLORE_LIMIT * quicker;
        let word = if explores { ", to see whether that still holds" } else { "" };
        let why = format!(
            "{n_missing} of {n_prompt} tokens are new: {:.0} ms by the provider, {:.0} ms here expected{word}",
            provider * 1e3,
            here * 1e3
        );
        match (provider < here) != explores {
            true => Choice::HandOver(Some(why)),
            false => Choice::Here(Some(why)),
        }
    }

    /// A handoff of `n_prompt` tokens that worked, and what it took until the prompt was in the memory.
    pub fn handed_over(&mut self, n_prompt: usize, took: Duration) {
        self.provider.add(n_prompt, took);
        (self.n_failures, self.rests_until) = (0, None);
    }

    /// The evaluation of `n_tokens` tokens here.
    pub fn evaluated(&mut self, n_tokens: usize, took: Duration) {
        // A single token is a decoding step, which says little of what several cost at once.
        if n_tokens > 1 {
            self.here.add(n_tokens, took);
        }
    }

    /// A provider that failed. Returns what the operator is to know, once.
    pub fn failed(&mut self, now: Instant) -> Option<String> {
        self.n_failures = self.n_failures.saturating_add(1);
        if self.n_failures < FAILURES {
            return None;
        }
        self.rests_until = Some(now + REST);
        (self.n_failures == FAILURES).then(|| {
            format!("the provider failed {FAILURES} times in a row and is tried once every {} s now", REST.as_secs())
        })
    }
}

/// Time as a straight line over the number of tokens, fitted to what was measured, the latest counting most.
#[derive(Default)]
struct Cost {
    weight: f64,
    tokens: f64,
    seconds: f64,
    tokens_squared: f64,
    tokens_seconds: f64,
}

impl Cost {
    fn add(&mut self, n_tokens: usize, took: Duration) {
        let (tokens, seconds) = (n_tokens as f64, took.as_secs_f64());
        self.weight = self.weight * DECAY + 1.0;
        self.tokens = self.tokens * DECAY + tokens;
        self.seconds = self.seconds * DECAY + seconds;
        self.tokens_squared = self.tokens_squared * DECAY + tokens * tokens;
        self.tokens_seconds = self.tokens_seconds * DECAY + tokens * seconds;
    }

    /// Expected seconds for `n_tokens`; `None` before the first measurement.
    fn estimate(&self, n_tokens: usize) -> Option<f64> {
        if self.weight == 0.0 {
            return None;
        }
        let (mean_tokens, mean_seconds) = (self.tokens / self.weight, self.seconds / self.weight);
        let variance = self.tokens_squared / self.weight - mean_tokens * mean_tokens;
        let covariance = self.tokens_seconds / self.weight - mean_tokens * mean_seconds;
        // All of one length tell nothing of the slope: then time is in proportion.
        let proportion = mean_seconds / mean_tokens.max(1.0);
        let is_spread = variance > (0.05 * mean_tokens).powi(2);
        let slope = if is_spread { (covariance / variance).clamp(0.0, proportion) } else { proportion };
        Some(mean_seconds + slope * (n_tokens as f64 - mean_tokens))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A provider that takes 100 ms and 0.1 ms a token, and 2 ms a token here.
    fn measured(mode: HandoffMode) -> Policy {
        let mut policy = Policy::new(mode, 0);
        for n in [10, 1000, 300, 2000] {
            policy.handed_over(n, 100 * MS + MS * u32::try_from(n).unwrap() / 10);
            policy.evaluated(n, 2 * MS * u32::try_from(n).unwrap());
        }
        policy
    }

    fn hands_over(choice: &Choice) -> bool {
        matches!(choice, Choice::HandOver(_))
    }

    #[test]
    fn always_and_never() {
        let now = Instant::now();
        assert_eq!(measured(HandoffMode::Always).choose(5, 4, now), Choice::HandOver(None));
        assert_eq!(measured(HandoffMode::Never).choose(5000, 0, now), Choice::Here(None));
        let mut policy = Policy::new(HandoffMode::Always, 100);
        assert_eq!(policy.choose(99, 0, now), Choice::Here(None));
        assert_eq!(policy.choose(100, 0, now), Choice::HandOver(None));
    }

    #[test]
    fn auto_takes_the_cheaper_way_for_what_is_new() {
        let now = Instant::now();
        let mut policy = measured(HandoffMode::Auto);
        for (n_prompt, n_held, expected) in
            [(20, 0, false), (50, 0, false), (60, 0, true), (4000, 0, true), (4000, 3900, false), (4000, 3000, true)]
        {
            let choice = policy.choose(n_prompt, n_held, now);
            assert_eq!(hands_over(&choice), expected, "{n_prompt} {n_held}: {choice:?}");
        }
        let Choice::Here(Some(why)) = policy.choose(4000, 3960, now) else { panic!("not here") };
        assert_eq!(why, "40 of 4000 tokens are new: 500 ms by the provider, 80 ms here expected");
    }

    #[test]
    fn auto_finds_out_what_it_does_not_know() {
        let now = Instant::now();
        let mut policy = Policy::new(HandoffMode::Auto, 0);
        assert!(hands_over(&policy.choose(1000, 0, now)));
        assert!(!hands_over(&policy.choose(100, 0, now)));
        policy.evaluated(1, 30 * MS);
        assert!(!hands_over(&policy.choose(100, 0, now)), "a single token tells nothing");
        policy.evaluated(100, 200 * MS);
        assert!(hands_over(&policy.choose(100, 0, now)));
    }

    #[test]
    fn auto_explores_rarely_and_never_at_a_high_price() {
        let now = Instant::now();
        let mut policy = measured(HandoffMode::Auto);
        let n = (0..320).filter(|_| !hands_over(&policy.choose(100, 0, now))).count();
        assert_eq!(n, 10);
        let n = (0..320).filter(|_| !hands_over(&policy.choose(5000, 0, now))).count();
        assert_eq!(n, 0);
    }

    #[test]
    fn equal_lengths_tell_no_slope() {
        let mut cost = Cost::default();
        assert_eq!(cost.estimate(1), None);
        for _ in 0..3 {
            cost.add(1000, 500 * MS);
        }
        assert!((cost.estimate(2000).unwrap() - 1.0).abs() < 1e-9);
        assert!((cost.estimate(10).unwrap() - 0.005).abs() < 1e-9);
    }

    #[test]
    fn a_provider_that_keeps_failing_is_rested() {
        let mut now = Instant::now();
        let mut policy = Policy::new(HandoffMode::Always, 0);
        assert_eq!([policy.failed(now), policy.failed(now)], [None, None]);
        assert!(policy.failed(now).unwrap().contains("failed 3 times in a row"));
        assert!(!hands_over(&policy.choose(9, 0, now)));
        now += REST;
        assert!(hands_over(&policy.choose(9, 0, now)), "one trial");
        assert!(!hands_over(&policy.choose(9, 0, now)), "and no second beside it");
        assert_eq!(policy.failed(now), None, "said once");
        assert!(!hands_over(&policy.choose(9, 0, now + REST / 2)));
        now += REST;
        assert!(hands_over(&policy.choose(9, 0, now)));
        policy.handed_over(9, MS);
        assert!(hands_over(&policy.choose(9, 0, now)) && hands_over(&policy.choose(9, 0, now)));
        assert_eq!(policy.failed(now), None, "the count begins anew");
    }
}
