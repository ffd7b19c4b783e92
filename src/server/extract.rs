//! JSON in and out. axum's own `Json` is not used: it wants a Content-Type, which many scripts do not send, and its
//! errors are plain text.

use std::time::Duration;

use axum::{
    body::{Body, BodyDataStream, HttpBody},
    extract::{FromRequest, Request},
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use futures_util::StreamExt;
use serde::Serialize;
use serde_json::{Map, Value};

use super::{error::ApiError, fields::kind_of, state::AppState};

/// A JSON body. As an argument of a handler it is an object, read whatever the Content-Type; as a reply it is anything.
pub struct ApiJson<T>(pub T);

/// A JSON object.
pub type Object = Map<String, Value>;

/// How long a body that is too large is read on (and thrown away), so that the client gets to see the 413: a socket
/// closed with unread bytes resets the connection, and the reply is lost.
const DRAIN: Duration = Duration::from_secs(5);

impl FromRequest<AppState> for ApiJson<Object> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, ApiError> {
        let body = read(request.into_body(), state.config().body_limit).await?;
        parse(&body).map(ApiJson)
    }
}

/// A JSON object, or an empty one where there is no body.
pub struct OptionalObject(pub Object);

impl FromRequest<AppState> for OptionalObject {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, ApiError> {
        let body = read(request.into_body(), state.config().body_limit).await?;
        if body.trim_ascii().is_empty() {
            return Ok(Self(Object::new()));
        }
        parse(&body).map(Self)
    }
}

async fn read(body: Body, limit: usize) -> Result<Vec<u8>, ApiError> {
    let declared = body.size_hint().lower();
    let mut chunks = body.into_data_stream();
    if declared > limit as u64 {
        return Err(too_large(chunks, limit).await);
    }
    let mut bytes = Vec::with_capacity(declared as usize);
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|error| ApiError::invalid(format!("cannot read the request body: {error}")))?;
        if bytes.len() + chunk.len() > limit {
            drop(bytes);
            return Err(too_large(chunks, limit).await);
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

async fn too_large(mut chunks: BodyDataStream, limit: usize) -> ApiError {
    let mut n_left = limit;
    let drain = async {
        while let Some(Ok(chunk)) = chunks.next().await
            && chunk.len() <= n_left
        {
            n_left -= chunk.len();
        }
    };
    // Whether it ended or the time is up, the reply is the same.
    let _ = tokio::time::timeout(DRAIN, drain).await;
    ApiError::too_large(limit)
}

fn parse(body: &[u8]) -> Result<Object, ApiError> {
    if body.trim_ascii().is_empty() {
        return Err(ApiError::invalid("the request body is empty; expected a JSON object"));
    }
    match serde_json::from_slice(body) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(other) => {
            Err(ApiError::invalid(format!("the request body: expected a JSON object, got {}", kind_of(&other))))
        }
        // serde_json's message ends with the line and column.
        Err(error) => Err(ApiError::invalid(format!("the request body is not valid JSON: {error}"))),
    }
}

impl<T: Serialize> IntoResponse for ApiJson<T> {
    fn into_response(self) -> Response {
        match serde_json::to_vec(&self.0) {
            Ok(bytes) => {
                let content_type = HeaderValue::from_static("application/json; charset=utf-8");
                ([(header::CONTENT_TYPE, content_type)], bytes).into_response()
            }
            // Our reply types have string keys only, so this is out of reach.
            Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_bodies_say_what_is_wrong_and_where() {
        for (body, expected) in [
            (&b"  "[..], "the request body is empty; expected a JSON object"),
            (b"[1]", "the request body: expected a JSON object, got an array"),
            (b"{\"a\":\n x}", "the request body is not valid JSON: expected value at line 2 column 2"),
            (b"{}}", "the request body is not valid JSON: trailing characters at line 1 column 3"),
            (b"{\"a\":\"\xff\"}", "the request body is not valid JSON: invalid unicode code point at line 1 column 7"),
        ] {
            assert_eq!(parse(body), Err(ApiError::invalid(expected)));
        }
    }
}
