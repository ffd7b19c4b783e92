//! Who may ask what: the guard, CORS and API keys, and the order in which they speak.

use super::*;
use crate::server::testing::send_with;

impl Server {
    async fn ask(&self, method: &str, path: &str, headers: &[&str]) -> Reply {
        let body = if method == "POST" { chat(json!({})).to_string() } else { String::new() };
        receive(send_with(self.address, method, path, headers, body.as_bytes()).await).await
    }
}

const CHAT: &str = "/v1/chat/completions";

fn header<'a>(reply: &'a Reply, name: &str) -> Option<&'a str> {
    reply.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

#[tokio::test]
async fn foreign_hosts_and_pages_are_kept_out() {
    let config = ServerConfig {
        hosts: Hosts::LoopbackAnd(vec!["llm.lan".into()]),
        origins: Origins::new(["https://chat.example".to_owned()]).unwrap(),
        ..ServerConfig::default()
    };
    let server = Server::with(config, answer()).await;
    let local = "Host: 127.0.0.1:8000";
    for (method, path, headers, status) in [
        ("GET", "/health", &[local][..], 200),
        ("GET", "/health", &[], 200),
        ("POST", CHAT, &["Host: [::1]:8000"], 200),
        ("POST", CHAT, &["Host: llm.lan"], 200),
        ("GET", "/health", &["Host: evil.example"], 403),
        ("GET", "/nothing", &["Host: evil.example:8000"], 403),
        ("GET", "/health", &[local, "Host: evil.example"], 403),
        ("GET", "http://evil.example/health", &[local], 403),
        ("POST", CHAT, &[local, "Origin: http://localhost:3000"], 200),
        ("POST", CHAT, &[local, "Origin: https://chat.example"], 200),
        ("POST", CHAT, &[local, "Origin: https://evil.example"], 403),
        ("POST", CHAT, &[local, "Origin: null"], 403),
        ("GET", "/v1/models", &[local, "Origin: https://evil.example"], 200),
        ("DELETE", "/v1/models", &[local, "Origin: https://evil.example"], 403),
    ] {
        let reply = server.ask(method, path, headers).await;
        assert_eq!(reply.status, status, "{method} {path} {headers:?}: {}", reply.body);
        if status == 403 {
            assert_eq!(error(&reply).1, "permission_error");
            let way_out = if reply.body.contains("Host") { "--allowed-host evil.example`" } else { "--cors-origin " };
            assert!(reply.body.contains(way_out), "{}", reply.body);
        }
    }
    assert_eq!(server.script.n_started(), 4);
}

#[tokio::test]
async fn replies_name_allowed_origins_only() {
    let config =
        ServerConfig { origins: Origins::new(["https://a.example".to_owned()]).unwrap(), ..Default::default() };
    let server = Server::with(config, answer()).await;
    for (origin, allowed) in
        [("https://a.example", true), ("http://localhost:3000", true), ("https://evil.example", false), ("null", false)]
    {
        let origin_line = format!("Origin: {origin}");
        let asked = ["Host: localhost", &origin_line, "Access-Control-Request-Headers: authorization,x-a"];
        let expected = allowed.then_some(origin);
        for (method, path, status) in [("OPTIONS", CHAT, 200), ("GET", "/v1/models", 200), ("GET", "/nothing", 404)] {
            let reply = server.ask(method, path, &asked).await;
            assert_eq!(reply.status, status);
            assert_eq!(header(&reply, "access-control-allow-origin"), expected, "{method} {path} {origin}");
            assert_eq!(header(&reply, "vary"), Some("origin"));
        }
        let preflight = server.ask("OPTIONS", "/anything", &asked).await;
        assert_eq!((preflight.status, preflight.body.as_str()), (200, ""));
        assert_eq!(header(&preflight, "access-control-allow-methods"), Some("get, post, delete, options"));
        assert_eq!(header(&preflight, "access-control-allow-headers"), Some("authorization,x-a"));
        assert_eq!(header(&preflight, "access-control-allow-credentials"), expected.map(|_| "true"));
    }
    let reply = server.ask("OPTIONS", "/", &["Host: localhost"]).await;
    assert_eq!(header(&reply, "access-control-allow-headers"), Some("*"));
}

#[tokio::test]
async fn keys_are_asked_for_everywhere_but_at_the_door() {
    let api_keys = ApiKeys::new(["k1".to_owned(), "k2".to_owned()]);
    let server = Server::with(ServerConfig { api_keys, ..ServerConfig::default() }, answer()).await;
    let local = "Host: localhost";
    for (method, path, headers, status) in [
        ("GET", "/health", &[local][..], 200),
        ("GET", "/v1/health", &[local], 200),
        ("OPTIONS", CHAT, &[local], 200),
        ("GET", "/v1/models", &[local], 401),
        ("GET", "/nothing", &[local], 401),
        ("POST", CHAT, &[local], 401),
        ("POST", CHAT, &[local, "Authorization: Bearer k3"], 401),
        ("POST", CHAT, &[local, "Authorization: Bearer k1"], 200),
        ("POST", CHAT, &[local, "X-Api-Key: k2"], 200),
        ("POST", CHAT, &[local, "Authorization: Bearer k3", "X-Api-Key: k2"], 401),
        ("GET", "/nothing", &[local, "Authorization: Bearer k2"], 404),
    ] {
        let reply = server.ask(method, path, headers).await;
        assert_eq!(reply.status, status, "{method} {path} {headers:?}");
        if status == 401 {
            assert_eq!(error(&reply), (401, "authentication_error".into(), Value::Null));
            assert_eq!(reply.json()["error"]["message"], "Invalid API Key");
            assert_eq!(header(&reply, "www-authenticate"), Some("bearer"));
        }
    }
    assert_eq!(server.script.n_started(), 2);
}

#[tokio::test]
async fn checks_come_in_their_order() {
    let api_keys = ApiKeys::new(["k".to_owned()]);
    let server = Server::loading(ServerConfig { api_keys, ..ServerConfig::default() }, answer()).await;
    assert_eq!(server.ask("OPTIONS", CHAT, &["Host: localhost"]).await.status, 200);
    assert_eq!(server.ask("POST", CHAT, &["Host: evil.example"]).await.status, 403);
    assert_eq!(server.ask("POST", CHAT, &["Host: localhost"]).await.status, 503);
    assert_eq!(server.ask("GET", "/health", &["Host: localhost"]).await.status, 503);
    server.state.set_ready(Backend::Scripted(server.script.clone()));
    assert_eq!(server.ask("POST", CHAT, &["Host: localhost"]).await.status, 401);
}
