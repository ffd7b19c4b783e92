//! The HTTP server: routes, requests and replies in OpenAI's shapes, server-sent events.
//!
//! Reading order: this file (routes, shutdown), `state` (what handlers share), `layers` (what happens to every request),
//! `guard`, `cors` and `auth` (who may ask), `extract` and `error` (bytes in, JSON out), `fields` and `openai::params` (a
//! typed reading of a request), `generation` (engine events to steps), `reply` and `sse` (steps to a body or a stream),
//! then one file for each endpoint under `openai` and, for those around the generation, `service`; `activity` keeps their
//! numbers, `openapi` describes it all. `responses` and `anthropic` are two more APIs of chat; `dialect` and `events` are
//! what they share.
//!
//! Nothing below this module knows HTTP or JSON wire formats.
#![forbid(unsafe_code)]

mod activity;
mod anthropic;
mod auth;
mod chat;
mod cors;
mod dialect;
mod error;
mod events;
mod extract;
mod fields;
mod generation;
mod guard;
mod health;
mod layers;
mod native;
mod openai;
mod openapi;
mod reply;
mod responses;
mod service;
mod sse;
mod state;
#[cfg(test)]
mod testing;

use std::{future::Future, io, time::Duration};

use axum::{Router, middleware, serve::ListenerExt};
use tokio::net::TcpListener;

pub use self::auth::ApiKeys;
pub use self::chat::ChatDefaults;
pub use self::cors::Origins;
pub use self::guard::Hosts;
pub use self::state::{AppState, Backend, EventStream, ServerConfig};

/// How long connections get to write their last bytes once nothing runs any more.
const FLUSH: Duration = Duration::from_secs(1);

/// Every route, behind the layers that hold for all of them.
pub fn app(state: AppState) -> Router {
    Router::new()
        .merge(health::routes())
        .merge(openai::routes())
        .merge(native::routes())
        .merge(responses::routes())
        .merge(anthropic::routes())
        .merge(service::routes())
        .merge(openapi::routes())
        // A wrong method on a known path is answered like an unknown path, as llama-server does; never 405.
        .fallback(layers::not_found)
        .method_not_allowed_fallback(layers::not_found)
        // The layer added last sees a request first.
        // Keys are asked for once there is something to guard, and before it is said which routes there are.
        .layer(middleware::from_fn_with_state(state.clone(), auth::require_key))
        .layer(middleware::from_fn_with_state(state.clone(), layers::ready))
        .layer(middleware::from_fn_with_state(state.clone(), guard::guard))
        .layer(middleware::from_fn_with_state(state.clone(), layers::shutdown))
        .layer(middleware::from_fn(layers::catch_panic))
        // Outside of everything that makes errors.
        .layer(middleware::from_fn(anthropic::shape_errors))
        // A preflight is answered even while the model loads, and errors carry the headers too.
        .layer(middleware::from_fn_with_state(state.clone(), cors::cors))
        .layer(middleware::from_fn(layers::trace))
        .with_state(state)
}

/// Serves `listener` until `shutdown` is ready, then ends within [`ServerConfig::shutdown_grace`] and a second.
///
/// Call it before the model is loaded: every route answers 503 until [`AppState::set_ready`]. After the signal the
/// listener closes, requests that still arrive on open connections get 503, and running ones go on for the grace time;
/// what runs then is cancelled. Connections that do not close even then are left to the runtime's end.
///
/// # Errors
/// Those of the listener.
pub async fn run(
    listener: TcpListener,
    state: AppState,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    // A token is a small packet; without this, Nagle's algorithm would hold it back for the client's acknowledgement.
    let listener = listener.tap_io(|stream| {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!("cannot set TCP_NODELAY: {error}");
        }
    });
    let signal = {
        let state = state.clone();
        async move {
            shutdown.await;
            state.refuse_new_work();
        }
    };
    let server = axum::serve(listener, app(state.clone())).with_graceful_shutdown(signal);
    let mut server = std::pin::pin!(server.into_future());

    tokio::select! {
        ended = &mut server => return ended,
        () = state.refusing_new_work() => {}
    }
    // The server alone would wait for ever: for a client that does not read, or one that connected and sent nothing.
    tokio::select! {
        ended = &mut server => return ended,
        () = state.idle() => {}
        () = tokio::time::sleep(state.config().shutdown_grace) => state.cancel_running(),
    }
    tokio::time::timeout(FLUSH, server).await.unwrap_or(Ok(()))
}

#[cfg(test)]
mod tests;
