//! One slot: who gets it, and who does not even ask.

use serde_json::json;

use crate::common::bench::{Bench, GOOD};
use crate::common::request::{Request, cpu_answer};
use crate::common::server::HybridLine;

#[test]
fn handoffs_do_not_overlap() {
    let bench = Bench::new(
        "mkdir \"$bench/busy\" || echo overlap >> \"$bench/overlaps\"; sleep 0.1; \
         \"$prefill\" \"$@\"; rmdir \"$bench/busy\"",
    );
    let prompts = ["One of several.", "Another one.", "And a third, which is longer."];
    let requests: Vec<_> = prompts.map(|prompt| Request::text(prompt).streamed()).into();
    let expected: Vec<_> = requests.iter().map(cpu_answer).collect();

    let server = bench.start();
    std::thread::scope(|scope| {
        for (request, expected) in requests.iter().zip(&expected) {
            let server = &server;
            scope.spawn(move || {
                let answer = server.ask(request);
                assert_eq!(answer.visible(), expected.visible());
                assert_eq!(answer.n_evaluated(), 1);
            });
        }
    });
    assert_eq!(bench.text("overlaps"), "");
    let lines: Vec<_> = requests.iter().map(|_| server.hybrid_line()).collect();
    for expected in expected {
        assert!(lines.contains(&HybridLine::Handoff { n_prompt: expected.n_prompt() }), "{lines:?}");
    }
    server.stop();
}

#[test]
fn a_request_that_cannot_be_answered_is_refused_before_the_provider() {
    let bench = Bench::new(&format!("echo called >> \"$bench/calls\"; {GOOD}"));
    let server = bench.setup().flag("--ctx-size", "256").start();

    let prompt = "much too long ".repeat(30);
    for request in [Request::text(&prompt), Request::text(&prompt).streamed(), Request::chat(&prompt)] {
        let reply = server.post(request.path, &request.body);
        assert_eq!(reply.status, 400, "{}", reply.body);
        let error = &reply.json()["error"];
        let (n_prompt, message) = (error["n_prompt_tokens"].as_u64().unwrap(), error["message"].as_str().unwrap());
        assert!(n_prompt > 400 && error["n_ctx"] == json!(256), "{error}");
        assert!(message.contains(&n_prompt.to_string()) && message.contains("256"), "{message}");
    }
    for (field, value, param) in [
        ("grammar", json!("root ::= nothing"), "grammar"),
        ("temperature", json!("hot"), "temperature"),
        ("prompt", json!([300]), "prompt[0]"),
    ] {
        let request = Request::text("Hello").with(field, value);
        let reply = server.post(request.path, &request.body);
        assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!(param)), "{}", reply.body);
    }
    assert_eq!(bench.text("calls"), "");

    // As long as can be: one more token fits.
    let request = Request::text(&"x".repeat(254)).with("max_tokens", 1.into());
    assert_eq!(server.ask(&request).n_evaluated(), 1);
    assert_eq!(server.hybrid_line(), HybridLine::Handoff { n_prompt: 255 });
    assert_eq!(bench.text("calls"), "called\n");
    server.stop();
}
