use super::*;
use crate::server::events::testing::state;

fn call(more: Value) -> Result<(ChatCall, Form), ApiError> {
    let mut body = json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 9});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    read(body.as_object().unwrap(), &state())
}

fn tool(name: &str) -> Value {
    json!({"name": name, "description": "d", "input_schema": {"type": "object", "properties": {"a": {"type": "string"}}}})
}

#[test]
fn fields_go_to_their_places() {
    let (call, form) = call(json!({
        "stream": true, "temperature": 0.5, "top_k": 3, "stop_sequences": ["x"], "system": "s", "metadata": {"user_id": "u"},
        "tools": [tool("f")], "thinking": {"type": "enabled", "budget_tokens": 1024}, "service_tier": "auto",
        "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}},
        "chat_template_kwargs": {"b": 1}, "cache_control": {"type": "ephemeral"}, "mcp_servers": [], "container": null}))
    .unwrap();
    assert_eq!((form.stop, form.hides_thoughts), (vec!["x".to_owned()], false));
    assert_eq!(call.messages[0], json!({"role": "system", "content": "s"}));
    assert_eq!((call.params.stream, call.params.max_tokens()), (true, Some(9)));
    assert_eq!((call.params.sampling().temperature, call.params.sampling().top_k), (0.5, 3));
    assert_eq!(call.tools[0].to_json()["function"]["parameters"], tool("f")["input_schema"]);
    assert_eq!(call.enable_thinking, Some(true));
    assert_eq!(call.template_kwargs, Some(json!({"b": 1, "reasoning_effort": "low"})));
    assert_eq!(call.schema, Some(json!({"type": "object"})));
}

#[test]
fn max_tokens_has_a_default() {
    for (max_tokens, expected) in [(Value::Null, 4096), (json!(0), 0), (json!(7), 7)] {
        let (call, _) = call(json!({"max_tokens": max_tokens})).unwrap();
        assert_eq!(call.params.max_tokens(), Some(expected));
    }
}

#[test]
fn tool_choices() {
    for (choice, expected, parallel) in [
        (json!(null), ToolChoice::Auto, None),
        (json!({"type": "auto"}), ToolChoice::Auto, None),
        (json!({"type": "any", "disable_parallel_tool_use": true}), ToolChoice::Required, Some(false)),
        (json!({"type": "tool", "name": "f"}), ToolChoice::Named("f".into()), None),
        (json!({"type": "none"}), ToolChoice::None, None),
    ] {
        let (call, _) = call(json!({"tools": [tool("f")], "tool_choice": choice})).unwrap();
        assert_eq!((call.tool_choice, call.parallel_tool_calls), (expected, parallel));
    }
}

#[test]
fn thinking_is_on_off_or_the_templates_choice() {
    for (thinking, expected) in
        [(json!(null), None), (json!({"type": "adaptive"}), Some(true)), (json!({"type": "disabled"}), Some(false))]
    {
        assert_eq!(call(json!({"thinking": thinking})).unwrap().0.enable_thinking, expected);
    }
    assert!(call(json!({"thinking": {"type": "adaptive", "display": "omitted"}})).unwrap().1.hides_thoughts);
}

#[test]
fn bad_fields_are_named_as_the_client_named_them() {
    for (more, param) in [
        (json!({"max_tokens": -1}), "max_tokens"),
        (json!({"max_tokens": "9"}), "max_tokens"),
        (json!({"stop_sequences": "x"}), "stop_sequences"),
        (json!({"stop_sequences": ["x", 1]}), "stop_sequences[1]"),
        (json!({"temperature": "hot"}), "temperature"),
        (json!({"n": 2}), "n"),
        (json!({"stream": "yes"}), "stream"),
        (json!({"tools": [{"name": "f", "input_schema": 1}]}), "tools[0].input_schema"),
        (json!({"tools": [{"input_schema": {}}]}), "tools[0].name"),
        (json!({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}), "tools[0].type"),
        (json!({"tool_choice": {"type": "any"}}), "tool_choice"),
        (json!({"tool_choice": {"type": "tool"}}), "tool_choice.name"),
        (json!({"tools": [tool("f")], "tool_choice": {"type": "tool", "name": "g"}}), "tool_choice"),
        (json!({"tools": [tool("f")], "tool_choice": {"type": "required"}}), "tool_choice.type"),
        (json!({"tools": [tool("f")], "grammar": "root ::= \"a\""}), "grammar"),
        (json!({"thinking": {"type": "on"}}), "thinking.type"),
        (json!({"thinking": {"type": "adaptive", "display": "all"}}), "thinking.display"),
        (json!({"thinking": {"type": "enabled", "budget_tokens": "many"}}), "thinking.budget_tokens"),
        (json!({"output_config": {"format": {"type": "json_schema"}}}), "output_config.format.schema"),
        (json!({"output_config": {"format": {"type": "xml"}}}), "output_config.format.type"),
        (json!({"output_format": {"schema": {}}}), "output_format.type"),
        (json!({"chat_template_kwargs": {"enable_thinking": "no"}}), "chat_template_kwargs.enable_thinking"),
        (json!({"mcp_servers": [{"url": "x"}]}), "mcp_servers"),
        (json!({"container": "x"}), "container"),
        (json!({"mirostat": 2}), "mirostat"),
    ] {
        let error = call(more.clone()).unwrap_err();
        assert_eq!(json!(error.body())["error"]["param"], param, "{more}");
    }
}
