//! The guard against web pages. A server on this machine can be reached by every page that its user looks at: by DNS
//! rebinding (the page's own name comes to mean 127.0.0.1, and its requests carry that name as `Host`), and by plain
//! requests across origins, which browsers send first and ask about afterwards. API keys are in `auth`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use axum::{
    extract::{Request, State},
    http::{
        HeaderMap, Method, Uri,
        header::{HOST, ORIGIN},
    },
    middleware::Next,
    response::{IntoResponse, Response},
};

use super::{cors::Origins, error::ApiError, state::AppState};

/// The names under which the server may be called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hosts {
    /// Whatever `Host` says.
    Any,
    /// Those of the loopback interface, and these (without a port).
    LoopbackAnd(Vec<String>),
}

impl Default for Hosts {
    fn default() -> Self {
        Self::LoopbackAnd(Vec::new())
    }
}

impl Hosts {
    /// For a server that listens on `address`. Who names hosts wants a check there too, where there would be none.
    pub fn for_address(address: IpAddr, allowed: Vec<String>) -> Self {
        if address.to_canonical().is_loopback() || !allowed.is_empty() { Self::LoopbackAnd(allowed) } else { Self::Any }
    }

    fn allow(&self, authority: &str) -> bool {
        let Self::LoopbackAnd(allowed) = self else { return true };
        let name = without_port(authority);
        is_loopback(name) || allowed.iter().any(|allowed| allowed.eq_ignore_ascii_case(name))
    }
}

/// 403 for a request under a foreign name, and for one that another site's page sends and that does more than read. (What
/// such a page reads, its browser keeps from it: `cors`.)
pub async fn guard(State(state): State<AppState>, request: Request, next: Next) -> Response {
    let config = state.config();
    let checked = check_host(&config.hosts, request.uri(), request.headers())
        .and_then(|()| check_origin(&config.origins, request.method(), request.headers()));
    match checked {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

/// A request without any `Host` comes from no browser.
fn check_host(hosts: &Hosts, uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
    let in_headers = headers.get_all(HOST).iter().map(|value| String::from_utf8_lossy(value.as_bytes()));
    let in_uri = uri.authority().map(|authority| authority.as_str().into());
    match in_headers.chain(in_uri).find(|host| !hosts.allow(host)) {
        None => Ok(()),
        Some(host) => Err(ApiError::forbidden(format!(
            "this server listens for this machine only and is not known as {host:?}. Behind a proxy that passes another \
             Host on, start it with `--allowed-host {}`; to serve other machines, with `--host` and `--api-key`",
            without_port(&host)
        ))),
    }
}

fn check_origin(origins: &Origins, method: &Method, headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(origin) = headers.get(ORIGIN) else { return Ok(()) };
    if matches!(*method, Method::GET | Method::HEAD) || origins.allow(origin, headers) {
        return Ok(());
    }
    let origin = String::from_utf8_lossy(origin.as_bytes());
    Err(ApiError::forbidden(format!(
        "pages of {origin:?} may not use this server; start it with `--cors-origin {origin}` to allow them"
    )))
}

/// The name in `name:port`; an IPv6 address keeps its brackets.
fn without_port(authority: &str) -> &str {
    match authority.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => authority,
    }
}

/// Whether a host, with or without port, can only be this machine.
pub fn is_loopback(authority: &str) -> bool {
    let name = without_port(authority);
    let in_brackets = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    if let Some(address) = in_brackets {
        return address.parse::<Ipv6Addr>().is_ok_and(|address| address.to_canonical().is_loopback());
    }
    name.eq_ignore_ascii_case("localhost") || name.parse::<Ipv4Addr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_names() {
        for name in
            ["localhost", "LOCALHOST:80", "127.0.0.1", "127.8.9.1:8000", "[::1]", "[::1]:8000", "[::ffff:127.0.0.1]"]
        {
            assert!(is_loopback(name), "{name}");
        }
        for name in [
            "",
            "x",
            "localhost.evil.example",
            "127.0.0.1.evil.example:80",
            "128.0.0.1",
            "[::2]",
            "::1",
            "localhost:8:8",
            "127.0.0.1@evil.example",
            "[::1",
            "192.168.0.1",
            "0.0.0.0",
        ] {
            assert!(!is_loopback(name), "{name}");
        }
    }

    #[test]
    fn hosts_follow_the_address() {
        let hosts = |address: &str, allowed: &[&str]| {
            Hosts::for_address(address.parse().unwrap(), allowed.iter().map(|&name| name.to_owned()).collect())
        };
        assert!(hosts("0.0.0.0", &[]).allow("anything:80"));
        for loopback in ["127.0.0.1", "::1", "::ffff:127.0.0.1"] {
            assert!(hosts(loopback, &[]).allow("localhost:80"), "{loopback}");
            assert!(!hosts(loopback, &[]).allow("evil.example:80"), "{loopback}");
            assert!(hosts(loopback, &["llm.lan"]).allow("LLM.lan:443"), "{loopback}");
        }
        assert!(!hosts("0.0.0.0", &["llm.lan"]).allow("evil.example"));
    }
}
