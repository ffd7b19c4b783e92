//! `instructions` and `input`: the items of a conversation, as the messages of a chat.

use serde_json::{Value, json};

use crate::server::{
    error::ApiError,
    fields::{Fields, wrong},
};

/// The conversation, as messages in OpenAI's chat shape.
pub fn read(request: &Fields) -> Result<Value, ApiError> {
    let mut messages = Vec::new();
    if let Some(text) = request.string("instructions")? {
        messages.push(json!({"role": "system", "content": text}));
    }
    match request.get("input") {
        Some(Value::String(text)) => messages.push(json!({"role": "user", "content": text})),
        Some(Value::Array(items)) => {
            for (idx, value) in items.iter().enumerate() {
                item(&Fields::at(format!("{}[{idx}]", request.path("input")), value)?, &mut messages)?;
            }
        }
        Some(other) => return Err(wrong(request.path("input"), "a string or an array of items", other)),
        None => {
            return Err(ApiError::field(request.path("input"), "missing; expected a string or an array of items"));
        }
    }
    Ok(Value::Array(messages))
}

fn item(item: &Fields, messages: &mut Vec<Value>) -> Result<(), ApiError> {
    match item.string("type")? {
        None | Some("message") => message(item, messages),
        Some("function_call") => {
            let function =
                json!({"name": item.required_string("name")?, "arguments": item.required_string("arguments")?});
            let call = json!({"id": item.required_string("call_id")?, "type": "function", "function": function});
            push(&mut assistant(messages)["tool_calls"], call);
            Ok(())
        }
        Some("function_call_output") => {
            let id = item.required_string("call_id")?;
            let content = content(item, "output", &["input_text"])?;
            messages.push(json!({"role": "tool", "tool_call_id": id, "content": content}));
            Ok(())
        }
        Some("reasoning") => reasoning(item, messages),
        Some("item_reference") => {
            let problem = "this server keeps no items; send the item itself";
            Err(ApiError::field(item.path("type"), problem))
        }
        Some(other) => Err(ApiError::field(
            item.path("type"),
            format_args!(
                "items of type {other:?} are not supported; known are \"message\", \"function_call\", \
                 \"function_call_output\" and \"reasoning\""
            ),
        )),
    }
}

fn message(item: &Fields, messages: &mut Vec<Value>) -> Result<(), ApiError> {
    match item.string("role")? {
        Some("assistant") => {
            let content = content(item, "content", &["output_text", "input_text", "refusal"])?;
            let message = assistant(messages);
            let text = plain(&message["content"]) + &plain(&content);
            message["content"] = json!(text);
        }
        Some("user") => {
            messages.push(json!({"role": "user", "content": content(item, "content", &["input_text"])?}));
        }
        Some("system" | "developer") => {
            let content = content(item, "content", &["input_text"])?;
            match messages.as_mut_slice() {
                // Many templates take one system message, at the beginning; `instructions` may have been that.
                [first] if first["role"] == "system" => {
                    first["content"] = json!(plain(&first["content"]) + "\n\n" + &plain(&content));
                }
                _ => messages.push(json!({"role": "system", "content": content})),
            }
        }
        Some(other) => {
            let problem = format_args!("unknown role {other:?}; known are user, assistant, system and developer");
            return Err(ApiError::field(item.path("role"), problem));
        }
        None => return Err(ApiError::field(item.path("role"), "missing; expected a string")),
    }
    Ok(())
}

/// Thoughts of an earlier turn; those that are encrypted, or only summed up, tell a template nothing.
fn reasoning(item: &Fields, messages: &mut Vec<Value>) -> Result<(), ApiError> {
    let path = item.path("content");
    let mut thoughts = String::new();
    for (idx, value) in item.array("content")?.unwrap_or_default().iter().enumerate() {
        let part = Fields::at(format!("{path}[{idx}]"), value)?;
        thoughts.push_str(part.required_string("text")?);
    }
    if !thoughts.is_empty() {
        let message = assistant(messages);
        let before = message["reasoning_content"].as_str().unwrap_or_default().to_owned();
        message["reasoning_content"] = json!(before + &thoughts);
    }
    Ok(())
}

/// The assistant's message that an item belongs to: its thoughts, text and calls are items of their own here, but one
/// turn to a template.
fn assistant(messages: &mut Vec<Value>) -> &mut Value {
    if messages.last().is_none_or(|last| last["role"] != "assistant") {
        messages.push(json!({"role": "assistant", "content": ""}));
    }
    messages.last_mut().expect("one was just pushed")
}

fn push(array: &mut Value, value: Value) {
    match array {
        Value::Array(items) => items.push(value),
        other => *other = json!([value]),
    }
}

/// A string, or text parts of the `known` types, as chat has them.
fn content(item: &Fields, name: &str, known: &[&str]) -> Result<Value, ApiError> {
    let path = item.path(name);
    match item.get(name) {
        Some(Value::String(text)) => Ok(json!(text)),
        Some(Value::Array(parts)) => {
            let parts = parts.iter().enumerate();
            parts.map(|(idx, value)| part(&Fields::at(format!("{path}[{idx}]"), value)?, known)).collect()
        }
        Some(other) => Err(wrong(path, "a string or an array of parts", other)),
        None => Err(ApiError::field(path, "missing; expected a string or an array of parts")),
    }
}

fn part(part: &Fields, known: &[&str]) -> Result<Value, ApiError> {
    let no_media = |kind| Err(ApiError::field(part.path("type"), format_args!("{kind} input is not supported")));
    match part.string("type")? {
        Some("refusal") if known.contains(&"refusal") => {
            Ok(json!({"type": "text", "text": part.required_string("refusal")?}))
        }
        Some(kind) if known.contains(&kind) => Ok(json!({"type": "text", "text": part.required_string("text")?})),
        Some("input_image") => no_media("image"),
        Some("input_file") => no_media("file"),
        Some("input_audio") => no_media("audio"),
        Some(other) => {
            let problem = format_args!("unknown type {other:?} of content; expected {:?}", known[0]);
            Err(ApiError::field(part.path("type"), problem))
        }
        None => Err(ApiError::field(part.path("type"), "missing; expected a string")),
    }
}

/// The text of what `content` gave.
fn plain(content: &Value) -> String {
    match content {
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        other => other.as_str().unwrap_or_default().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(body: Value) -> Result<Value, String> {
        read(&Fields::root(body.as_object().unwrap())).map_err(|error| {
            let body = serde_json::to_value(error.body()).unwrap();
            body["error"]["message"].as_str().unwrap().to_owned()
        })
    }

    #[test]
    fn strings_and_plain_messages() {
        assert_eq!(check(json!({"input": "hi"})), Ok(json!([{"role": "user", "content": "hi"}])));
        let parts = json!([{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]);
        assert_eq!(
            check(json!({"instructions": "be kind", "input": [
                {"role": "developer", "content": "be short"},
                {"type": "message", "role": "user", "content": parts}]})),
            Ok(json!([
                {"role": "system", "content": "be kind\n\nbe short"},
                {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]))
        );
    }

    #[test]
    fn a_system_message_later_on_stays_where_it_is() {
        let input = json!([{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]);
        assert_eq!(check(json!({"instructions": null, "input": input})), Ok(input));
    }

    #[test]
    fn items_of_one_turn_become_one_message() {
        let input = json!([
            {"role": "user", "content": "weather?"},
            {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "s"}],
             "content": [{"type": "reasoning_text", "text": "I must "}, {"type": "reasoning_text", "text": "look."}]},
            {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [
                {"type": "output_text", "text": "Let me ", "annotations": []}, {"type": "refusal", "refusal": "see."}]},
            {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "f", "arguments": "{\"a\":1}"},
            {"type": "function_call", "id": "fc_2", "call_id": "call_2", "name": "g", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "call_1", "output": "sun"},
            {"type": "function_call_output", "call_id": "call_2", "output": [{"type": "input_text", "text": "rain"}]},
            {"type": "message", "role": "assistant", "content": "Both."},
            {"role": "user", "content": "ok"},
        ]);
        let call = |id, name, arguments| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
        assert_eq!(
            check(json!({"input": input})),
            Ok(json!([
                {"role": "user", "content": "weather?"},
                {"role": "assistant", "content": "Let me see.", "reasoning_content": "I must look.",
                 "tool_calls": [call("call_1", "f", "{\"a\":1}"), call("call_2", "g", "{}")]},
                {"role": "tool", "tool_call_id": "call_1", "content": "sun"},
                {"role": "tool", "tool_call_id": "call_2", "content": [{"type": "text", "text": "rain"}]},
                {"role": "assistant", "content": "Both."},
                {"role": "user", "content": "ok"}]))
        );
    }

    #[test]
    fn reasoning_without_text_is_no_turn() {
        let input = json!([{"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"},
            {"role": "user", "content": "a"}]);
        assert_eq!(check(json!({"input": input})), Ok(json!([{"role": "user", "content": "a"}])));
    }

    #[test]
    fn bad_items_are_named() {
        for (input, expected) in [
            (json!(null), "`input`: missing; expected a string or an array of items"),
            (json!(1), "`input`: expected a string or an array of items, got an integer"),
            (json!(["a"]), "`input[0]`: expected an object, got a string"),
            (json!([{"content": "a"}]), "`input[0].role`: missing; expected a string"),
            (json!([{"role": "user"}]), "`input[0].content`: missing; expected a string or an array of parts"),
            (
                json!([{"role": "boss", "content": "a"}]),
                "`input[0].role`: unknown role \"boss\"; known are user, assistant, system and developer",
            ),
            (
                json!([{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]),
                "`input[0].content[0].type`: image input is not supported",
            ),
            (
                json!([{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}]),
                "`input[0].content[0].type`: file input is not supported",
            ),
            (
                json!([{"role": "user", "content": [{"type": "output_text", "text": "x"}]}]),
                "`input[0].content[0].type`: unknown type \"output_text\" of content; expected \"input_text\"",
            ),
            (
                json!([{"type": "function_call", "name": "f", "arguments": "{}"}]),
                "`input[0].call_id`: missing; expected a string",
            ),
            (
                json!([{"type": "function_call_output", "call_id": "1", "output": {"a": 1}}]),
                "`input[0].output`: expected a string or an array of parts, got an object",
            ),
            (
                json!([{"type": "item_reference", "id": "x"}]),
                "`input[0].type`: this server keeps no items; send the item itself",
            ),
            (
                json!([{"type": "web_search_call"}]),
                "`input[0].type`: items of type \"web_search_call\" are not supported; known are \"message\", \
                 \"function_call\", \"function_call_output\" and \"reasoning\"",
            ),
        ] {
            assert_eq!(check(json!({"input": input})), Err(expected.to_owned()));
        }
    }
}
