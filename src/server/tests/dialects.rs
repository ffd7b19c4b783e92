//! Responses and Messages over the wire: what the other layers do to them, and what they do to the backend.

use super::*;
use crate::server::testing::send_with;

/// The events of a stream, with the names of their `event:` lines.
fn events(reply: &Reply) -> Vec<(String, Value)> {
    assert!(reply.head.contains("content-type: text/event-stream"), "{}", reply.head);
    let event = |frame: &str| {
        let (name, data) = frame.strip_prefix("event: ").unwrap().split_once("\ndata: ").unwrap();
        (name.to_owned(), serde_json::from_str(data).unwrap())
    };
    reply.body.strip_suffix("\n\n").unwrap().split("\n\n").map(event).collect()
}

/// Status and type of an error in Anthropic's shape, which also has this server's own fields.
fn anthropic_error(reply: &Reply) -> (u16, String) {
    assert!(reply.head.contains("content-type: application/json; charset=utf-8"), "{}", reply.head);
    let body = reply.json();
    assert_eq!((&body["type"], &body["error"]["code"]), (&json!("error"), &json!(reply.status)), "{body}");
    assert!(body["error"]["message"].is_string(), "{body}");
    (reply.status, body["error"]["type"].as_str().unwrap().to_owned())
}

/// A model that calls `f`, as one without tools of its own does when it has to; what it is told of them takes room.
async fn calling() -> Server {
    let items = vec![prompt(), piece("{\"name\":\"f\",\"argum"), piece("ents\":{\"a\":1}}"), done(4)];
    let server = Server::loading(ServerConfig::default(), Play::Items(items)).await;
    server.state.set_ready(Backend::Scripted(server.script.clone().with_context(1024)));
    server
}

fn prompt_text(server: &Server) -> String {
    let bytes: Vec<u8> = server.script.seen().0.iter().map(|token| token.0 as u8).collect();
    String::from_utf8(bytes).unwrap()
}

#[tokio::test]
async fn errors_have_anthropics_shape_wherever_they_come_from() {
    let api_keys = ApiKeys::new(["k".to_owned()]);
    let config = ServerConfig { api_keys, body_limit: 1000, ..ServerConfig::default() };
    let server = Server::loading(config, answer()).await;
    let ask = async |method, path, headers: &[&str], body: &str| {
        anthropic_error(&receive(send_with(server.address, method, path, headers, body.as_bytes()).await).await)
    };
    let (local, key) = ("Host: localhost", "X-Api-Key: k");
    let body = chat(json!({})).to_string();
    let expected = |status, kind: &str| (status, kind.to_owned());
    let messages = "/v1/messages?beta=true";
    assert_eq!(ask("POST", messages, &[local], &body).await, expected(503, "overloaded_error"));
    server.state.set_ready(Backend::Scripted(server.script.clone()));
    let long = " ".repeat(1001);
    for (method, path, headers, body, status, kind) in [
        ("POST", messages, &[local][..], body.as_str(), 401, "authentication_error"),
        ("POST", messages, &["Host: evil.example", key], &body, 403, "permission_error"),
        ("GET", messages, &[local, key], "", 404, "not_found_error"),
        ("POST", "/v1/messages/batches", &[local, key], "{}", 404, "not_found_error"),
        ("POST", messages, &[local, key], &long, 413, "request_too_large"),
        ("POST", messages, &[local, key], "{\"messages\":", 400, "invalid_request_error"),
        ("POST", messages, &[local, key], "{}", 400, "invalid_request_error"),
        ("POST", "/v1/messages/count_tokens", &[local, key], "{}", 400, "invalid_request_error"),
    ] {
        assert_eq!(ask(method, path, headers, body).await, expected(status, kind), "{method} {path} {body}");
    }
    // Not on paths that only look alike.
    let other = receive(send_with(server.address, "GET", "/v1/messagesx", &[local, key], b"").await).await;
    assert_eq!((error(&other).0, other.json().get("type")), (404, None));
    assert_eq!(server.script.n_started(), 0);
}

#[tokio::test]
async fn messages_whole_and_streamed() {
    let body = |stream: bool| chat(json!({"system": "s", "max_tokens": 9, "stop_sequences": ["x"], "stream": stream}));
    let server = Server::playing(answer()).await;
    let whole = server.post("/v1/messages", &body(false)).await.json();
    assert_eq!(
        (&whole["content"], &whole["stop_reason"]),
        (&json!([{"type": "text", "text": "Hé!"}]), &json!("end_turn"))
    );
    assert_eq!(prompt_text(&server), "system:\"s\"\nuser:\"a\"\n");
    let options = server.script.seen().1;
    assert_eq!((options.max_tokens, options.stop), (Some(9), vec!["x".to_owned(), "<end>".to_owned()]));

    let server = Server::playing(answer()).await;
    let events = events(&server.post("/v1/messages", &body(true)).await);
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names,
        [
            "message_start",
            "content_block_start",
            "content_block_delta",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop"
        ]
    );
    assert_eq!(events[0].1["message"]["usage"]["input_tokens"], 3);
    assert_eq!(events[5].1["usage"], whole["usage"]);
}

#[tokio::test]
async fn responses_whole_and_streamed() {
    for path in ["/v1/responses", "/responses"] {
        let server = Server::playing(answer()).await;
        let whole = server.post(path, &json!({"input": "a", "max_output_tokens": 9})).await.json();
        assert_eq!((&whole["status"], &whole["output"][0]["content"][0]["text"]), (&json!("completed"), &json!("Hé!")));
        assert_eq!(whole["timings"]["predicted_n"], 4);
        assert_eq!((prompt_text(&server), server.script.seen().1.max_tokens), ("user:\"a\"\n".to_owned(), Some(9)));
    }
    let server = Server::playing(answer()).await;
    let events = events(&server.post("/v1/responses", &json!({"input": "a", "stream": true})).await);
    for (number, (name, event)) in events.iter().enumerate() {
        assert_eq!((&event["type"], &event["sequence_number"]), (&json!(name), &json!(number)));
    }
    let (name, last) = events.last().unwrap();
    assert_eq!((name.as_str(), &last["response"]["usage"]["total_tokens"]), ("response.completed", &json!(7)));
    assert_eq!(last["timings"]["predicted_n"], 4);
}

#[tokio::test]
async fn a_forced_call_in_each_dialect() {
    let server = calling().await;
    let tool = json!({"name": "f", "input_schema": {"type": "object"}});
    let body = chat(json!({"tools": [tool], "tool_choice": {"type": "any"}}));
    let reply = server.post("/v1/messages", &body).await.json();
    assert_eq!(
        (&reply["stop_reason"], &reply["content"][0]["input"]),
        (&json!("tool_use"), &json!({"a": 1})),
        "{reply}"
    );

    let server = calling().await;
    let tool = json!({"type": "function", "name": "f", "parameters": {"type": "object"}});
    let body = json!({"input": "a", "tools": [tool], "tool_choice": "required", "stream": true});
    let events = events(&server.post("/v1/responses", &body).await);
    let arguments = events.iter().find(|(name, _)| name == "response.function_call_arguments.done").unwrap();
    assert_eq!(arguments.1["arguments"], "{\"a\":1}");
}

#[tokio::test]
async fn a_constraint_that_cannot_be_kept_is_told_under_its_own_name() {
    let server = Server::playing(answer()).await;
    let format = json!({"type": "json_schema", "name": "n", "schema": {"type": "object"}});
    let tool = json!({"type": "function", "name": "f"});
    let body = json!({"input": "a", "tools": [tool], "tool_choice": "required", "text": {"format": format}});
    assert_eq!(error(&server.post("/v1/responses", &body).await).2, "text.format");
    let tool = json!({"name": "f", "input_schema": {}});
    let body = chat(json!({"tools": [tool], "tool_choice": {"type": "any"}, "output_config": {"format": format}}));
    assert_eq!(error(&server.post("/v1/messages", &body).await).2, "output_config.format");
}

#[tokio::test]
async fn tokens_are_counted_without_a_generation() {
    let server = Server::playing(answer()).await;
    let n = "user:\"a\"\n".len();
    assert_eq!(server.post("/v1/messages/count_tokens", &chat(json!({}))).await.json(), json!({"input_tokens": n}));
    let expected = json!({"object": "response.input_tokens", "input_tokens": n});
    for path in ["/v1/responses/input_tokens", "/responses/input_tokens"] {
        assert_eq!(server.post(path, &json!({"input": "a"})).await.json(), expected);
    }
    for path in ["/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"] {
        assert_eq!(server.post(path, &chat(json!({}))).await.json(), expected);
    }
    assert_eq!(server.script.n_started(), 0);
}

#[tokio::test]
async fn a_late_error_is_an_event_in_the_dialect() {
    let late = Play::Items(vec![prompt(), piece("H"), Err(EngineError::Decode("no room".into()))]);
    for play in [late, Play::ThenPanic(vec![prompt(), piece("H")])] {
        let server = Server::playing(play).await;
        let events_of = async |path, body: Value| events(&server.post(path, &body).await);
        let events = events_of("/v1/messages", chat(json!({"stream": true}))).await;
        let (name, last) = events.last().unwrap();
        assert_eq!((name.as_str(), &last["error"]["type"]), ("error", &json!("api_error")));
        let events = events_of("/v1/responses", json!({"input": "a", "stream": true})).await;
        let (name, last) = events.last().unwrap();
        assert_eq!((name.as_str(), &last["response"]["error"]["code"]), ("response.failed", &json!("server_error")));
        assert_eq!(last["response"]["output"][0]["content"][0]["text"], "H");
    }
}

#[tokio::test]
async fn an_early_error_is_an_ordinary_reply() {
    let server = Server::playing(Play::Items(vec![Err(EngineError::Decode("no room".into()))])).await;
    let reply = server.post("/v1/messages", &chat(json!({"stream": true}))).await;
    assert_eq!(anthropic_error(&reply), (500, "api_error".into()));
    let reply = server.post("/v1/responses", &json!({"input": "a", "stream": true})).await;
    assert_eq!(error(&reply).0, 500);
}
