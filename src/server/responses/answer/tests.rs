use super::*;
use crate::engine::TokenLogprob;
use crate::llama::Token;
use crate::server::events::testing::{self, call, end, events, everything, text, thought};

fn answer() -> Answer {
    let echo = json!({"tools": [], "store": false});
    Answer::new(&testing::state(), echo.as_object().unwrap().clone()).unwrap()
}

/// The events of an answer and the body of the same one when it is not streamed.
fn write(deltas: Vec<Delta>, end: &End) -> (Vec<Value>, Value) {
    let mut answer = answer();
    let mut frames = answer.opening();
    frames.extend(deltas.into_iter().flat_map(|delta| answer.step(0, ChatStep::Delta(delta))));
    frames.extend(answer.end(end));
    (events(frames), answer.whole(end))
}

/// The items that a client puts together from the events, by the rules of OpenAI's SDKs.
fn rebuild(events: &[Value]) -> Vec<Value> {
    let (mut items, mut open) = (Vec::new(), None::<Value>);
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number, "{event}");
        let kind = event["type"].as_str().unwrap();
        if event.get("item_id").is_some() {
            let item = open.as_ref().unwrap_or_else(|| panic!("no item is open: {event}"));
            assert_eq!((&event["item_id"], &event["output_index"]), (&item["id"], &json!(items.len())), "{event}");
        }
        match kind {
            "response.created" | "response.in_progress" => assert!(number < 2, "{event}"),
            "response.output_item.added" => {
                assert!(open.is_none(), "an item is still open: {event}");
                assert_eq!(
                    (&event["output_index"], &event["item"]["status"]),
                    (&json!(items.len()), &json!("in_progress"))
                );
                open = Some(event["item"].clone());
            }
            "response.content_part.added" => {
                let item = open.as_mut().unwrap();
                assert_eq!(
                    (&event["content_index"], &event["part"]["text"], &item["content"]),
                    (&json!(0), &json!(""), &json!([]))
                );
                item["content"] = json!([event["part"]]);
            }
            "response.output_text.delta" | "response.reasoning_text.delta" => {
                assert_eq!(event["content_index"], 0);
                let part = &mut open.as_mut().unwrap()["content"][0];
                if let (Some(all), Some(new)) =
                    (part.get_mut("logprobs").and_then(Value::as_array_mut), event["logprobs"].as_array())
                {
                    all.extend(new.iter().cloned());
                }
                let text = &mut part["text"];
                *text = json!(text.as_str().unwrap().to_owned() + event["delta"].as_str().unwrap());
            }
            "response.function_call_arguments.delta" => {
                let arguments = &mut open.as_mut().unwrap()["arguments"];
                *arguments = json!(arguments.as_str().unwrap().to_owned() + event["delta"].as_str().unwrap());
            }
            "response.output_text.done" | "response.reasoning_text.done" => {
                assert_eq!(
                    (&event["content_index"], &event["text"]),
                    (&json!(0), &open.as_ref().unwrap()["content"][0]["text"])
                );
            }
            "response.content_part.done" => assert_eq!(event["part"], open.as_ref().unwrap()["content"][0]),
            "response.function_call_arguments.done" => {
                assert_eq!(event["arguments"], open.as_ref().unwrap()["arguments"])
            }
            "response.output_item.done" => {
                let mut item = open.take().unwrap();
                item["status"] = event["item"]["status"].clone();
                assert_eq!((&event["output_index"], &event["item"]), (&json!(items.len()), &item));
                items.push(item);
            }
            "response.completed" | "response.incomplete" => {
                assert!(open.is_none() && number == events.len() - 1, "{event}");
                assert_eq!(event["response"]["output"], json!(items));
            }
            other => panic!("unknown event {other}"),
        }
    }
    items
}

fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().unwrap().strip_prefix("response.").unwrap()).collect()
}

#[test]
fn every_item_has_its_events_in_order() {
    let (events, _) = write(everything(), &end(Finish::ToolCalls));
    assert_eq!(
        kinds(&events),
        [
            "created",
            "in_progress",
            "output_item.added",
            "content_part.added",
            "reasoning_text.delta",
            "reasoning_text.delta",
            "reasoning_text.done",
            "content_part.done",
            "output_item.done",
            "output_item.added",
            "content_part.added",
            "output_text.delta",
            "output_text.delta",
            "output_text.done",
            "content_part.done",
            "output_item.done",
            "output_item.added",
            "function_call_arguments.delta",
            "function_call_arguments.delta",
            "function_call_arguments.done",
            "output_item.done",
            "output_item.added",
            "function_call_arguments.delta",
            "function_call_arguments.delta",
            "function_call_arguments.done",
            "output_item.done",
            "completed",
        ]
    );
}

#[test]
fn a_client_rebuilds_the_whole_reply() {
    let (events, mut whole) = write(everything(), &end(Finish::ToolCalls));
    let mut items = rebuild(&events);
    assert_eq!(json!(items), whole["output"]);
    let last = events.last().unwrap();
    assert_eq!(last["timings"], whole["timings"]);
    whole.as_object_mut().unwrap().remove("timings");
    assert_eq!(last["response"], whole);

    let prefixes = ["rs_", "msg_", "fc_", "fc_"];
    for (item, prefix) in items.iter_mut().zip(prefixes) {
        let id = item.as_object_mut().unwrap().remove("id").unwrap();
        assert!(id.as_str().unwrap().starts_with(prefix), "{id}");
    }
    let part = json!({"type": "output_text", "text": "Hé!", "annotations": [], "logprobs": []});
    assert_eq!(
        json!(items),
        json!([
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hmm."}], "status": "completed"},
            {"type": "message", "role": "assistant", "content": [part], "status": "completed"},
            {"type": "function_call", "call_id": "call_0", "name": "f", "arguments": "{\"a\":1}", "status": "completed"},
            {"type": "function_call", "call_id": "call_1", "name": "g", "arguments": "{}", "status": "completed"}])
    );
}

#[test]
fn the_response_grows_from_nothing_to_its_usage() {
    let (events, _) = write(vec![text("a")], &end(Finish::Stop));
    let (first, last) = (&events[0]["response"], &events.last().unwrap()["response"]);
    assert_eq!(*first, events[1]["response"]);
    assert_eq!(
        (&first["status"], &first["output"], &first["usage"]),
        (&json!("in_progress"), &json!([]), &Value::Null)
    );
    for (name, expected) in [
        ("object", json!("response")),
        ("model", json!("tiny-Q4_1")),
        ("status", json!("completed")),
        ("error", Value::Null),
        ("incomplete_details", Value::Null),
        ("store", json!(false)),
        (
            "usage",
            json!({"input_tokens": 12, "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
                   "output_tokens": 7, "output_tokens_details": {"reasoning_tokens": 3}, "total_tokens": 19}),
        ),
    ] {
        assert_eq!(last[name], expected, "{name}");
    }
    assert!(last["id"].as_str().unwrap().starts_with("resp_") && last["id"] == first["id"]);
    assert!(last["completed_at"].as_u64() >= last["created_at"].as_u64() && first["completed_at"].is_null());
}

#[test]
fn an_answer_that_is_cut_is_incomplete_in_its_last_item() {
    let (events, whole) = write(vec![thought("a"), call(0, Some("f"), "{\"a")], &end(Finish::Length));
    let items = rebuild(&events);
    assert_eq!((&items[0]["status"], &items[1]["status"]), (&json!("completed"), &json!("incomplete")));
    assert_eq!(events.last().unwrap()["type"], "response.incomplete");
    assert_eq!(
        (&whole["status"], &whole["incomplete_details"]),
        (&json!("incomplete"), &json!({"reason": "max_output_tokens"}))
    );
}

#[test]
fn an_empty_answer_is_an_empty_message() {
    let (events, whole) = write(Vec::new(), &end(Finish::Stop));
    assert_eq!(rebuild(&events)[0]["content"][0]["text"], "");
    assert_eq!(whole["output"][0]["content"][0]["text"], "");
}

#[test]
fn logprobs_ride_on_their_text() {
    let logprob = |byte: u8| TokenLogprob { token: Token(byte.into()), logprob: -0.5, top: vec![(Token(98), -1.0)] };
    let with = |delta, byte| Delta { logprobs: vec![logprob(byte)], ..delta };
    let (events, whole) = write(vec![thought("t"), with(text("a"), b'a'), with(text("c"), b'c')], &end(Finish::Stop));
    rebuild(&events);
    let entry = |byte: u8, text: &str| {
        let top = json!([{"id": 98, "token": "b", "bytes": [98], "logprob": -1.0}]);
        json!({"id": byte, "token": text, "bytes": [byte], "logprob": -0.5, "top_logprobs": top})
    };
    let of_kind = |kind: &str| -> Vec<Value> {
        events.iter().filter(|event| event["type"] == kind).map(|event| event["logprobs"].clone()).collect()
    };
    let both = json!([entry(97, "a"), entry(99, "c")]);
    assert_eq!(of_kind("response.output_text.delta"), [json!([both[0]]), json!([both[1]])]);
    assert_eq!(json!(of_kind("response.output_text.done")), json!([both]));
    assert_eq!(whole["output"][1]["content"][0]["logprobs"], both);
}

#[test]
fn calls_alone_have_no_message() {
    let (events, _) = write(vec![call(0, Some("f"), "{}")], &end(Finish::ToolCalls));
    let items = rebuild(&events);
    assert_eq!((items.len(), &items[0]["type"]), (1, &json!("function_call")));
}

#[test]
fn a_failure_is_the_last_event_and_keeps_what_there_was() {
    let mut answer = answer();
    let mut frames = answer.opening();
    frames.extend(answer.step(0, ChatStep::Delta(text("a"))));
    frames.push(answer.failed(&ApiError::internal("no room")));
    let events = events(frames);
    let last = events.last().unwrap();
    assert_eq!(
        (&last["type"], &last["sequence_number"].as_u64()),
        (&json!("response.failed"), &Some(events.len() as u64 - 1))
    );
    assert_eq!(last["response"]["error"], json!({"code": "server_error", "message": "no room"}));
    assert_eq!(
        (&last["response"]["status"], &last["response"]["output"][0]["status"]),
        (&json!("failed"), &json!("incomplete"))
    );
}
