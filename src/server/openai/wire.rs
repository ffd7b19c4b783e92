//! What the replies of chat and text completions have in common.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::{
    engine::{FinishReason, PromptProgress, Report},
    server::{error::ApiError, state::AppState},
};

/// The head of a reply, the same in all chunks of a stream.
#[derive(Serialize)]
pub struct Head {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    system_fingerprint: String,
}

impl Head {
    /// A head with a fresh id, which begins with `prefix`.
    pub fn new(state: &AppState, prefix: &str, object: &'static str) -> Result<Self, ApiError> {
        Ok(Self {
            id: format!("{prefix}{}", random_id()),
            object,
            created: unix_time(),
            model: state.model_id()?.to_string(),
            system_fingerprint: state.config().fingerprint.clone(),
        })
    }
}

/// A reply or a chunk of one, around choices of type `C`.
#[derive(Serialize)]
pub struct Body<'a, C> {
    #[serde(flatten)]
    head: &'a Head,
    choices: Vec<C>,
    #[serde(flatten)]
    totals: Option<Totals>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_progress: Option<Progress>,
}

/// llama-server's word on a prompt that is being evaluated: tokens in all, taken from a cache, evaluated or cached by now, and
/// milliseconds since it began.
#[derive(Serialize)]
pub struct Progress {
    total: usize,
    cache: usize,
    processed: usize,
    time_ms: u64,
}

impl From<PromptProgress> for Progress {
    fn from(progress: PromptProgress) -> Self {
        Self {
            total: progress.n_prompt,
            cache: progress.n_cached,
            processed: progress.n_processed,
            time_ms: u64::try_from(progress.elapsed.as_millis()).unwrap_or(u64::MAX),
        }
    }
}

impl<'a, C> Body<'a, C> {
    /// A chunk on the way.
    pub fn chunk(head: &'a Head, choice: C) -> Self {
        Self { head, choices: vec![choice], totals: None, prompt_progress: None }
    }

    /// A chunk before the answer, about its prompt.
    pub fn progress(head: &'a Head, choice: C, progress: PromptProgress) -> Self {
        Self { prompt_progress: Some(progress.into()), ..Self::chunk(head, choice) }
    }

    /// The whole reply, or its last chunk.
    pub fn last(head: &'a Head, choices: Vec<C>, totals: Totals) -> Self {
        Self { head, choices, totals: Some(totals), prompt_progress: None }
    }
}

/// Sums of one reply.
#[derive(Serialize)]
pub struct Totals {
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
    timings: Timings,
}

impl Totals {
    /// Both, usage and timings, of all answers to a request.
    pub fn of(reports: &[&Report], n_reasoning: usize) -> Self {
        let timings = reports.first().map_or_else(Timings::default, |report| Timings::new(report));
        Self { usage: Some(Usage::of(reports, n_reasoning)), timings }
    }

    /// Of the answers to each of several prompts.
    pub fn of_prompts(prompts: &[Vec<&Report>]) -> Self {
        let first = |count: fn(&Report) -> usize| {
            prompts.iter().filter_map(|answers| answers.first()).map(|report| count(report)).sum()
        };
        let n_generated = prompts.iter().flatten().map(|report| report.n_generated).sum();
        let usage =
            Usage::new(first(|report| report.prompt.n_prompt), first(|report| report.prompt.n_cached), n_generated, 0);
        let timings = prompts.iter().flatten().next().map_or_else(Timings::default, |report| Timings::new(report));
        Self { usage: Some(usage), timings }
    }

    /// Timings only: OpenAI's chat streams have no usage unless asked.
    pub fn without_usage(report: &Report) -> Self {
        Self { usage: None, timings: Timings::new(report) }
    }
}

/// OpenAI's token counts. Cached tokens are part of the prompt's, an end token of the completion's.
#[derive(Serialize)]
pub struct Usage {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
    prompt_tokens_details: PromptTokensDetails,
    completion_tokens_details: CompletionTokensDetails,
}

#[derive(Serialize)]
struct PromptTokensDetails {
    cached_tokens: usize,
}

#[derive(Serialize)]
struct CompletionTokensDetails {
    reasoning_tokens: usize,
}

impl Usage {
    /// Of several answers to one prompt, whose tokens count once; of `n_reasoning` tokens in thoughts.
    pub fn of(reports: &[&Report], n_reasoning: usize) -> Self {
        let first = reports.first();
        let n_prompt = first.map_or(0, |report| report.prompt.n_prompt);
        let n_cached = first.map_or(0, |report| report.prompt.n_cached);
        Self::new(n_prompt, n_cached, reports.iter().map(|report| report.n_generated).sum(), n_reasoning)
    }

    /// From the counts.
    pub fn new(n_prompt: usize, n_cached: usize, n_generated: usize, n_reasoning: usize) -> Self {
        Self {
            prompt_tokens: n_prompt,
            completion_tokens: n_generated,
            total_tokens: n_prompt + n_generated,
            prompt_tokens_details: PromptTokensDetails { cached_tokens: n_cached },
            completion_tokens_details: CompletionTokensDetails { reasoning_tokens: n_reasoning },
        }
    }
}

/// llama-server's timings; every number is finite. `prefill_ms` and `restore_ms` are those of a handoff.
#[derive(Default, Serialize)]
pub struct Timings {
    cache_n: usize,
    prompt_n: usize,
    prompt_ms: f64,
    prompt_per_token_ms: f64,
    prompt_per_second: f64,
    predicted_n: usize,
    predicted_ms: f64,
    predicted_per_token_ms: f64,
    predicted_per_second: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    prefill_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    restore_ms: Option<f64>,
}

impl Timings {
    /// Of one answer.
    pub fn new(report: &Report) -> Self {
        let prompt_n = report.prompt.n_prompt.saturating_sub(report.prompt.n_cached);
        let prompt_ms = milliseconds(report.prompt.evaluate);
        let predicted_ms = milliseconds(report.generate);
        // The first token comes from the prompt's logits, so the time is that of the others.
        let n_steps = report.n_generated.saturating_sub(1);
        Self {
            cache_n: report.prompt.n_cached,
            prompt_n,
            prompt_ms,
            prompt_per_token_ms: ratio(prompt_ms, prompt_n as f64),
            prompt_per_second: ratio(1e3 * prompt_n as f64, prompt_ms),
            predicted_n: report.n_generated,
            predicted_ms,
            predicted_per_token_ms: ratio(predicted_ms, n_steps as f64),
            predicted_per_second: ratio(1e3 * n_steps as f64, predicted_ms),
            prefill_ms: report.external_prefill.map(milliseconds),
            restore_ms: report.prompt.restore.map(milliseconds),
        }
    }
}

/// Why the answer ended, in OpenAI's words.
pub fn finish_reason(finish: &FinishReason) -> &'static str {
    match finish {
        FinishReason::EndOfText | FinishReason::StopString(_) => "stop",
        FinishReason::MaxTokens | FinishReason::ContextFull => "length",
    }
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// 0 where there is nothing to divide by.
fn ratio(numerator: f64, denominator: f64) -> f64 {
    if denominator > 0.0 { numerator / denominator } else { 0.0 }
}

/// Seconds since 1970.
pub fn unix_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// 32 letters and digits.
pub fn random_id() -> String {
    const LETTERS: &[u8; 62] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).expect("the operating system has random numbers");
    // Not quite uniform, which an id does not need to be.
    bytes.iter().map(|byte| char::from(LETTERS[usize::from(*byte) % LETTERS.len()])).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::server::testing::report;

    fn check(report: &Report, expected: serde_json::Value) {
        assert_eq!(serde_json::to_value(Timings::new(report)).unwrap(), expected);
    }

    #[test]
    fn timings_are_finite_and_leave_out_the_first_token() {
        let mut report = report(12, 2);
        report.prompt.evaluate = Duration::from_millis(60);
        report.generate = Duration::from_millis(10);
        check(
            &report,
            json!({"cache_n": 0, "prompt_n": 12, "prompt_ms": 60.0, "prompt_per_token_ms": 5.0,
                   "prompt_per_second": 200.0, "predicted_n": 2, "predicted_ms": 10.0,
                   "predicted_per_token_ms": 10.0, "predicted_per_second": 100.0}),
        );
        report.n_generated = 1;
        report.prompt.n_cached = 11;
        report.prompt.restore = Some(Duration::from_millis(3));
        report.external_prefill = Some(Duration::from_millis(12));
        check(
            &report,
            json!({"cache_n": 11, "prompt_n": 1, "prompt_ms": 60.0, "prompt_per_token_ms": 60.0,
                   "prompt_per_second": 1e3 / 60.0, "predicted_n": 1, "predicted_ms": 10.0,
                   "predicted_per_token_ms": 0.0, "predicted_per_second": 0.0, "prefill_ms": 12.0,
                   "restore_ms": 3.0}),
        );
    }

    #[test]
    fn ids_are_letters_and_digits_and_differ() {
        let (a, b) = (random_id(), random_id());
        assert!(a.len() == 32 && a.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{a}");
        assert_ne!(a, b);
    }
}
