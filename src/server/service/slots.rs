//! `GET /slots`: what each slot works on, or worked on last.

use axum::{extract::State, http::Uri};
use serde::Serialize;

use super::params::Params;
use crate::server::{
    activity::{self, Work},
    error::ApiError,
    extract::ApiJson,
    state::AppState,
};

#[derive(Serialize)]
pub struct Slot {
    id: usize,
    n_ctx: u32,
    speculative: bool,
    is_processing: bool,
    #[serde(flatten)]
    task: Option<Task>,
}

#[derive(Serialize)]
struct Task {
    id_task: u64,
    n_prompt_tokens: usize,
    n_prompt_tokens_processed: usize,
    n_prompt_tokens_cache: usize,
    params: Params,
    next_token: [NextToken; 1],
}

#[derive(Serialize)]
struct NextToken {
    has_next_token: bool,
    has_new_line: bool,
    /// -1 when nothing says how many.
    n_remain: i64,
    n_decoded: usize,
}

/// All slots. `?fail_on_no_slot=1` makes it a health check that fails while all are busy.
pub async fn list(State(state): State<AppState>, uri: Uri) -> Result<ApiJson<Vec<Slot>>, ApiError> {
    if !state.config().slots {
        return Err(ApiError::not_supported("slots are not shown: the server was started with --no-slots"));
    }
    let n_ctx = state.backend()?.info().n_ctx;
    let slots = state.activity().slots();
    if asks_to_fail(&uri) && slots.iter().all(|slot| slot.is_processing) {
        return Err(ApiError::unavailable("no slot available"));
    }
    Ok(ApiJson(slots.iter().enumerate().map(|(id, slot)| show(id, n_ctx, slot)).collect()))
}

fn asks_to_fail(uri: &Uri) -> bool {
    let pairs = uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
    pairs.into_iter().any(|(name, value)| name == "fail_on_no_slot" && !value.is_empty())
}

fn show(id: usize, n_ctx: u32, slot: &activity::Slot) -> Slot {
    let task = slot.work.as_ref().map(|work| Task {
        id_task: work.id_task,
        n_prompt_tokens: work.n_prompt,
        n_prompt_tokens_processed: work.n_processed,
        n_prompt_tokens_cache: work.n_cached,
        params: Params::new(&work.options),
        next_token: [next_token(work, slot.is_processing)],
    });
    Slot { id, n_ctx, speculative: false, is_processing: slot.is_processing, task }
}

fn next_token(work: &Work, is_processing: bool) -> NextToken {
    if !is_processing {
        return NextToken { has_next_token: false, has_new_line: work.has_new_line, n_remain: -1, n_decoded: 0 };
    }
    let n_remain = work.options.max_tokens.map_or(-1, |max| i64::from(max) - work.n_decoded as i64);
    NextToken { has_next_token: true, has_new_line: work.has_new_line, n_remain, n_decoded: work.n_decoded }
}
