use super::*;
use crate::server::events::testing::state;

fn call(more: Value) -> Result<(ChatCall, Object), ApiError> {
    let mut body = json!({"input": "a"});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    read(body.as_object().unwrap(), &state())
}

fn tool(name: &str) -> Value {
    json!({"type": "function", "name": name, "description": "d", "strict": false,
           "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}})
}

#[test]
fn fields_go_to_their_places() {
    let (call, echo) = call(json!({
        "stream": true, "temperature": 0.5, "top_k": 3, "max_output_tokens": 9, "max_tokens": 5, "instructions": "s",
        "metadata": {"a": "b"}, "tools": [{"type": "web_search"}, tool("f")], "parallel_tool_calls": false,
        "reasoning": {"effort": "low", "summary": "auto"}, "store": true, "include": ["reasoning.encrypted_content"],
        "text": {"verbosity": "high", "format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
        "stream_options": {"include_obfuscation": true}, "truncation": "auto", "background": false, "user": "u"}))
    .unwrap();
    assert_eq!(call.messages[0], json!({"role": "system", "content": "s"}));
    assert_eq!((call.params.stream, call.params.max_tokens()), (true, Some(9)));
    assert_eq!((call.params.sampling().temperature, call.params.sampling().top_k), (0.5, 3));
    assert_eq!((call.tools.len(), call.tools[0].name.as_str()), (1, "f"));
    assert_eq!(call.parallel_tool_calls, Some(false));
    assert_eq!(call.template_kwargs, Some(json!({"reasoning_effort": "low", "verbosity": "high"})));
    assert_eq!(call.schema, Some(json!({"type": "object"})));
    for (name, expected) in [
        ("instructions", json!("s")),
        ("max_output_tokens", json!(9)),
        ("metadata", json!({"a": "b"})),
        ("parallel_tool_calls", json!(false)),
        ("tools", json!([tool("f")])),
        ("tool_choice", json!("auto")),
        ("temperature", json!(0.5)),
        ("top_p", json!(0.95)),
        ("reasoning", json!({"effort": "low", "summary": "auto"})),
        // What the client asked for and did not get.
        ("store", json!(false)),
        ("truncation", json!("disabled")),
    ] {
        assert_eq!(echo[name], expected, "{name}");
    }
}

#[test]
fn effort_none_switches_thinking_off() {
    let (call, _) = call(json!({"reasoning": {"effort": "none"}})).unwrap();
    assert_eq!(call.enable_thinking, Some(false));
}

#[test]
fn logprobs_come_when_they_are_included() {
    let include = json!(["message.output_text.logprobs"]);
    for (more, expected) in [
        (json!({}), None),
        (json!({"top_logprobs": 0, "include": []}), None),
        (json!({"include": include}), Some(0)),
        (json!({"include": include, "top_logprobs": 3}), Some(3)),
    ] {
        assert_eq!(call(more).unwrap().0.params.top_logprobs(), expected);
    }
}

#[test]
fn tool_choices() {
    let function = |name| json!({"type": "function", "name": name});
    for (choice, expected, n_tools) in [
        (json!(null), ToolChoice::Auto, 2),
        (json!("none"), ToolChoice::None, 2),
        (json!("required"), ToolChoice::Required, 2),
        (function("g"), ToolChoice::Named("g".into()), 2),
        (json!({"type": "allowed_tools", "mode": "auto", "tools": [function("g")]}), ToolChoice::Auto, 1),
        (json!({"type": "allowed_tools", "mode": "required", "tools": [function("g")]}), ToolChoice::Required, 1),
    ] {
        let (call, echo) = call(json!({"tools": [tool("f"), tool("g")], "tool_choice": choice})).unwrap();
        assert_eq!((call.tool_choice, call.tools.len()), (expected, n_tools));
        assert_eq!(call.tools.last().unwrap().name, "g");
        assert_eq!(echo["tool_choice"], if choice.is_null() { json!("auto") } else { choice });
    }
}

#[test]
fn bad_fields_are_named_as_the_client_named_them() {
    for (more, param) in [
        (json!({"input": null}), "input"),
        (json!({"instructions": ["a"]}), "instructions"),
        (json!({"max_output_tokens": -1}), "max_output_tokens"),
        (json!({"max_output_tokens": 1.5}), "max_output_tokens"),
        (json!({"previous_response_id": "resp_1"}), "previous_response_id"),
        (json!({"conversation": "c"}), "conversation"),
        (json!({"background": true}), "background"),
        (json!({"prompt": {"id": "p"}}), "prompt"),
        (json!({"include": ["file_search_call.results", 1]}), "include[1]"),
        (json!({"top_logprobs": 2}), "top_logprobs"),
        (json!({"include": ["message.output_text.logprobs"], "top_logprobs": -1}), "top_logprobs"),
        (json!({"n": 2}), "n"),
        (json!({"temperature": []}), "temperature"),
        (json!({"tools": [{"name": "f"}]}), "tools[0].type"),
        (json!({"tools": [{"type": "function"}]}), "tools[0].name"),
        (json!({"tools": [{"type": "web_search"}], "tool_choice": "required"}), "tool_choice"),
        (json!({"tools": [tool("f")], "tool_choice": {"type": "web_search"}}), "tool_choice.type"),
        (json!({"tools": [tool("f")], "tool_choice": "always"}), "tool_choice"),
        (json!({"tools": [tool("f")], "tool_choice": {"type": "function", "name": "g"}}), "tool_choice"),
        (json!({"tool_choice": {"type": "allowed_tools", "mode": "all"}}), "tool_choice.mode"),
        (json!({"text": {"format": {"type": "json_schema"}}}), "text.format.schema"),
        (json!({"text": {"format": {"type": "xml"}}}), "text.format.type"),
        (json!({"text": "json"}), "text"),
        (json!({"reasoning": {"effort": 1}}), "reasoning.effort"),
        (json!({"tools": [tool("f")], "grammar": "root ::= \"a\""}), "grammar"),
        (json!({"mirostat": 2}), "mirostat"),
    ] {
        let error = call(more.clone()).unwrap_err();
        assert_eq!(json!(error.body())["error"]["param"], param, "{more}");
    }
}
