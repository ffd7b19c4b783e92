use super::*;
use crate::server::events::testing::{self, call, end, events, everything, text, thought};

fn answer() -> Answer {
    let prompt = end(Finish::Stop).report.prompt;
    let form = Form { stop: vec!["STOP".into()], ..Form::default() };
    Answer::new(&testing::state(), form, (&prompt).into()).unwrap()
}

/// The events of an answer and the body of the same one when it is not streamed.
fn write(deltas: Vec<Delta>, end: &End) -> (Vec<Value>, Value) {
    let mut answer = answer();
    let mut frames = answer.opening();
    frames.extend(deltas.into_iter().flat_map(|delta| answer.step(0, ChatStep::Delta(delta))));
    frames.extend(answer.end(end));
    (events(frames), answer.whole(end))
}

/// The message that a client puts together from the events, by the rules of Anthropic's SDKs.
fn rebuild(events: &[Value]) -> Value {
    let mut message = events[0]["message"].clone();
    let mut open: Option<(Value, String)> = None;
    for (number, event) in events.iter().enumerate() {
        let index = message["content"].as_array().unwrap().len();
        match event["type"].as_str().unwrap() {
            "message_start" => assert_eq!((number, &message["content"]), (0, &json!([]))),
            "content_block_start" => {
                assert!(open.is_none(), "a block is still open: {event}");
                assert_eq!(event["index"], index);
                open = Some((event["content_block"].clone(), String::new()));
            }
            "content_block_delta" => {
                assert_eq!(event["index"], index);
                let (block, json) = open.as_mut().unwrap();
                let delta = &event["delta"];
                let name = match delta["type"].as_str().unwrap() {
                    "text_delta" => "text",
                    "thinking_delta" => "thinking",
                    "signature_delta" => "signature",
                    "input_json_delta" => {
                        assert_eq!((&block["type"], &block["input"]), (&json!("tool_use"), &json!({})));
                        json.push_str(delta["partial_json"].as_str().unwrap());
                        continue;
                    }
                    other => panic!("unknown delta {other}"),
                };
                block[name] = json!(block[name].as_str().unwrap().to_owned() + delta[name].as_str().unwrap());
            }
            "content_block_stop" => {
                assert_eq!(event["index"], index);
                let (mut block, json) = open.take().unwrap();
                if let Ok(input) = serde_json::from_str::<Value>(&json) {
                    block["input"] = input;
                }
                message["content"].as_array_mut().unwrap().push(block);
            }
            "message_delta" => {
                assert!(open.is_none() && number == events.len() - 2, "{event}");
                for name in ["stop_reason", "stop_sequence"] {
                    message[name] = event["delta"][name].clone();
                }
                message["usage"] = event["usage"].clone();
            }
            "message_stop" => assert_eq!(number, events.len() - 1),
            other => panic!("unknown event {other}"),
        }
    }
    message
}

#[test]
fn every_block_has_its_events_in_order() {
    let (events, _) = write(everything(), &end(Finish::ToolCalls));
    let shown: Vec<String> = events
        .iter()
        .map(|event| {
            let kind = event["type"].as_str().unwrap().trim_start_matches("content_block_");
            let what = event["delta"]["type"].as_str().or(event["content_block"]["type"].as_str()).unwrap_or_default();
            format!("{kind} {} {what}", event["index"])
        })
        .collect();
    assert_eq!(
        shown,
        [
            "message_start null ",
            "start 0 thinking",
            "delta 0 thinking_delta",
            "delta 0 thinking_delta",
            "delta 0 signature_delta",
            "stop 0 ",
            "start 1 text",
            "delta 1 text_delta",
            "delta 1 text_delta",
            "stop 1 ",
            "start 2 tool_use",
            "delta 2 input_json_delta",
            "delta 2 input_json_delta",
            "stop 2 ",
            "start 3 tool_use",
            "delta 3 input_json_delta",
            "delta 3 input_json_delta",
            "stop 3 ",
            "message_delta null ",
            "message_stop null ",
        ]
    );
}

#[test]
fn a_client_rebuilds_the_whole_reply() {
    let (events, whole) = write(everything(), &end(Finish::ToolCalls));
    assert_eq!(rebuild(&events), whole);
    assert_eq!(
        whole["content"],
        json!([
            {"type": "thinking", "thinking": "Hmm.", "signature": ""},
            {"type": "text", "text": "Hé!"},
            {"type": "tool_use", "id": "call_0", "name": "f", "input": {"a": 1}},
            {"type": "tool_use", "id": "call_1", "name": "g", "input": {}}])
    );
    assert!(whole["id"].as_str().unwrap().starts_with("msg_"));
    assert_eq!(
        (&whole["model"], &whole["type"], &whole["role"]),
        (&json!("tiny-Q4_1"), &json!("message"), &json!("assistant"))
    );
}

#[test]
fn usage_has_the_prompt_from_the_start() {
    let (events, whole) = write(vec![text("a")], &end(Finish::Stop));
    let usage = |n_output: usize, n_thinking: usize| {
        json!({"input_tokens": 8, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 4,
               "output_tokens": n_output, "output_tokens_details": {"thinking_tokens": n_thinking}})
    };
    assert_eq!(events[0]["message"]["usage"], usage(0, 0));
    assert_eq!((&events[events.len() - 2]["usage"], &whole["usage"]), (&usage(7, 3), &usage(7, 3)));
}

#[test]
fn reasons_to_stop() {
    for (finish, reason, sequence) in [
        (Finish::Stop, "end_turn", Value::Null),
        (Finish::StopString("STOP".into()), "stop_sequence", json!("STOP")),
        (Finish::StopString("<the template's>".into()), "end_turn", Value::Null),
        (Finish::Length, "max_tokens", Value::Null),
        (Finish::ToolCalls, "tool_use", Value::Null),
    ] {
        let (events, whole) = write(vec![text("a")], &end(finish));
        assert_eq!((&whole["stop_reason"], &whole["stop_sequence"]), (&json!(reason), &sequence));
        assert_eq!(rebuild(&events), whole);
    }
}

#[test]
fn an_empty_answer_has_its_events_too() {
    let (events, whole) = write(Vec::new(), &end(Finish::Stop));
    assert_eq!(events.len(), 3);
    assert_eq!((rebuild(&events), &whole["content"]), (whole.clone(), &json!([])));
}

#[test]
fn hidden_thoughts_leave_an_empty_block() {
    let mut answer = answer();
    answer.form.hides_thoughts = true;
    let mut frames = answer.opening();
    frames.extend(
        [thought("a"), thought("b"), text("c")].into_iter().flat_map(|delta| answer.step(0, ChatStep::Delta(delta))),
    );
    frames.extend(answer.end(&end(Finish::Stop)));
    let whole = answer.whole(&end(Finish::Stop));
    assert_eq!(rebuild(&events(frames)), whole);
    assert_eq!(
        whole["content"],
        json!([{"type": "thinking", "thinking": "", "signature": ""}, {"type": "text", "text": "c"}])
    );
}

#[test]
fn arguments_that_are_cut_are_no_input() {
    let (events, whole) = write(vec![thought("a"), call(0, Some("f"), "{\"a\":")], &end(Finish::Length));
    assert_eq!(whole["content"][1], json!({"type": "tool_use", "id": "call_0", "name": "f", "input": {}}));
    assert_eq!(rebuild(&events), whole);
}

#[test]
fn a_failure_is_an_event() {
    let mut answer = answer();
    let frame = answer.failed(&ApiError::shutting_down());
    let event = events(vec![frame]).remove(0);
    assert_eq!((&event["type"], &event["error"]["type"]), (&json!("error"), &json!("overloaded_error")));
    assert_eq!(
        (&event["error"]["code"], &event["error"]["message"]),
        (&json!(503), &json!("the server is shutting down"))
    );
}
