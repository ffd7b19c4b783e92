//! The one error type of the handlers, and its JSON body.

use axum::{
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;

use super::extract::ApiJson;
use crate::engine::EngineError;

/// Seconds until a client that found the queue full asks again: about one short answer.
const RETRY_AFTER: u32 = 2;

/// An error as the client sees it. Shape of the body: `{"error":{"message","type","param","code"}}`.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiError {
    status: StatusCode,
    kind: &'static str,
    message: String,
    param: Option<String>,
    overflow: Option<Overflow>,
    /// Seconds after which to ask again, as a header.
    retry_after: Option<u32>,
}

/// The two numbers of a prompt that does not fit, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Overflow {
    n_prompt_tokens: usize,
    n_ctx: usize,
}

/// The body, which is also the last frame of a stream that fails.
#[derive(Serialize)]
pub struct ErrorBody<'a> {
    error: ErrorObject<'a>,
}

#[derive(Serialize)]
struct ErrorObject<'a> {
    message: &'a str,
    r#type: &'static str,
    param: Option<&'a str>,
    code: u16,
    #[serde(flatten)]
    overflow: Option<Overflow>,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind, message: message.into(), param: None, overflow: None, retry_after: None }
    }

    /// 400: the request as a whole cannot be used.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// 400 for one field: `param` is its path, such as `messages[2].role`; the message begins with it.
    pub fn field(param: impl Into<String>, problem: impl std::fmt::Display) -> Self {
        let param = param.into();
        let message = format!("`{param}`: {problem}");
        Self { param: Some(param), ..Self::invalid(message) }
    }

    /// The same error, told of another field.
    pub fn at(self, param: impl Into<String>) -> Self {
        let message = match &self.param {
            Some(param) => self.message.strip_prefix(&format!("`{param}`: ")).unwrap_or(&self.message).to_owned(),
            None => self.message.clone(),
        };
        let param = param.into();
        Self { message: format!("`{param}`: {message}"), param: Some(param), ..self }
    }

    /// 501: this model or this server cannot do it.
    pub fn not_supported(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_IMPLEMENTED, "not_supported_error", message)
    }

    /// 413.
    pub fn too_large(limit: usize) -> Self {
        let message = format!("the request body is larger than the limit of {limit} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", message)
    }

    /// 404.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found_error", message)
    }

    /// 503 until the model is loaded; launchers look for these very words.
    pub fn loading() -> Self {
        Self::unavailable("Loading model")
    }

    /// 503 once the process has been told to stop.
    pub fn shutting_down() -> Self {
        Self::unavailable("the server is shutting down")
    }

    /// 503: later perhaps.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable_error", message)
    }

    /// 503 with `Retry-After`: too many requests wait already.
    pub fn queue_full(max_queue: usize) -> Self {
        let message = format!("{max_queue} requests wait already (--max-queue); ask again later");
        Self { retry_after: Some(RETRY_AFTER), ..Self::unavailable(message) }
    }

    /// 401: there are API keys, and the request has none of them.
    pub fn unauthorized() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "authentication_error", "Invalid API Key")
    }

    /// 403: not from there, or not under that name.
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "permission_error", message)
    }

    /// 500: nothing the client could have done better.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// 400 with both numbers, of a prompt that leaves no room for an answer.
    pub fn context_overflow(n_prompt_tokens: usize, n_ctx: usize) -> Self {
        // Clients recognise "exceeds the available context size" (llama-server's words) and shorten their history.
        let message = format!(
            "the prompt of {n_prompt_tokens} tokens exceeds the available context size: \
             it holds {n_ctx} tokens and needs room for at least one more"
        );
        Self {
            overflow: Some(Overflow { n_prompt_tokens, n_ctx }),
            ..Self::new(StatusCode::BAD_REQUEST, "exceed_context_size_error", message)
        }
    }

    /// The text for the client.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The field that it is about.
    pub fn param(&self) -> Option<&str> {
        self.param.as_deref()
    }

    /// The status of the reply.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The JSON body.
    pub fn body(&self) -> ErrorBody<'_> {
        ErrorBody {
            error: ErrorObject {
                message: &self.message,
                r#type: self.kind,
                param: self.param.as_deref(),
                code: self.status.as_u16(),
                overflow: self.overflow,
            },
        }
    }
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> Self {
        let message = error.to_string();
        match error {
            EngineError::PromptTooLong { n_prompt, n_ctx } => Self::context_overflow(n_prompt, n_ctx),
            // The grammar came with the request, and nothing in this vocabulary follows it.
            EngineError::Decode(reason) if reason.contains("fits the grammar") => Self::invalid(message),
            EngineError::NoDecoder => Self::not_supported(message),
            EngineError::EmptyPrompt | EngineError::Tokenize(_) | EngineError::NoTemplate => Self::invalid(message),
            EngineError::InvalidToken { .. } => Self { param: Some("prompt".into()), ..Self::invalid(message) },
            EngineError::Template(_) => Self { param: Some("messages".into()), ..Self::invalid(message) },
            EngineError::InvalidOption { option, .. } => Self { param: Some(option.into()), ..Self::invalid(message) },
            EngineError::Stopped => Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable_error", message),
            EngineError::Restore(_) | EngineError::Save { .. } | EngineError::Decode(_) => Self::internal(message),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        if self.status == StatusCode::INTERNAL_SERVER_ERROR {
            tracing::error!("{}", self.message);
        }
        let mut response = (self.status, ApiJson(self.body())).into_response();
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        // For the routes where errors have another shape.
        response.extensions_mut().insert(self);
        response
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(error: ApiError, expected: serde_json::Value) {
        assert_eq!(serde_json::to_value(error.body()).unwrap()["error"], expected);
    }

    #[test]
    fn bodies_have_openais_shape() {
        check(
            ApiError::field("stop[1]", "expected a string, got a number"),
            json!({"message": "`stop[1]`: expected a string, got a number", "type": "invalid_request_error",
                   "param": "stop[1]", "code": 400}),
        );
        check(
            ApiError::loading(),
            json!({"message": "Loading model", "type": "unavailable_error", "param": null, "code": 503}),
        );
        check(
            EngineError::Decode("no room".into()).into(),
            json!({"message": "evaluation failed: no room", "type": "server_error", "param": null, "code": 500}),
        );
        check(
            EngineError::InvalidOption { option: "grammar", reason: "has no `root` rule".into() }.into(),
            json!({"message": "`grammar` has no `root` rule", "type": "invalid_request_error", "param": "grammar",
                   "code": 400}),
        );
    }

    #[test]
    fn an_overflow_carries_both_numbers() {
        let body = serde_json::to_value(ApiError::context_overflow(9000, 8192).body()).unwrap();
        let error = &body["error"];
        assert_eq!(error["type"], "exceed_context_size_error");
        assert_eq!((&error["n_prompt_tokens"], &error["n_ctx"]), (&json!(9000), &json!(8192)));
        assert!(error["message"].as_str().unwrap().contains("exceeds the available context size"));
    }
}
