//! The document against the server: its routes, what it says of requests, what it says of replies. The server is a real one
//! with a tiny model.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::super::testing::{Reply, receive, send};
use super::super::{AppState, Backend, ServerConfig, app};
use super::document;
use crate::engine::{Engine, EngineConfig, Pooling};
use crate::testing::TinyModel;

fn document_json() -> Value {
    serde_json::to_value(document()).unwrap()
}

struct Server {
    address: SocketAddr,
    _folder: tempfile::TempDir,
}

impl Server {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tiny.gguf");
        TinyModel::llama().write(&path).unwrap();
        let config = EngineConfig {
            embeddings: true,
            pooling: Some(Pooling::Mean),
            n_ctx: Some(512),
            n_threads: Some(1),
            ..EngineConfig::new(path)
        };
        let engine = tokio::task::spawn_blocking(move || Engine::load(config).unwrap()).await.unwrap();
        let slot_save_path = Some(folder.path().to_owned());
        let mut config = ServerConfig { metrics: true, slot_save_path, ..ServerConfig::default() };
        // An answer that ends at once has no chunk on the way.
        config.defaults.ignore_eos = true;
        config.defaults.sampling.seed = Some(1);
        config.defaults.max_tokens = Some(4);
        let state = AppState::new(config);
        state.set_ready(Backend::Local(engine));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, app(state)).await });
        Self { address, _folder: folder }
    }

    async fn ask(&self, method: &str, path: &str, body: &Value) -> Reply {
        let body = if method == "GET" { String::new() } else { body.to_string() };
        receive(send(self.address, method, path, body.as_bytes()).await).await
    }
}

/// A schema of the document that stands for itself, with the others for its references.
fn validator(document: &Value, schema: &Value) -> jsonschema::Validator {
    let mut schema = schema.clone();
    schema["components"] = document["components"].clone();
    jsonschema::validator_for(&schema).unwrap_or_else(|err| panic!("{err} in {schema}"))
}

/// Forbids every object of the replies' schemas to have fields that the document does not have.
fn strict(document: &mut Value) {
    for schema in document["components"]["schemas"].as_object_mut().unwrap().values_mut() {
        if schema.get("properties").is_some() {
            schema["additionalProperties"] = json!(false);
        }
    }
}

/// The routes as the sources have them: a handler that nobody describes is found here.
#[test]
fn every_route_is_described() {
    let mut routes = BTreeMap::new();
    let mut folders = vec![std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/server")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if !path.ends_with("openapi/tests.rs") {
                let source = std::fs::read_to_string(&path).unwrap();
                for route in source.split(".route(\"").skip(1) {
                    let (path, rest) = route.split_once('"').unwrap();
                    let handlers = rest.split(".route(").next().unwrap().split(';').next().unwrap();
                    let methods = ["get", "post"].into_iter().filter(|method| handlers.contains(&format!("{method}(")));
                    let methods: &mut BTreeSet<_> = &mut methods.map(str::to_owned).collect();
                    routes.entry(path.replace("{*", "{")).or_insert_with(BTreeSet::new).append(methods);
                }
            }
        }
    }
    assert!(routes.len() > 30, "the sources have been read: {routes:?}");
    let paths = document_json()["paths"].as_object().unwrap().clone();
    let described: BTreeMap<_, BTreeSet<_>> =
        paths.iter().map(|(path, item)| (path.clone(), item.as_object().unwrap().keys().cloned().collect())).collect();
    assert_eq!(routes, described);
}

#[test]
fn references_lead_somewhere_and_operations_have_names_of_their_own() {
    let document = document_json();
    let text = document.to_string();
    for reference in text.split("\"$ref\":\"").skip(1) {
        let target = reference.split('"').next().unwrap();
        assert!(document.pointer(target.strip_prefix('#').unwrap()).is_some(), "{target}");
    }
    let ids: Vec<_> = text.split("\"operationId\":\"").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
    assert_eq!(ids.len(), ids.iter().collect::<BTreeSet<_>>().len(), "{ids:?}");
    for schema in document["components"]["schemas"].as_object().unwrap().values() {
        validator(&document, schema);
    }
}

/// Properties of a schema, those of its parts included.
fn properties(document: &Value, schema: &Value) -> BTreeMap<String, Value> {
    let mut found = BTreeMap::new();
    if let Some(reference) = schema["$ref"].as_str() {
        return properties(document, document.pointer(&reference[1..]).unwrap());
    }
    for part in schema["allOf"].as_array().into_iter().flatten() {
        found.extend(properties(document, part));
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        found.insert(name.clone(), property.clone());
    }
    found
}

/// Values of every type, some of them in a place where they are seldom meant.
fn strange_values() -> Vec<Value> {
    vec![json!(true), json!("?"), json!(-7), json!(0.5), json!(["?"]), json!([[]]), json!({"?": 1})]
}

/// What a schema does not allow is refused by name, so each property is one that the server reads; what it allows is
/// answered or refused with a reason.
#[tokio::test]
async fn wrong_values_of_described_fields_are_refused_by_name() {
    let server = Server::start().await;
    let document = document_json();
    let chat = json!({"messages": [{"role": "user", "content": "a"}]});
    for (path, request, base) in [
        ("/v1/chat/completions", "ChatRequest", chat.clone()),
        ("/v1/completions", "CompletionRequest", json!({"prompt": "a"})),
        ("/completion", "NativeRequest", json!({"prompt": "a"})),
        ("/v1/responses", "ResponsesRequest", json!({"input": "a"})),
        ("/v1/messages", "MessagesRequest", chat),
        ("/v1/embeddings", "EmbeddingRequest", json!({"input": "a"})),
        ("/tokenize", "TokenizeRequest", json!({"content": "a"})),
        ("/detokenize", "DetokenizeRequest", json!({"tokens": [5]})),
    ] {
        let good = server.ask("POST", path, &base).await;
        assert_eq!(good.status, 200, "{path}: {}", good.body);
        let mut unchecked = Vec::new();
        for (name, property) in properties(&document, &document["components"]["schemas"][request]) {
            let validator = validator(&document, &property);
            let mut is_checked = false;
            for value in strange_values() {
                let mut body = base.clone();
                body[&name] = value;
                let is_valid = validator.is_valid(&body[&name]);
                let reply = server.ask("POST", path, &body).await;
                assert!(matches!(reply.status, 200 | 400), "{path} {body}: {}", reply.body);
                if !is_valid {
                    is_checked = true;
                    let param = reply.json()["error"]["param"].clone();
                    let names_it = param.as_str().is_some_and(|param| param.starts_with(&*name));
                    assert!(reply.status == 400 && names_it, "{path} {body}: {}", reply.body);
                }
            }
            if !is_checked {
                unchecked.push(name);
            }
        }
        // Any JSON is a schema here, so nothing is of a wrong type.
        assert!(unchecked.iter().all(|name| name == "json_schema"), "{path}: {unchecked:?}");
    }
}

/// Replies of each endpoint, whole and streamed, are as described, and have no field that is not.
#[tokio::test]
async fn real_replies_are_as_described() {
    let server = Server::start().await;
    let mut document = document_json();
    strict(&mut document);
    let tool = json!({"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "boolean"}},
        "required": ["a"], "additionalProperties": false}});
    let chat = |more: Value| with(json!({"messages": [{"role": "user", "content": "a"}]}), more);
    let call = json!({"tools": [{"type": "function", "function": tool}], "tool_choice": "required", "max_tokens": 60});
    for (method, path, body) in [
        ("GET", "/health", json!(null)),
        ("GET", "/v1/models", json!(null)),
        ("GET", "/v1/models/tiny", json!(null)),
        ("GET", "/v1/models/other", json!(null)),
        ("GET", "/props", json!(null)),
        ("GET", "/lora-adapters", json!(null)),
        ("GET", "/openapi.json", json!(null)),
        ("GET", "/slots", json!(null)),
        ("POST", "/v1/chat/completions", chat(json!({}))),
        ("POST", "/v1/chat/completions", chat(json!({"n": 2, "logprobs": true, "top_logprobs": 2}))),
        ("POST", "/v1/chat/completions", chat(call.clone())),
        ("POST", "/v1/chat/completions", with(chat(call), json!({"stream": true}))),
        (
            "POST",
            "/v1/chat/completions",
            chat(json!({"stream": true, "stream_options": {"include_usage": true}, "timings_per_token": true})),
        ),
        ("POST", "/v1/chat/completions", json!({"messages": 1})),
        ("POST", "/v1/completions", json!({"prompt": ["a", "b"], "logprobs": 2})),
        ("POST", "/v1/completions", json!({"prompt": "a", "stream": true, "logprobs": 2})),
        ("POST", "/v1/completions", json!({"prompt": "a".repeat(600)})),
        ("POST", "/v1/embeddings", json!({"input": ["a", "b"]})),
        ("POST", "/v1/embeddings", json!({"input": "a", "encoding_format": "base64"})),
        ("POST", "/embeddings", json!({"content": "a"})),
        ("POST", "/v1/responses", json!({"input": "a"})),
        ("POST", "/v1/responses", json!({"input": "a", "stream": true})),
        (
            "POST",
            "/v1/responses",
            with(
                json!({"input": "a", "tool_choice": "required", "max_output_tokens": 60, "stream": true}),
                json!({"tools": [with(json!({"type": "function"}), tool.clone())]}),
            ),
        ),
        ("POST", "/v1/responses/input_tokens", json!({"input": "a"})),
        ("POST", "/v1/chat/completions/input_tokens", chat(json!({}))),
        ("POST", "/v1/messages", chat(json!({}))),
        ("POST", "/v1/messages", chat(json!({"stream": true}))),
        (
            "POST",
            "/v1/messages",
            chat(json!({"tools": [{"name": "f", "input_schema": tool["parameters"]}], "tool_choice": {"type": "any"},
                "max_tokens": 60, "stream": true})),
        ),
        ("POST", "/v1/messages", json!({})),
        ("POST", "/v1/messages/count_tokens", chat(json!({}))),
        ("POST", "/completion", json!({"prompt": "a", "n_probs": 2, "return_tokens": true})),
        ("POST", "/completion", json!({"prompt": ["a", "b"]})),
        ("POST", "/completion", json!({"prompt": "a", "stream": true})),
        ("POST", "/infill", json!({"input_prefix": "a", "input_suffix": "b"})),
        ("POST", "/tokenize", json!({"content": "é"})),
        ("POST", "/tokenize", json!({"content": "aé", "with_pieces": true})),
        ("POST", "/detokenize", json!({"tokens": [5]})),
        ("POST", "/apply-template", chat(json!({}))),
        ("GET", "/slots", json!(null)),
        ("POST", "/slots/0?action=save", json!({"filename": "a"})),
        ("POST", "/slots/0?action=restore", json!({"filename": "a"})),
        ("POST", "/slots/0?action=erase", json!({})),
        ("POST", "/v1/rerank", json!({})),
        ("POST", "/props", json!({})),
    ] {
        let reply = server.ask(method, path, &body).await;
        assert_eq!(reply.status, expected_status(path, &body), "{path} {body}: {}", reply.body);
        check_reply(&document, method, path, &body, &reply);
    }
}

fn expected_status(path: &str, body: &Value) -> u16 {
    let is_long = body["prompt"].as_str().is_some_and(|prompt| prompt.len() > 512);
    match path {
        "/v1/models/other" => 404,
        // The tiny model has no tokens for that.
        "/infill" | "/v1/rerank" => 501,
        "/props" if body.is_object() => 501,
        "/v1/chat/completions" | "/v1/messages" if !body["messages"].is_array() => 400,
        _ if is_long => 400,
        _ => 200,
    }
}

fn with(mut body: Value, more: Value) -> Value {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn check_reply(document: &Value, method: &str, path: &str, body: &Value, reply: &Reply) {
    let route = path.split('?').next().unwrap();
    let route = match route {
        "/slots/0" => "/slots/{id}",
        "/v1/models/tiny" | "/v1/models/other" => "/v1/models/{id}",
        route => route,
    };
    let operation = &document["paths"][route][method.to_lowercase()];
    let response = &operation["responses"][reply.status.to_string()];
    let what = format!("{method} {path} {body}: {} {}", reply.status, reply.body);
    assert!(response.is_object(), "the status is described: {what}");
    let is_stream = reply.head.contains("content-type: text/event-stream");
    let kind = if is_stream { "text/event-stream" } else { "application/json" };
    assert!(is_stream || reply.head.contains("content-type: application/json"), "{what}");
    let validator = validator(document, &response["content"][kind]["schema"]);
    let check = |value: &Value| {
        let errors: Vec<_> =
            validator.iter_errors(value).map(|err| format!("{err} at {}", err.instance_path)).collect();
        assert!(errors.is_empty(), "{what}\n{value}\n{errors:#?}");
    };
    if !is_stream {
        return check(&reply.json());
    }
    let data = reply.body.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]");
    let events: Vec<Value> = data.map(|data| serde_json::from_str(data).unwrap()).collect();
    assert!(events.len() > 1, "{what}");
    events.iter().for_each(check);
}
