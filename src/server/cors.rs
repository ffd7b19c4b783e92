//! Pages of other origins: which may read replies, and the preflight with which browsers ask.

use axum::{
    extract::{Request, State},
    http::{
        HeaderMap, HeaderName, HeaderValue, Method,
        header::{
            ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
            ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_REQUEST_HEADERS, HOST, ORIGIN, VARY,
        },
    },
    middleware::Next,
    response::{IntoResponse, Response},
};

use super::{guard::is_loopback, state::AppState};

/// Origins whose pages may use the server, besides its own and those of this machine (any port).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origins(Vec<String>);

impl Origins {
    /// `*` allows all, `localhost` is allowed anyway, others are like `https://chat.example`.
    ///
    /// # Errors
    /// One that is no origin, with what is missing.
    pub fn new(origins: impl IntoIterator<Item = String>) -> Result<Self, String> {
        let checked = origins.into_iter().map(|origin| match origin.trim().trim_end_matches('/') {
            "*" | "localhost" | "null" => Ok(origin.trim().to_owned()),
            origin => match origin.split_once("://") {
                Some((_, rest)) if !rest.is_empty() && !rest.contains('/') => Ok(origin.to_owned()),
                _ => Err(format!("{origin:?} is no origin: give scheme and host, such as https://chat.example, or *")),
            },
        });
        checked.collect::<Result<_, _>>().map(Self)
    }

    /// Whether a page of `origin` may use the server that it calls by the `Host` of these headers.
    pub fn allow(&self, origin: &HeaderValue, headers: &HeaderMap) -> bool {
        let Ok(origin) = origin.to_str() else { return false };
        if self.0.iter().any(|allowed| allowed == "*" || allowed.eq_ignore_ascii_case(origin)) {
            return true;
        }
        let Some((_, authority)) = origin.split_once("://") else { return false };
        let is_same = headers.get(HOST).is_some_and(|host| host.as_bytes().eq_ignore_ascii_case(authority.as_bytes()));
        is_same || is_loopback(authority)
    }
}

/// Answers preflights, and names the origin in each reply that its page may read.
pub async fn cors(State(state): State<AppState>, request: Request, next: Next) -> Response {
    let origin = request.headers().get(ORIGIN).cloned();
    let allowed = origin.filter(|origin| state.config().origins.allow(origin, request.headers()));
    let mut response = match *request.method() {
        Method::OPTIONS => preflight(request.headers()),
        _ => next.run(request).await,
    };
    let headers = response.headers_mut();
    headers.append(VARY, HeaderValue::from_static("origin"));
    if let Some(origin) = allowed {
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
    }
    response
}

/// 200 for anybody: what counts is whether the reply names the origin.
fn preflight(asked: &HeaderMap) -> Response {
    // `*` would not cover Authorization, so what was asked for is named.
    let any = HeaderValue::from_static("*");
    let allow_headers = asked.get(ACCESS_CONTROL_REQUEST_HEADERS).cloned().unwrap_or(any);
    let mut response = [
        (ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, DELETE, OPTIONS")),
        (ACCESS_CONTROL_ALLOW_HEADERS, allow_headers),
    ]
    .into_response();
    // Chromium's question before a public page may reach a private address.
    if asked.contains_key("access-control-request-private-network") {
        let name = HeaderName::from_static("access-control-allow-private-network");
        response.headers_mut().insert(name, HeaderValue::from_static("true"));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(configured: &[&str], origin: &str) -> bool {
        let origins = Origins::new(configured.iter().map(|&origin| origin.to_owned())).unwrap();
        let headers = HeaderMap::from_iter([(HOST, HeaderValue::from_static("llm.lan:8000"))]);
        origins.allow(&origin.parse().unwrap(), &headers)
    }

    #[test]
    fn own_and_local_origins_are_allowed_and_others_by_name() {
        for origin in
            ["http://llm.lan:8000", "http://localhost:3000", "https://127.0.0.1", "tauri://localhost", "http://[::1]:5"]
        {
            assert!(check(&[], origin), "{origin}");
        }
        for origin in
            ["http://llm.lan", "http://llm.lan:8000.evil.example", "https://evil.example", "null", "localhost"]
        {
            assert!(!check(&[], origin), "{origin}");
            assert!(check(&["*"], origin), "{origin}");
        }
        assert!(check(&["https://a.example", "https://b.example/"], "https://b.example"));
        assert!(!check(&["https://a.example"], "https://a.example:8443"));
        assert!(check(&["null"], "null"));
    }

    #[test]
    fn what_is_no_origin_is_refused() {
        for text in ["a.example", "https://", "https://a.example/path", ""] {
            assert!(Origins::new([text.to_owned()]).is_err(), "{text}");
        }
    }
}
