//! What a client sees while its prompt waits or is evaluated.

use super::*;
use crate::engine::{Event, PromptProgress};

/// Longer than a stream stays closed.
const LATE: Duration = Duration::from_millis(600);

async fn read_until(socket: &mut TcpStream, end: &str) -> String {
    let mut text = String::new();
    while !text.contains(end) {
        let mut buffer = [0; 1024];
        let n = socket.read(&mut buffer).await.unwrap();
        assert!(n > 0, "{text}");
        text.push_str(std::str::from_utf8(&buffer[..n]).unwrap());
    }
    text
}

#[tokio::test]
async fn a_stream_opens_before_its_prompt_is_evaluated() {
    let config = ServerConfig { keep_alive: Duration::from_millis(20), ..ServerConfig::default() };
    let server = Server::with(config, Play::ThenHang(Vec::new())).await;
    let body = chat(json!({"stream": true})).to_string();
    let mut socket = send(server.address, "POST", "/v1/chat/completions", body.as_bytes()).await;
    let text = read_until(&mut socket, "\n\n:\n\n:\n\n").await;
    assert!(text.contains("\"delta\":{\"role\":\"assistant\",\"content\":null}"), "{text}");
    drop(socket);
    server.script.until_running(0).await;
}

#[tokio::test]
async fn a_late_prompt_changes_nothing_else() {
    let items = vec![prompt(), piece("H"), piece("é!"), done(4)];
    let at_once = Server::playing(Play::Items(items.clone())).await;
    let late = Server::playing(Play::Late(LATE, items)).await;
    let without_ids = |reply: &Reply| -> Vec<Value> {
        let frames = reply.frames().into_iter().filter(|frame| *frame != "[DONE]");
        frames.map(|frame| serde_json::from_str::<Value>(frame).unwrap()["choices"].clone()).collect()
    };
    for n in [1, 3] {
        let body = chat(json!({"stream": true, "n": n, "stream_options": {"include_usage": true}}));
        let [expected, found] = [&at_once, &late].map(|server| server.post("/v1/chat/completions", &body));
        let (mut expected, mut found) = (without_ids(&expected.await), without_ids(&found.await));
        // Answers of several share the stream in any order.
        expected.sort_by_key(|choices| choices[0]["index"].as_u64());
        found.sort_by_key(|choices| choices[0]["index"].as_u64());
        assert_eq!(found, expected, "n = {n}");
    }
    let texts = json!({"prompt": ["a", "b"], "stream": true});
    let found = late.post("/v1/completions", &texts).await;
    assert_eq!(found.frames().last(), Some(&"[DONE]"), "{}", found.body);
}

#[tokio::test]
async fn a_late_error_is_an_event() {
    let server = Server::playing(Play::Late(LATE, vec![Err(EngineError::Decode("no room".into()))])).await;
    let reply = server.post("/v1/chat/completions", &chat(json!({"stream": true, "n": 2}))).await;
    assert_eq!((reply.status, reply.frames().len()), (200, 3), "{}", reply.body);
    let last: Value = serde_json::from_str(reply.frames()[2]).unwrap();
    assert_eq!(last["error"]["code"], 500);
    assert_eq!(error(&server.post("/v1/chat/completions", &chat(json!({}))).await).0, 500);
}

#[tokio::test]
async fn a_message_that_opens_early_has_its_tokens() {
    let server = Server::playing(Play::Late(LATE, vec![prompt(), piece("H"), done(4)])).await;
    let body = chat(json!({"stream": true, "max_tokens": 9}));
    let reply = server.post("/v1/messages", &body).await;
    let start = reply.body.lines().nth(1).unwrap().strip_prefix("data: ").unwrap();
    let start: Value = serde_json::from_str(start).unwrap();
    assert!(start["message"]["usage"]["input_tokens"].as_u64().unwrap() > 0, "{start}");
}

#[tokio::test]
async fn work_that_has_not_begun_ends_with_the_server() {
    let config = ServerConfig { shutdown_grace: Duration::from_millis(50), ..ServerConfig::default() };
    let server = Server::with(config, Play::ThenHang(Vec::new())).await;
    let body = chat(json!({"stream": true})).to_string();
    let mut socket = send(server.address, "POST", "/v1/chat/completions", body.as_bytes()).await;
    read_until(&mut socket, "assistant").await;
    let stopping = tokio::spawn(server.stop());
    let rest = read_until(&mut socket, "}}\n\n").await;
    assert!(rest.contains("the server is shutting down"), "{rest}");
    stopping.await.unwrap();
}

#[tokio::test]
async fn one_more_than_the_queue_holds_comes_back_later() {
    let config = ServerConfig { max_queue: 1, ..ServerConfig::default() };
    let server = Server::with(config, Play::ThenHang(vec![prompt()])).await;
    let body = chat(json!({"n": 3})).to_string();
    let post = || send(server.address, "POST", "/v1/chat/completions", body.as_bytes());
    let waiting = (post().await, post().await);
    server.script.until_running(6).await;
    let refused = server.post("/v1/chat/completions", &chat(json!({}))).await;
    assert_eq!(error(&refused).0, 503);
    assert!(refused.head.contains("retry-after: 2"), "{}", refused.head);
    assert!(refused.body.contains("--max-queue"), "{}", refused.body);
    drop(waiting);
    server.script.until_running(0).await;
    drop(post().await);
    server.script.until_running(0).await;
}

#[tokio::test]
async fn progress_is_told_when_asked_for() {
    let at = |n_processed| {
        let elapsed = Duration::from_millis(5);
        Ok(Event::Progress(PromptProgress { n_prompt: 3, n_cached: 1, n_processed, elapsed }))
    };
    let server = Server::playing(Play::Items(vec![at(1), at(3), prompt(), piece("H"), done(4)])).await;
    let body = json!({"prompt": "a", "messages": [{"role": "user", "content": "a"}], "stream": true,
        "return_progress": true});
    let expected = [1, 3].map(|n| json!({"total": 3, "cache": 1, "processed": n, "time_ms": 5}));
    for path in ["/v1/chat/completions", "/v1/completions", "/completion"] {
        let reply = server.post(path, &body).await;
        let frames = reply.frames().into_iter().filter(|frame| *frame != "[DONE]");
        let told: Vec<Value> = frames
            .map(|frame| serde_json::from_str::<Value>(frame).unwrap()["prompt_progress"].clone())
            .filter(|progress| !progress.is_null())
            .collect();
        assert_eq!(told, expected, "{path}: {}", reply.body);
    }
    let seen = server.script.all_seen();
    assert!(seen.iter().all(|(_, options)| options.report_progress));
}
