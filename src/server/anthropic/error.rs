//! Errors as Anthropic's clients read them: `{"type": "error", "error": {"type", "message"}}`, with the other fields of
//! this server's errors beside, so that clients of either kind understand them.

use axum::{
    extract::Request,
    http::StatusCode,
    middleware::Next,
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};

use crate::server::{error::ApiError, extract::ApiJson};

/// Rewrites the errors on Anthropic's paths, wherever they come from: handlers, extractors or other layers.
pub async fn shape_errors(request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let is_ours = path == "/v1/messages" || path.starts_with("/v1/messages/");
    let mut response = next.run(request).await;
    let error = response.extensions_mut().remove::<ApiError>().filter(|_| is_ours);
    match error {
        Some(error) => {
            // The headers stay: other layers may have added some, and the type of the content is the same.
            let (mut parts, _) = response.into_parts();
            parts.headers.remove(axum::http::header::CONTENT_LENGTH);
            let body = ApiJson(body(&error)).into_response().into_body();
            Response::from_parts(parts, body)
        }
        None => response,
    }
}

/// The JSON body.
pub fn body(error: &ApiError) -> Value {
    let mut body = json!(error.body());
    body["type"] = json!("error");
    let inner = &mut body["error"];
    inner["type"] = json!(kind(error.status()));
    if let (Some(n_prompt), Some(n_ctx)) = (inner["n_prompt_tokens"].as_u64(), inner["n_ctx"].as_u64()) {
        // Clients recognise "prompt is too long" (Anthropic's words) and shorten their history.
        let message = format!("prompt is too long: {n_prompt} tokens > {n_ctx} maximum: {}", error.message());
        inner["message"] = json!(message);
    }
    body
}

fn kind(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
        status if status.is_client_error() => "invalid_request_error",
        _ => "api_error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_named_in_both_shapes() {
        assert_eq!(
            body(&ApiError::field("messages[0].role", "is wrong")),
            json!({"type": "error", "error": {"type": "invalid_request_error", "message": "`messages[0].role`: is wrong",
                   "param": "messages[0].role", "code": 400}})
        );
    }

    #[test]
    fn an_overflow_is_told_in_anthropics_words() {
        let body = body(&ApiError::context_overflow(9000, 8192));
        let message = body["error"]["message"].as_str().unwrap();
        assert!(message.starts_with("prompt is too long: 9000 tokens > 8192 maximum: "), "{message}");
        assert!(message.contains("exceeds the available context size"), "{message}");
        assert_eq!((&body["error"]["type"], &body["error"]["n_ctx"]), (&json!("invalid_request_error"), &json!(8192)));
    }

    #[test]
    fn types_are_anthropics() {
        for (error, expected) in [
            (ApiError::loading(), "overloaded_error"),
            (ApiError::not_found("x"), "not_found_error"),
            (ApiError::too_large(1), "request_too_large"),
            (ApiError::internal("x"), "api_error"),
        ] {
            assert_eq!(body(&error)["error"]["type"], expected);
        }
    }
}
