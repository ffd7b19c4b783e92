//! `GET /`: for the person who opens the address in a browser.

use axum::{
    extract::State,
    http::{
        HeaderValue,
        header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE},
    },
    response::{IntoResponse, Response},
};

use crate::server::{error::ApiError, layers, state::AppState};

/// The page, which knows nothing of this server; 404 when it is switched off.
pub async fn show(State(state): State<AppState>) -> Result<Response, ApiError> {
    if !state.config().page {
        return Err(layers::not_found().await);
    }
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8")),
        (CONTENT_SECURITY_POLICY, HeaderValue::from_static("default-src 'none'; style-src 'unsafe-inline'")),
    ];
    Ok((headers, include_str!("page.html")).into_response())
}
