//! Service endpoints: what the server is and does, tokens, templates.

use super::*;

#[tokio::test]
async fn props() {
    let config = ServerConfig { metrics: true, alias: Some("m".into()), ..ServerConfig::default() };
    let server = Server::loading(config, answer()).await;
    server.state.set_ready(Backend::Scripted(server.script.clone().with_slots(3)));
    let props = server.get("/props").await.json();
    let settings = &props["default_generation_settings"];
    assert_eq!((&settings["n_ctx"], &settings["params"]["max_tokens"]), (&json!(64), &json!(-1)));
    assert_eq!(settings["params"]["seed"], u32::MAX);
    assert_eq!((&props["total_slots"], &props["model_alias"]), (&json!(3), &json!("m")));
    assert_eq!((&props["model_path"], &props["model_ftype"]), (&json!("/models/tiny-Q4_1.gguf"), &json!("Q4_1")));
    assert_eq!((&props["endpoint_metrics"], &props["endpoint_props"]), (&json!(true), &json!(false)));
    assert_eq!(props["modalities"], json!({"vision": false, "audio": false, "video": false}));
    assert_eq!(props["chat_template"], "");
    assert!(props["build_info"].as_str().unwrap().starts_with('b'));
}

#[tokio::test]
async fn what_is_not_there_says_why() {
    let config = ServerConfig { slots: false, page: false, ..ServerConfig::default() };
    let server = Server::with(config, answer()).await;
    for (method, path, reason) in [
        ("POST", "/props", "flags"),
        ("GET", "/metrics", "--metrics"),
        ("GET", "/slots", "--no-slots"),
        ("POST", "/lora-adapters", "LoRA"),
        ("POST", "/v1/rerank", "rerank"),
        ("POST", "/reranking", "rerank"),
        ("POST", "/v1/audio/transcriptions", "audio input is not supported"),
    ] {
        let reply = receive(send(server.address, method, path, b"{}").await).await;
        assert_eq!(error(&reply), (501, "not_supported_error".into(), Value::Null), "{method} {path}");
        assert!(reply.body.contains(reason), "{path}: {}", reply.body);
    }
    assert_eq!(error(&server.get("/").await).0, 404);
    let server = Server::playing(answer()).await;
    let page = server.get("/").await;
    assert!(page.head.contains("content-type: text/html") && page.body.contains("<title>onebit"), "{}", page.body);
    assert_eq!(server.get("/lora-adapters").await.json(), json!([]));
}

#[tokio::test]
async fn slots_show_what_runs_and_what_ran() {
    let server = Server::loading(ServerConfig::default(), Play::ThenHang(vec![prompt(), piece("H")])).await;
    server.state.set_ready(Backend::Scripted(server.script.clone().with_slots(2)));
    let idle = |id| json!({"id": id, "n_ctx": 64, "speculative": false, "is_processing": false});
    assert_eq!(server.get("/slots").await.json(), json!([idle(0), idle(1)]));

    let body = json!({"prompt": "abc", "max_tokens": 9, "stream": true}).to_string();
    let first = send(server.address, "POST", "/v1/completions", body.as_bytes()).await;
    server.script.until_running(1).await;
    assert_eq!(server.get("/slots?fail_on_no_slot=1").await.status, 200);
    let second = send(server.address, "POST", "/v1/completions", body.as_bytes()).await;
    server.script.until_running(2).await;
    let busy = server.get("/slots?fail_on_no_slot=1").await;
    assert_eq!(error(&busy), (503, "unavailable_error".into(), Value::Null));

    let slots = server.get("/slots").await.json();
    let (slot, next) = (&slots[0], &slots[0]["next_token"][0]);
    assert_eq!((&slot["is_processing"], &slot["id_task"]), (&json!(true), &json!(0)));
    assert_eq!((&slot["n_prompt_tokens"], &slot["params"]["max_tokens"]), (&json!(3), &json!(9)));
    assert_eq!(next["has_next_token"], true);

    drop((first, second));
    server.script.until_running(0).await;
    let slots = server.get("/slots").await.json();
    assert_eq!((&slots[1]["is_processing"], &slots[1]["id_task"]), (&json!(false), &json!(1)));
    let next = json!([{"has_next_token": false, "has_new_line": false, "n_remain": -1, "n_decoded": 0}]);
    assert_eq!(slots[1]["next_token"], next);
}

#[tokio::test]
async fn metrics_count_requests() {
    let server = Server::with(ServerConfig { metrics: true, ..ServerConfig::default() }, answer()).await;
    server.post("/v1/completions", &json!({"prompt": "abc"})).await;
    server.post("/v1/chat/completions", &chat(json!({"stream": true}))).await;
    let reply = server.get("/metrics").await;
    assert!(reply.head.contains("content-type: text/plain; version=0.0.4"), "{}", reply.head);
    assert!(reply.head.contains("process-start-time-unix: "), "{}", reply.head);
    for line in [
        "# TYPE llamacpp:prompt_tokens_total counter",
        "llamacpp:prompt_tokens_total 6",
        "llamacpp:prompt_tokens_cached_total 0",
        "llamacpp:prompt_seconds_total 0.12",
        "llamacpp:tokens_predicted_total 8",
        "llamacpp:tokens_predicted_seconds_total 0.02",
        "llamacpp:prompt_tokens_seconds 50",
        "llamacpp:predicted_tokens_seconds 400",
        "llamacpp:n_decode_total 2",
        "llamacpp:n_busy_slots_per_decode 1.5",
        "llamacpp:requests_processing 0",
        "onebit:handoffs_total 5",
        "onebit:fallbacks_total 6",
        "onebit:argmax_disagreements_total 7",
    ] {
        assert!(reply.body.lines().any(|found| found == line), "{line} in\n{}", reply.body);
    }
    // Each metric has its three lines, and its name once.
    let names: Vec<_> = reply.body.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    assert_eq!(reply.body.lines().count(), names.len() * 3);
    assert!(server.get("/metrics").await.body.contains("llamacpp:predicted_tokens_seconds 0\n"));
}

#[tokio::test]
async fn tokens_and_templates() {
    let server = Server::playing(answer()).await;
    for (path, body, expected) in [
        ("/tokenize", json!({}), json!({"tokens": []})),
        ("/tokenize", json!({"content": "ab"}), json!({"tokens": [97, 98]})),
        ("/v1/tokenize", json!({"content": ["a", 7, "b"]}), json!({"tokens": [97, 7, 98]})),
        (
            "/tokenize",
            json!({"content": "aé", "with_pieces": true}),
            json!({"tokens": [{"id": 97, "piece": "a"}, {"id": 195, "piece": [195]}, {"id": 169, "piece": [169]}]}),
        ),
        ("/detokenize", json!({"tokens": [97, 98.0]}), json!({"content": "ab"})),
        ("/v1/detokenize", json!({}), json!({"content": ""})),
        ("/apply-template", chat(json!({})), json!({"prompt": "user:\"a\"\n"})),
    ] {
        let reply = server.post(path, &body).await;
        assert_eq!((reply.status, reply.json()), (200, expected), "{path} {body}");
    }
    for (path, body, param) in [
        ("/tokenize", json!({"content": 5}), "content"),
        ("/tokenize", json!({"content": ["a", 256]}), "content[1]"),
        ("/tokenize", json!({"content": ["a", {}]}), "content[1]"),
        ("/tokenize", json!({"content": "a", "with_pieces": "yes"}), "with_pieces"),
        ("/tokenize", json!({"content": "a", "add_special": 1}), "add_special"),
        ("/detokenize", json!({"tokens": "x"}), "tokens"),
        ("/detokenize", json!({"tokens": [1, -1]}), "tokens[1]"),
        ("/detokenize", json!({"tokens": [1e30]}), "tokens[0]"),
        ("/apply-template", json!({}), "messages"),
    ] {
        let reply = server.post(path, &body).await;
        assert_eq!(error(&reply), (400, "invalid_request_error".into(), json!(param)), "{path} {body}");
    }
}
