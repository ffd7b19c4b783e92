//! The whole server over real sockets, with a scripted backend.

use std::net::SocketAddr;

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::oneshot,
    task::JoinHandle,
};

use super::{
    testing::{Play, Reply, Script, done, piece, prompt, receive, send},
    *,
};
use crate::{engine::EngineError, llama::Token};

mod dialects;
mod guard;
mod patience;
mod service;

struct Server {
    address: SocketAddr,
    state: AppState,
    script: Script,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<io::Result<()>>,
}

impl Server {
    async fn loading(config: ServerConfig, play: Play) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = AppState::new(config);
        let (stop, stopped) = oneshot::channel::<()>();
        let signal = async { stopped.await.unwrap_or(()) };
        let task = tokio::spawn(run(listener, state.clone(), signal));
        Self { address, state, script: Script::new(play), stop: Some(stop), task }
    }

    async fn with(config: ServerConfig, play: Play) -> Self {
        let server = Self::loading(config, play).await;
        server.state.set_ready(Backend::Scripted(server.script.clone()));
        server
    }

    async fn playing(play: Play) -> Self {
        Self::with(ServerConfig::default(), play).await
    }

    async fn get(&self, path: &str) -> Reply {
        receive(send(self.address, "GET", path, b"").await).await
    }

    async fn post(&self, path: &str, body: &Value) -> Reply {
        receive(send(self.address, "POST", path, body.to_string().as_bytes()).await).await
    }

    /// Tells the server to stop and waits until it has.
    async fn stop(mut self) -> Duration {
        let start = std::time::Instant::now();
        self.stop.take().unwrap().send(()).unwrap();
        self.task.await.unwrap().unwrap();
        start.elapsed()
    }
}

/// "Hé!" in three pieces, one of them without text.
fn answer() -> Play {
    Play::Items(vec![prompt(), piece("H"), piece(""), piece("é!"), done(4)])
}

fn chat(more: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "a"}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// Status, `error.type` and `error.param`; also checks that the rest has the shape.
fn error(reply: &Reply) -> (u16, String, Value) {
    assert!(reply.head.contains("content-type: application/json; charset=utf-8"), "{}", reply.head);
    let body = reply.json();
    let error = &body["error"];
    assert_eq!(error["code"], reply.status, "{body}");
    assert!(error["message"].is_string(), "{body}");
    (reply.status, error["type"].as_str().unwrap().into(), error["param"].clone())
}

#[tokio::test]
async fn every_route_waits_for_the_model() {
    let server = Server::loading(ServerConfig::default(), answer()).await;
    for path in ["/health", "/v1/health", "/v1/models", "/nothing"] {
        let reply = server.get(path).await;
        assert_eq!((reply.status, &reply.json()["error"]["message"]), (503, &json!("Loading model")), "{path}");
        assert_eq!(error(&reply).1, "unavailable_error");
    }
    assert_eq!(server.post("/v1/chat/completions", &chat(json!({}))).await.status, 503);
    server.state.set_ready(Backend::Scripted(server.script.clone()));
    for path in ["/health", "/v1/health?x=1"] {
        let reply = server.get(path).await;
        assert_eq!((reply.status, reply.json()), (200, json!({"status": "ok"})));
        assert!(reply.head.contains("content-type: application/json; charset=utf-8"), "{}", reply.head);
    }
}

#[tokio::test]
async fn models() {
    let server = Server::playing(answer()).await;
    let list = server.get("/v1/models").await.json();
    assert_eq!(list["data"][0]["id"], "tiny-Q4_1");
    assert_eq!(list["data"][0]["created"], 1_790_000_000);
    assert_eq!(list["data"][0]["meta"]["n_ctx"], 64);
    assert_eq!(list["models"][0]["model"], "tiny-Q4_1");
    assert_eq!(server.get("/models").await.json(), list);
    assert_eq!(server.get("/v1/models/tiny-Q4_1").await.json(), list["data"][0]);
    for path in ["/v1/models/other", "/v1/models/%ff"] {
        assert_eq!(error(&server.get(path).await), (404, "not_found_error".into(), Value::Null));
    }

    let config = ServerConfig { alias: Some("org/model".into()), ..ServerConfig::default() };
    let server = Server::with(config, answer()).await;
    for path in ["/v1/models/org/model", "/v1/models/org%2Fmodel"] {
        assert_eq!(server.get(path).await.json()["id"], "org/model");
    }
    assert_eq!(server.post("/v1/completions", &json!({"prompt": "a"})).await.json()["model"], "org/model");
}

#[tokio::test]
async fn unknown_paths_and_wrong_methods_are_404() {
    let server = Server::playing(answer()).await;
    for (method, path) in [("GET", "/nothing"), ("GET", "/v1/chat/completions"), ("POST", "/health"), ("PUT", "/")] {
        let reply = receive(send(server.address, method, path, b"").await).await;
        assert_eq!(error(&reply), (404, "not_found_error".into(), Value::Null), "{method} {path}");
    }
}

#[tokio::test]
async fn bad_requests_are_400_and_reach_no_backend() {
    let server = Server::playing(answer()).await;
    for (path, body, param) in [
        ("/v1/chat/completions", json!([]), Value::Null),
        ("/v1/chat/completions", json!({}), json!("messages")),
        ("/v1/chat/completions", chat(json!({"stream": 1})), json!("stream")),
        ("/v1/chat/completions", chat(json!({"n": 0})), json!("n")),
        ("/v1/chat/completions", chat(json!({"id_slot": 1})), json!("id_slot")),
        ("/v1/chat/completions", chat(json!({"tool_choice": "required"})), json!("tool_choice")),
        ("/v1/chat/completions", chat(json!({"response_format": {"type": "x"}})), json!("response_format.type")),
        ("/chat/completions", chat(json!({"tools": [{}]})), json!("tools[0].function")),
        ("/v1/completions", json!({}), json!("prompt")),
        ("/v1/completions", json!({"prompt": []}), json!("prompt")),
        ("/v1/completions", json!({"prompt": ["a", {}]}), json!("prompt[1].prompt_string")),
        ("/v1/completions", json!({"prompt": [["a", []]]}), json!("prompt[0][1]")),
        ("/v1/completions", json!({"prompt": [1, 256]}), json!("prompt[1]")),
        ("/v1/completions", json!({"prompt": [1, -1]}), json!("prompt[1]")),
        ("/v1/completions", json!({"prompt": "a", "suffix": "b"}), json!("suffix")),
        ("/v1/completions", json!({"prompt": "a", "echo": true, "logprobs": 1}), json!("echo")),
    ] {
        let reply = server.post(path, &body).await;
        assert_eq!(error(&reply), (400, "invalid_request_error".into(), param), "{path} {body}");
    }
    let reply = receive(send(server.address, "POST", "/v1/completions", b"{\"prompt\": \"a}").await).await;
    assert_eq!(error(&reply).0, 400);
    assert!(reply.body.contains("at line 1 column 14"), "{}", reply.body);
    assert_eq!(server.script.n_started(), 0);
}

#[tokio::test]
async fn a_body_over_the_limit_is_413_though_the_client_writes_it_to_the_end() {
    let config = ServerConfig { body_limit: 4 << 20, ..ServerConfig::default() };
    let server = Server::with(config, answer()).await;
    let body = vec![b' '; (4 << 20) + 1];
    let reply = receive(send(server.address, "POST", "/v1/completions", &body).await).await;
    assert_eq!(error(&reply), (413, "invalid_request_error".into(), Value::Null));
}

#[tokio::test]
async fn a_prompt_that_does_not_fit_is_refused_before_the_backend() {
    let server = Server::playing(answer()).await;
    for stream in [false, true] {
        let reply = server.post("/v1/completions", &json!({"prompt": "a".repeat(64), "stream": stream})).await;
        assert_eq!(error(&reply), (400, "exceed_context_size_error".into(), Value::Null));
        let body = reply.json();
        assert_eq!((&body["error"]["n_prompt_tokens"], &body["error"]["n_ctx"]), (&json!(64), &json!(64)));
    }
    assert_eq!(server.script.n_started(), 0);
}

#[tokio::test]
async fn chat_whole() {
    let server = Server::playing(answer()).await;
    let body = chat(json!({"max_tokens": 9, "stop": "x", "seed": 3, "logit_bias": {"A": false}}));
    let reply = server.post("/v1/chat/completions", &body).await;
    let body = reply.json();
    assert_eq!(body["object"], "chat.completion");
    assert!(body["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert!(body["system_fingerprint"].as_str().unwrap().starts_with('b'));
    let message = json!({"role": "assistant", "content": "Hé!"});
    assert_eq!(body["choices"], json!([{"index": 0, "message": message, "finish_reason": "stop"}]));
    assert_eq!(
        body["usage"],
        json!({"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7,
               "prompt_tokens_details": {"cached_tokens": 0}, "completion_tokens_details": {"reasoning_tokens": 0}})
    );
    assert_eq!(body["timings"]["predicted_per_second"], 300.0);

    let (prompt, options) = server.script.seen();
    let bytes: Vec<u8> = prompt.iter().map(|token| token.0 as u8).collect();
    assert_eq!(String::from_utf8(bytes).unwrap(), "user:\"a\"\n");
    assert_eq!(options.max_tokens, Some(9));
    assert_eq!(options.stop, ["x", "<end>"]);
    assert_eq!(options.preserved_tokens, [Token(7)]);
    assert_eq!(options.sampling.seed, Some(3));
    assert_eq!(options.sampling.logit_bias, [(Token(65), f32::NEG_INFINITY)]);
}

#[tokio::test]
async fn chat_streamed() {
    let server = Server::playing(answer()).await;
    let reply = server.post("/v1/chat/completions", &chat(json!({"stream": true}))).await;
    assert!(reply.head.contains("content-type: text/event-stream"), "{}", reply.head);
    assert!(reply.head.contains("x-accel-buffering: no"), "{}", reply.head);
    let frames = reply.frames();
    assert_eq!(frames.last(), Some(&"[DONE]"));
    let chunks = chunks(&frames[..frames.len() - 1]);
    for chunk in &chunks {
        assert_eq!((&chunk["object"], &chunk["id"]), (&json!("chat.completion.chunk"), &chunks[0]["id"]));
        assert_eq!(chunk.get("usage"), None);
    }
    let choices: Vec<_> = chunks.iter().map(|chunk| chunk["choices"].clone()).collect();
    let choice = |delta, finish: Value| json!([{"index": 0, "delta": delta, "finish_reason": finish}]);
    assert_eq!(
        choices,
        [
            choice(json!({"role": "assistant", "content": null}), Value::Null),
            choice(json!({"content": "H"}), Value::Null),
            choice(json!({"content": "é!"}), Value::Null),
            choice(json!({}), json!("stop")),
        ]
    );
    let with_timings = chunks.iter().filter(|chunk| chunk.get("timings").is_some()).count();
    assert!(with_timings == 1 && chunks[3]["timings"]["predicted_n"] == 4);

    let body = chat(json!({"stream": true, "stream_options": {"include_usage": true}}));
    let reply = server.post("/chat/completions", &body).await;
    let frames = reply.frames();
    assert_eq!((frames.len(), frames[5]), (6, "[DONE]"));
    let chunks = self::chunks(&frames[..5]);
    assert_eq!(chunks[3].get("timings"), None);
    assert_eq!((&chunks[4]["choices"], &chunks[4]["usage"]["total_tokens"]), (&json!([]), &json!(7)));
    assert_eq!(chunks[4]["timings"]["predicted_n"], 4);
}

#[tokio::test]
async fn completions_whole_and_streamed_have_the_same_text() {
    let server = Server::playing(answer()).await;
    for prompt in [json!("abc"), json!([97, 98, 99]), json!(["abc"]), json!([[97, 98, 99]])] {
        let server = Server::playing(answer()).await;
        let body = server.post("/v1/completions", &json!({"prompt": prompt})).await.json();
        assert_eq!(body["object"], "text_completion");
        let choices = json!([{"index": 0, "text": "Hé!", "logprobs": null, "finish_reason": "stop"}]);
        assert_eq!(body["choices"], choices);
        assert_eq!(body["usage"]["total_tokens"], 7);
        assert_eq!(server.script.seen().0, [97, 98, 99].map(Token));
    }
    let reply = server.post("/v1/completions", &json!({"prompt": "abc", "stream": true})).await;
    let frames = reply.frames();
    let chunks = chunks(&frames[..frames.len() - 1]);
    let text: String = chunks.iter().map(|chunk| chunk["choices"][0]["text"].as_str().unwrap()).collect();
    assert_eq!((chunks.len(), text.as_str(), frames[3]), (3, "Hé!", "[DONE]"));
    assert_eq!(chunks[2]["choices"][0]["finish_reason"], "stop");
    assert!(chunks[2]["usage"]["total_tokens"] == 7 && chunks[2]["timings"]["prompt_n"] == 3);
}

#[tokio::test]
async fn an_empty_prompt_has_an_empty_answer() {
    let server = Server::playing(answer()).await;
    let reply = server.post("/v1/completions", &json!({"prompt": ""})).await.json();
    let choices = json!([{"index": 0, "text": "", "logprobs": null, "finish_reason": "length"}]);
    assert_eq!((&reply["choices"], &reply["usage"]["total_tokens"]), (&choices, &json!(0)));
    assert!(reply["timings"].as_object().unwrap().values().all(|value| value.as_f64() == Some(0.0)), "{reply}");
    let reply = server.post("/v1/completions", &json!({"prompt": "", "stream": true})).await;
    assert_eq!((reply.frames().len(), reply.frames()[1]), (2, "[DONE]"));
    assert_eq!(server.script.n_started(), 0);
}

#[tokio::test]
async fn an_error_before_the_first_event_is_an_ordinary_reply() {
    for (items, expected) in [
        (vec![Err(EngineError::Decode("no room".into()))], (500, "server_error")),
        (vec![Err(EngineError::PromptTooLong { n_prompt: 9, n_ctx: 8 })], (400, "exceed_context_size_error")),
        (vec![Err(EngineError::Stopped)], (503, "unavailable_error")),
    ] {
        let server = Server::playing(Play::Items(items)).await;
        for stream in [false, true] {
            let reply = server.post("/v1/chat/completions", &chat(json!({"stream": stream}))).await;
            let (status, kind, _) = error(&reply);
            assert_eq!((status, kind.as_str()), expected);
        }
    }
}

#[tokio::test]
async fn a_later_error_is_the_last_frame() {
    let items = vec![prompt(), piece("H"), Err(EngineError::Decode("no room".into()))];
    let without_report = vec![prompt(), piece("H")];
    for play in [Play::Items(items.clone()), Play::Items(without_report), Play::ThenPanic(vec![prompt(), piece("H")])] {
        let server = Server::playing(play).await;
        let reply = server.post("/v1/chat/completions", &chat(json!({"stream": true}))).await;
        assert_eq!((reply.status, reply.frames().len()), (200, 3), "{}", reply.body);
        let last: Value = serde_json::from_str(reply.frames()[2]).unwrap();
        assert_eq!((&last["error"]["code"], &last["error"]["type"]), (&json!(500), &json!("server_error")));
        let reply = server.post("/v1/chat/completions", &chat(json!({}))).await;
        assert_eq!(error(&reply).0, 500);
    }
}

#[tokio::test]
async fn a_panic_is_a_500_with_a_body() {
    let server = Server::playing(Play::ThenPanic(Vec::new())).await;
    let reply = server.post("/v1/chat/completions", &chat(json!({}))).await;
    assert_eq!(error(&reply).0, 500);
}

#[tokio::test]
async fn a_client_that_hangs_up_ends_its_generation() {
    for (items, stream) in
        [(vec![], false), (vec![], true), (vec![prompt(), piece("H")], false), (vec![prompt(), piece("H")], true)]
    {
        let server = Server::playing(Play::ThenHang(items)).await;
        let body = chat(json!({"stream": stream})).to_string();
        let socket = send(server.address, "POST", "/v1/chat/completions", body.as_bytes()).await;
        server.script.until_running(1).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        server.script.until_running(1).await;
        drop(socket);
        server.script.until_running(0).await;
    }
}

#[tokio::test]
async fn a_generation_is_dropped_at_its_end_though_the_client_reads_slowly() {
    let server = Server::playing(answer()).await;
    let body = chat(json!({"stream": true})).to_string();
    let socket = send(server.address, "POST", "/v1/chat/completions", body.as_bytes()).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    server.script.until_running(0).await;
    assert_eq!(receive(socket).await.frames().last(), Some(&"[DONE]"));
}

#[tokio::test]
async fn a_silent_stream_sends_comments() {
    let config = ServerConfig { keep_alive: Duration::from_millis(20), ..ServerConfig::default() };
    let server = Server::with(config, Play::ThenHang(vec![prompt()])).await;
    let body = chat(json!({"stream": true})).to_string();
    let mut socket = send(server.address, "POST", "/v1/chat/completions", body.as_bytes()).await;
    let mut text = String::new();
    while !text.contains("\n\n:\n\n:\n\n") {
        let mut buffer = [0; 1024];
        let n = socket.read(&mut buffer).await.unwrap();
        assert!(n > 0, "{text}");
        text.push_str(std::str::from_utf8(&buffer[..n]).unwrap());
    }
}

#[tokio::test]
async fn shutdown_lets_work_finish() {
    let server = Server::playing(Play::ThenHang(vec![prompt(), piece("H")])).await;
    let body = chat(json!({"stream": true})).to_string();
    let socket = send(server.address, "POST", "/v1/chat/completions", body.as_bytes()).await;
    server.script.until_running(1).await;
    let mut open = TcpStream::connect(server.address).await.unwrap();
    open.write_all(b"GET /health").await.unwrap();
    tokio::time::sleep(Duration::from_millis(20)).await;

    let (address, state) = (server.address, server.state.clone());
    let stopping = tokio::spawn(server.stop());
    state.refusing_new_work().await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(TcpStream::connect(address).await.is_err(), "the listener is closed");
    open.write_all(b" HTTP/1.0\r\n\r\n").await.unwrap();
    let refused = receive(open).await;
    assert_eq!(error(&refused), (503, "unavailable_error".into(), Value::Null));
    assert!(refused.body.contains("shutting down"), "{}", refused.body);

    drop(socket);
    let took = stopping.await.unwrap();
    assert!(took < Duration::from_secs(3), "{took:?}");
}

#[tokio::test]
async fn shutdown_cuts_what_does_not_finish() {
    let config = ServerConfig { shutdown_grace: Duration::from_millis(100), ..ServerConfig::default() };
    let server = Server::with(config, Play::ThenHang(vec![prompt()])).await;
    let whole = chat(json!({})).to_string();
    let streamed = chat(json!({"stream": true})).to_string();
    let whole = send(server.address, "POST", "/v1/chat/completions", whole.as_bytes()).await;
    let streamed = send(server.address, "POST", "/v1/chat/completions", streamed.as_bytes()).await;
    let silent = TcpStream::connect(server.address).await.unwrap();
    server.script.until_running(2).await;
    let script = server.script.clone();
    let took = server.stop().await;
    assert!(Duration::from_millis(100) <= took && took < Duration::from_secs(3), "{took:?}");
    script.until_running(0).await;
    assert_eq!(error(&receive(whole).await).0, 503);
    let reply = receive(streamed).await;
    let last: Value = serde_json::from_str(reply.frames().last().unwrap()).unwrap();
    assert_eq!(last["error"]["code"], 503);
    drop(silent);
}

fn chunks(frames: &[&str]) -> Vec<Value> {
    frames.iter().map(|frame| serde_json::from_str(frame).unwrap()).collect()
}
