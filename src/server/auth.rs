//! API keys.

use std::fmt;

use axum::{
    extract::{Request, State},
    http::{
        HeaderMap, HeaderValue,
        header::{AUTHORIZATION, WWW_AUTHENTICATE},
    },
    middleware::Next,
    response::{IntoResponse, Response},
};
use subtle::{Choice, ConstantTimeEq};

use super::{error::ApiError, state::AppState};

/// Any one of these lets a request in; none at all lets everybody in.
#[derive(Clone, Default)]
pub struct ApiKeys(Vec<String>);

impl ApiKeys {
    /// Spaces around a key do not belong to it, and an empty one is none.
    pub fn new(keys: impl IntoIterator<Item = String>) -> Self {
        Self(keys.into_iter().map(|key| key.trim().to_owned()).filter(|key| !key.is_empty()).collect())
    }

    /// Whether everybody is let in.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes the same time for every wrong key of one length.
    fn contain(&self, given: &[u8]) -> bool {
        self.0.iter().fold(Choice::from(0), |found, key| found | key.as_bytes().ct_eq(given)).into()
    }
}

/// Keys do not go into logs.
impl fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ApiKeys({} keys)", self.0.len())
    }
}

/// 401 without a key, if there are keys. Whether the server lives, and that it is one, anybody may know.
pub async fn require_key(State(state): State<AppState>, request: Request, next: Next) -> Response {
    let keys = &state.config().api_keys;
    let is_open = matches!(request.uri().path(), "/health" | "/v1/health" | "/");
    if is_open || keys.is_empty() || given(request.headers()).is_some_and(|key| keys.contain(key)) {
        return next.run(request).await;
    }
    ([(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))], ApiError::unauthorized()).into_response()
}

/// `Authorization: Bearer KEY`, else, as Anthropic's clients send it, `X-Api-Key: KEY`.
fn given(headers: &HeaderMap) -> Option<&[u8]> {
    let Some(authorization) = headers.get(AUTHORIZATION) else {
        return headers.get("x-api-key").map(HeaderValue::as_bytes);
    };
    let (scheme, key) = authorization.as_bytes().split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| key.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_and_compared_whole() {
        let keys = ApiKeys::new(["a1".to_owned(), " b22 ".to_owned(), String::new()]);
        for (given, expected) in [("a1", true), ("b22", true), ("", false), ("a", false), ("a11", false), ("b2", false)]
        {
            assert_eq!(keys.contain(given.as_bytes()), expected, "{given:?}");
        }
        assert!(ApiKeys::new([" ".to_owned()]).is_empty());
        assert_eq!(format!("{keys:?}"), "ApiKeys(2 keys)");
    }

    #[test]
    fn where_a_key_is_looked_for() {
        let check = |headers: &[(&'static str, &'static str)]| {
            let headers: HeaderMap =
                headers.iter().map(|&(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value))).collect();
            given(&headers).map(|key| String::from_utf8(key.to_vec()).unwrap())
        };
        assert_eq!(check(&[("authorization", "Bearer k")]).as_deref(), Some("k"));
        assert_eq!(check(&[("authorization", "bearer  k ")]).as_deref(), Some("k"));
        assert_eq!(check(&[("x-api-key", "k")]).as_deref(), Some("k"));
        assert_eq!(check(&[("authorization", "Basic k"), ("x-api-key", "k")]), None);
        assert_eq!(check(&[("authorization", "k")]), None);
        assert_eq!(check(&[]), None);
    }
}
