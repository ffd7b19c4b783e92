//! What happens to every request before and after its route.

use std::{panic::AssertUnwindSafe, time::Instant};

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use futures_util::FutureExt;
use tracing::Instrument;

use super::{error::ApiError, state::AppState};

/// 404 for an unknown path, or a known one with the wrong method.
pub async fn not_found() -> ApiError {
    ApiError::not_found("File Not Found")
}

/// 503 on every route, `/health` included, until there is a model.
pub async fn ready(State(state): State<AppState>, request: Request, next: Next) -> Response {
    if !state.is_ready() {
        return ApiError::loading().into_response();
    }
    next.run(request).await
}

/// Refuses requests once the process is stopping, and ends running ones when their time is up. Bodies that are streamed
/// outlive this layer; `generation::Steps` ends them.
pub async fn shutdown(State(state): State<AppState>, request: Request, next: Next) -> Response {
    let _busy = state.busy();
    if state.is_refusing_new_work() {
        return ApiError::shutting_down().into_response();
    }
    tokio::select! {
        response = next.run(request) => response,
        () = state.cancelled() => ApiError::shutting_down().into_response(),
    }
}

/// A panic in a handler is a bug of ours, but the client still gets a reply; unwinding further would close the socket.
pub async fn catch_panic(request: Request, next: Next) -> Response {
    // Nothing that the handler was changing is used again.
    match AssertUnwindSafe(next.run(request)).catch_unwind().await {
        Ok(response) => response,
        Err(_) => ApiError::internal("internal error: the handler of this request panicked").into_response(),
    }
}

/// A span for the log lines of one request, and a line when its reply begins.
pub async fn trace(request: Request, next: Next) -> Response {
    let span = tracing::debug_span!("http", method = %request.method(), path = request.uri().path());
    async {
        let start = Instant::now();
        let response = next.run(request).await;
        tracing::debug!(status = response.status().as_u16(), ms = start.elapsed().as_millis() as u64, "reply begins");
        response
    }
    .instrument(span)
    .await
}
