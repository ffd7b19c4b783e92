//! `GET /metrics` in Prometheus' text format, under llama-server's names, so that its dashboards work.

use std::{fmt::Write, time::Duration};

use axum::{
    extract::State,
    http::{HeaderName, HeaderValue, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};

use crate::server::{
    activity::Scrape,
    error::ApiError,
    state::{AppState, Backend},
};

/// The numbers; averages are over the time since the last scrape.
pub async fn show(State(state): State<AppState>) -> Result<Response, ApiError> {
    if !state.config().metrics {
        return Err(ApiError::not_supported("there are no metrics: start the server with --metrics"));
    }
    let text = text(&state.activity().scrape(), state.backend()?);
    let start = HeaderValue::from(state.started_at());
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static("text/plain; version=0.0.4")),
        (HeaderName::from_static("process-start-time-unix"), start),
    ];
    Ok((headers, text).into_response())
}

fn text(scrape: &Scrape, backend: &Backend) -> String {
    let (totals, recent) = (&scrape.totals, &scrape.recent);
    let decodes = backend.decode_counts();
    let mut page = Page::default();
    page.counter("llamacpp:prompt_tokens_total", "Prompt tokens evaluated, without cached ones", totals.n_prompt);
    page.counter("llamacpp:prompt_tokens_cached_total", "Prompt tokens taken from a cache", totals.n_cached);
    page.counter("llamacpp:prompt_seconds_total", "Time spent on prompts", totals.prompt_time.as_secs_f64());
    page.counter("llamacpp:tokens_predicted_total", "Tokens generated", totals.n_predicted);
    page.counter(
        "llamacpp:tokens_predicted_seconds_total",
        "Time spent on generating",
        totals.predict_time.as_secs_f64(),
    );
    page.counter("llamacpp:n_decode_total", "Calls of llama_decode", decodes.n_decode);
    page.counter("llamacpp:n_tokens_max", "Longest sequence so far, prompt and answer", totals.n_tokens_max);
    for (name, help) in [
        ("llamacpp:spec_decode_num_draft_tokens_total", "Drafted tokens; nothing is drafted here"),
        ("llamacpp:spec_decode_num_accepted_tokens_total", "Drafted tokens that were accepted"),
        ("llamacpp:spec_decode_num_drafts_total", "Drafts that were checked"),
    ] {
        page.counter(name, help, 0);
    }
    page.gauge("llamacpp:prompt_tokens_seconds", "Prompt tokens a second", rate(recent.n_prompt, recent.prompt_time));
    page.gauge(
        "llamacpp:predicted_tokens_seconds",
        "Generated tokens a second",
        rate(recent.n_predicted, recent.predict_time),
    );
    page.gauge("llamacpp:requests_processing", "Requests in the works", scrape.n_processing);
    page.gauge("llamacpp:requests_deferred", "Requests that wait for a slot", scrape.n_waiting);
    #[allow(clippy::cast_precision_loss)] // an average
    let per_decode = decodes.n_sequences as f64 / decodes.n_decode.max(1) as f64;
    page.gauge("llamacpp:n_busy_slots_per_decode", "Slots in a call of llama_decode, on average", per_decode);
    if let Some(counts) = backend.handoff_counts() {
        page.counter("onebit:handoffs_total", "Prompts restored from the prefill provider's file", counts.handoffs);
        page.counter("onebit:fallbacks_total", "Prompts evaluated here after the provider failed", counts.fallbacks);
        page.counter(
            "onebit:argmax_disagreements_total",
            "Handoffs after which the provider ranks another token first",
            counts.argmax_disagreements,
        );
    }
    page.0
}

#[allow(clippy::cast_precision_loss)] // shown as an average
fn rate(n: u64, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { n as f64 / time.as_secs_f64() }
}

#[derive(Default)]
struct Page(String);

impl Page {
    fn counter(&mut self, name: &str, help: &str, value: impl std::fmt::Display) {
        self.add("counter", name, help, value);
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl std::fmt::Display) {
        self.add("gauge", name, help, value);
    }

    fn add(&mut self, kind: &str, name: &str, help: &str, value: impl std::fmt::Display) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
    }
}
