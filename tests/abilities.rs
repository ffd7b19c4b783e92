//! What a server can do only with certain models or flags: slot files, filling in the middle, embeddings, templates.

mod common;

use std::path::PathBuf;

use common::http::{self, Reply};
use common::model;
use common::server::{Server, Setup};
use onebit::testing::TinyModel;
use serde_json::{Value, json};

fn post(server: &Server, path: &str, body: Value) -> Reply {
    http::exchange(server.address, path, Some(&body)).unwrap()
}

fn ok(server: &Server, path: &str, body: Value) -> Value {
    let reply = post(server, path, body);
    assert_eq!(reply.status, 200, "{path}: {}", reply.body);
    reply.json()
}

/// Status and message of an error.
fn refused(server: &Server, path: &str, body: Value) -> (u16, String) {
    let reply = post(server, path, body);
    let message = reply.json()["error"]["message"].as_str().unwrap_or_default().to_owned();
    (reply.status, message)
}

fn with_template(name: &str, template: Option<&str>) -> PathBuf {
    model::write(name, &TinyModel { chat_template: template.map(str::to_owned), ..TinyModel::llama() })
}

fn serving(model: PathBuf) -> Setup {
    Setup::cpu().replace("--model", model)
}

#[test]
fn slots_go_to_files_and_back_and_bad_files_do_no_harm() {
    let folder = tempfile::tempdir().unwrap();
    let server = Setup::cpu().flag("--slot-save-path", folder.path()).start();
    let ask = || ok(&server, "/completion", json!({"prompt": "Once upon a time", "n_predict": 8, "temperature": 0}));
    let first = ask();
    let n_held = first["timings"]["prompt_n"].as_u64().unwrap() + 7;
    let saved = ok(&server, "/slots/0?action=save", json!({"filename": "s.bin"}));
    assert_eq!((&saved["filename"], saved["n_saved"].as_u64()), (&json!("s.bin"), Some(n_held)));
    let path = folder.path().join("s.bin");
    assert_eq!(saved["n_written"].as_u64(), Some(path.metadata().unwrap().len()));

    assert_eq!(ok(&server, "/slots/0?action=erase", json!({}))["n_erased"].as_u64(), Some(n_held));
    assert_eq!(ask()["timings"]["cache_n"], 0, "the slot is empty");
    ok(&server, "/slots/0?action=erase", json!({}));
    assert_eq!(
        ok(&server, "/slots/0?action=restore", json!({"filename": "s.bin"}))["n_restored"].as_u64(),
        Some(n_held)
    );
    let again = ask();
    assert_eq!((&again["content"], &again["timings"]["prompt_n"]), (&first["content"], &json!(1)));

    let good = std::fs::read(&path).unwrap();
    for (name, bytes) in [("cut", &good[..good.len() / 2]), ("empty", &[][..]), ("text", &b"Dear diary"[..])] {
        std::fs::write(folder.path().join(name), bytes).unwrap();
        let (status, message) = refused(&server, "/slots/0?action=restore", json!({"filename": name}));
        assert_eq!(status, 400, "{name}: {message}");
        let after = ask();
        // The slot has what it had.
        assert_eq!((&after["content"], &after["timings"]["prompt_n"]), (&first["content"], &json!(1)), "{name}");
    }
    std::os::unix::fs::symlink(&path, folder.path().join("link")).unwrap();
    let long = "x".repeat(300);
    for name in ["link", "missing", "../s.bin", "a/b", "", ".", "/etc/passwd", &long] {
        assert_eq!(refused(&server, "/slots/0?action=restore", json!({"filename": name})).0, 400, "{name}");
    }
    server.stop();
}

#[test]
fn the_middle_is_filled_in_where_the_model_has_tokens_for_it() {
    let server = serving(model::write("tiny-fim.gguf", &TinyModel::llama().with_fim())).start();
    let sampling = |extra: Value| {
        let mut body = json!({"n_predict": 4, "temperature": 0});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        body
    };
    let infill = ok(&server, "/infill", sampling(json!({"input_prefix": "ab", "input_suffix": "cd"})));
    assert_eq!(infill["prompt"], "<s>\u{1}ab\u{2}cd\u{3}");
    let behind = ok(&server, "/infill", sampling(json!({"input_prefix": "ab", "input_suffix": "cd", "prompt": "x"})));
    assert_eq!(behind["prompt"], "<s>\u{1}abx\u{2}cd\u{3}");
    let file = json!([{"text": "other", "filename": "a.rs"}]);
    let with_file = sampling(json!({"input_prefix": "ab", "input_suffix": "cd", "input_extra": file}));
    let prompt = ok(&server, "/infill", with_file)["prompt"].as_str().unwrap().to_owned();
    assert!(prompt.contains("other") && prompt.ends_with("\u{1}ab\u{2}cd\u{3}"), "{prompt:?}");
    // OpenAI's form is the same prompt.
    let openai = ok(&server, "/v1/completions", sampling(json!({"prompt": "ab", "suffix": "cd"})));
    assert_eq!((&openai["choices"][0]["text"], &openai["usage"]["prompt_tokens"]), (&infill["content"], &json!(8)));
    for (body, field) in [
        (json!({"input_suffix": "b"}), "`input_prefix`"),
        (json!({"input_prefix": "a"}), "`input_suffix`"),
        (json!({"input_prefix": "a", "input_suffix": "b", "input_extra": [{}]}), "`input_extra[0].text`"),
    ] {
        let (status, message) = refused(&server, "/infill", body);
        assert!(status == 400 && message.starts_with(field), "{status} {message}");
    }
    server.stop();
}

fn vectors(reply: &Value) -> Vec<Vec<f64>> {
    let read = |vector: &Value| vector.as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect();
    reply.as_array().unwrap().iter().map(read).collect()
}

fn normalized(vector: &[f64]) -> Vec<f64> {
    let length = vector.iter().map(|value| value * value).sum::<f64>().sqrt();
    vector.iter().map(|value| value / length).collect()
}

fn assert_close(found: &[f64], expected: &[f64], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let error = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(error < 1e-4, "{what}: off by {error}");
}

/// The vectors of single tokens, as the model gives them, make every kind of pooling.
#[test]
fn embeddings_are_pooled_from_those_of_the_tokens() {
    const TEXT: &str = "Hello world";
    let serve =
        |pooling: &str| Setup::cpu().args(&["--embeddings", "--pooling", pooling, "--ubatch-size", "64"]).start();
    let server = serve("none");
    let rows = vectors(&ok(&server, "/embedding", json!({"content": TEXT}))[0]["embedding"]);
    assert_eq!(rows.len(), model::tokens(TEXT).len());
    assert_eq!(refused(&server, "/v1/embeddings", json!({"input": TEXT})).0, 400);
    server.stop();

    let mean: Vec<f64> =
        (0..rows[0].len()).map(|i| rows.iter().map(|row| row[i]).sum::<f64>() / rows.len() as f64).collect();
    for (pooling, expected) in [("mean", &mean), ("cls", &rows[0]), ("last", rows.last().unwrap())] {
        let server = serve(pooling);
        let reply = ok(&server, "/v1/embeddings", json!({"input": [TEXT, "Other"], "model": "mine"}));
        assert_eq!(
            (&reply["object"], &reply["model"], &reply["data"][1]["index"]),
            (&json!("list"), &json!("mine"), &json!(1))
        );
        let found = vectors(&json!([reply["data"][0]["embedding"]])).remove(0);
        assert_close(&found, &normalized(expected), pooling);
        // The first token sees nothing but itself, and is BOS in both.
        assert_eq!(reply["data"][0]["embedding"] == reply["data"][1]["embedding"], pooling == "cls");
        let n_tokens = model::tokens(TEXT).len() + model::tokens("Other").len();
        assert_eq!(reply["usage"], json!({"prompt_tokens": n_tokens, "total_tokens": n_tokens}));

        let raw = ok(&server, "/embedding", json!({"content": TEXT, "embd_normalize": -1}));
        assert_close(&vectors(&raw[0]["embedding"])[0], expected, pooling);
        let short = ok(&server, "/v1/embeddings", json!({"input": TEXT, "dimensions": 5}));
        assert_close(&vectors(&json!([short["data"][0]["embedding"]]))[0], &normalized(&expected[..5]), "dimensions");
        let base64 = ok(&server, "/v1/embeddings", json!({"input": TEXT, "encoding_format": "base64"}));
        assert_eq!(base64["data"][0]["embedding"].as_str().unwrap().len(), (4 * found.len()).div_ceil(3) * 4);

        let (status, message) = refused(&server, "/v1/embeddings", json!({"input": "x".repeat(100)}));
        assert!(status == 400 && message.contains("too large"), "{message}");
        for bad in
            [json!({}), json!({"input": []}), json!({"input": ""}), json!({"input": TEXT, "encoding_format": "x"})]
        {
            assert_eq!(refused(&server, "/v1/embeddings", bad.clone()).0, 400, "{bad}");
        }
        // The same server still generates.
        ok(&server, "/v1/completions", json!({"prompt": "a", "max_tokens": 3}));
        server.stop();
    }
}

#[test]
fn an_encoder_embeds_and_says_that_it_does_not_generate() {
    let model = model::write("tiny-bert.gguf", &TinyModel::bert());
    let server = serving(model.clone()).arg("--embeddings").start();
    let reply = ok(&server, "/v1/embeddings", json!({"input": ["Hello", "Hello", "Good-bye"]}));
    let found: Vec<Vec<f64>> = (0..3).map(|i| vectors(&json!([reply["data"][i]["embedding"]])).remove(0)).collect();
    assert_eq!(found[0], found[1], "the same text, the same vector");
    let similarity: f64 = found[0].iter().zip(&found[2]).map(|(a, b)| a * b).sum();
    assert!(similarity < 0.999, "other texts have other vectors: {similarity}");
    for (path, body) in [
        ("/v1/completions", json!({"prompt": "a", "max_tokens": 1})),
        ("/completion", json!({"prompt": "a", "n_predict": 1})),
    ] {
        let (status, message) = refused(&server, path, body);
        assert!(status == 501 && message.contains("encoder"), "{path}: {status} {message}");
    }
    server.stop();
    let (code, said) = serving(model).run();
    assert_eq!(code, Some(3));
    assert!(
        said.last().is_some_and(|line| line.contains("it is an encoder") && line.contains("--embeddings")),
        "{said:?}"
    );
}

#[test]
fn without_a_template_chat_says_what_to_do_and_completions_work() {
    let server = serving(with_template("tiny-no-template.gguf", None)).start();
    assert!(server.said().iter().any(|line| line.contains("has no chat template")), "{:?}", server.said());
    let chat = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2});
    let (status, message) = refused(&server, "/v1/chat/completions", chat);
    assert!(status == 400 && message.contains("--chat-template"), "{status} {message}");
    ok(&server, "/v1/completions", json!({"prompt": "Hi", "max_tokens": 2}));
    server.stop();
}

#[test]
fn a_templates_own_exception_is_a_400_with_its_text() {
    let template = "{% if messages[0].content == 'No' %}{{ raise_exception('say something else, please') }}{% endif %}\
                    {% for message in messages %}{{ message.content }}{% endfor %}";
    let server = serving(with_template("tiny-picky.gguf", Some(template))).start();
    let chat = |text: &str| json!({"messages": [{"role": "user", "content": text}], "max_tokens": 2});
    let (status, message) = refused(&server, "/v1/chat/completions", chat("No"));
    assert!(status == 400 && message.contains("say something else, please"), "{status} {message}");
    ok(&server, "/v1/chat/completions", chat("Hi"));
    server.stop();
}

#[test]
fn there_is_one_bos_whether_the_template_writes_it_or_not() {
    let body = "{% for message in messages %}{{ message.content }}{% endfor %}";
    for (name, template) in [("bos", format!("{{{{ bos_token }}}}{body}")), ("no-bos", body.to_owned())] {
        let server = serving(with_template(&format!("tiny-{name}.gguf"), Some(&template))).start();
        let chat = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1});
        let reply = ok(&server, "/v1/chat/completions", chat);
        assert_eq!(reply["usage"]["prompt_tokens"], 3, "{name}: BOS and two letters");
        server.stop();
    }
}

/// These ended the process, or kept it busy for minutes.
#[test]
fn grammars_that_llama_cpp_dies_of_are_refused() {
    let server = Setup::cpu().start();
    let chain: String = (0..20_000).map(|i| format!("a{i} ::= a{}\n", i + 1)).collect();
    for grammar in [
        format!("root ::= {}\"a\"{}", "(".repeat(5000), ")".repeat(5000)),
        format!("root ::= a0\n{chain}a20000 ::= \"a\""),
        "root ::= \"a\"{5,2}".to_owned(),
        "root ::= (\"a\"?){1000} \"b\"".to_owned(),
        "root ::= <[99999999]>".to_owned(),
        "root ::= [\\UFFFFFFFF]".to_owned(),
    ] {
        let body = json!({"prompt": "hi", "n_predict": 4, "grammar": grammar});
        assert_eq!(refused(&server, "/completion", body).0, 400, "{}", &grammar[..grammar.len().min(40)]);
    }
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties":
        {"a": {"type": "string", "minLength": 5, "maxLength": 2}}, "required": ["a"]}}});
    let chat = json!({"messages": [{"role": "user", "content": "Hi"}], "tools": [tool], "tool_choice": "required"});
    assert_eq!(refused(&server, "/v1/chat/completions", chat).0, 400);
    ok(&server, "/completion", json!({"prompt": "hi", "n_predict": 4, "grammar": "root ::= \"a\"{2,3}"}));
    server.stop();
}

/// A chat format of the kind that many models have: calls as JSON between two marks.
const CALLS_BETWEEN_MARKS: &str = "\
{%- if tools %}<|im_start|>system\nTools: {{ tools | tojson }}\nCall as <tool_call>\n{\"name\": <name>, \"arguments\": <object>}\n</tool_call><|im_end|>\n{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}
{%- for call in message.tool_calls %}\n<tool_call>\n{\"name\": \"{{ call.function.name }}\", \"arguments\": {{ call.function.arguments | tojson }}}\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// The grammars that llama.cpp makes for a chat format are taken, the one for a call that may come and the one for a call that
/// must.
#[test]
fn tools_work_in_a_chat_format_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let template = folder.path().join("template.jinja");
    std::fs::write(&template, CALLS_BETWEEN_MARKS).unwrap();
    let server = Setup::cpu().flag("--chat-template-file", &template).flag("--ctx-size", "2048").start();
    let tool = |name: &str| {
        json!({"type": "function", "function": {"name": name, "description": "d", "parameters":
            {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"]}}})
    };
    for parallel in [false, true] {
        let body = |choice: &str, max_tokens: u32| {
            json!({"messages": [{"role": "user", "content": "hi"}], "tools": [tool("lamp"), tool("radio")],
                "tool_choice": choice, "parallel_tool_calls": parallel, "max_tokens": max_tokens, "seed": 1})
        };
        ok(&server, "/v1/chat/completions", body("auto", 4));
        let reply = ok(&server, "/v1/chat/completions", body("required", 400));
        let call = &reply["choices"][0]["message"]["tool_calls"][0]["function"];
        assert!(["lamp", "radio"].map(Value::from).contains(&call["name"]), "{reply}");
        let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
        assert!(arguments["on"].is_boolean(), "{reply}");
    }
    server.stop();
}
