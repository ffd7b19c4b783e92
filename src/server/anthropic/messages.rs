//! `system` and `messages`: blocks of content, as the messages of a chat.

use serde_json::{Value, json};

use crate::server::{
    error::ApiError,
    fields::{Fields, wrong},
};

/// The conversation, as messages in OpenAI's chat shape.
pub fn read(request: &Fields) -> Result<Value, ApiError> {
    let mut messages = Vec::new();
    if request.get("system").is_some() {
        messages.push(json!({"role": "system", "content": system(request)?}));
    }
    let path = request.path("messages");
    let Some(list) = request.array("messages")? else {
        return Err(ApiError::field(path, "missing; expected an array of messages"));
    };
    for (idx, value) in list.iter().enumerate() {
        message(&Fields::at(format!("{path}[{idx}]"), value)?, &mut messages)?;
    }
    Ok(Value::Array(messages))
}

fn system(request: &Fields) -> Result<Value, ApiError> {
    Ok(match texts(request, "system")? {
        Value::Array(mut blocks) => {
            for block in &mut blocks {
                let text = block["text"].as_str().unwrap_or_default();
                block["text"] = json!(without_stamp(text));
            }
            Value::Array(blocks)
        }
        text => json!(without_stamp(text.as_str().unwrap_or_default())),
    })
}

/// Claude Code begins its system prompt with a line of accounts in which a checksum (`cch=a5145;`) differs from request to
/// request. It says nothing to a model, but no prefix would ever be found in the cache.
fn without_stamp(text: &str) -> String {
    let stamp = text.starts_with("x-anthropic-billing-header:").then(|| text.find("cch=")).flatten();
    let Some(start) = stamp.map(|start| start + "cch=".len()) else { return text.to_owned() };
    match text[start..].find(';') {
        Some(length) if text[start..start + length].bytes().all(|byte| byte.is_ascii_alphanumeric()) => {
            format!("{}{}{}", &text[..start], "f".repeat(length), &text[start + length..])
        }
        _ => text.to_owned(),
    }
}

fn message(message: &Fields, messages: &mut Vec<Value>) -> Result<(), ApiError> {
    match message.string("role")? {
        Some("user") => user(message, messages),
        Some("assistant") => {
            messages.push(assistant(message)?);
            Ok(())
        }
        Some("system") => {
            messages.push(json!({"role": "system", "content": texts(message, "content")?}));
            Ok(())
        }
        Some(other) => {
            let problem = format_args!("unknown role {other:?}; known are user, assistant and system");
            Err(ApiError::field(message.path("role"), problem))
        }
        None => Err(ApiError::field(message.path("role"), "missing; expected a string")),
    }
}

/// Results of tools are messages of their own to a template. The order is that of the blocks: a result belongs right
/// after the call, and what the user says beside it comes where the client put it.
fn user(message: &Fields, messages: &mut Vec<Value>) -> Result<(), ApiError> {
    let blocks = match message.get("content") {
        Some(Value::String(text)) => {
            messages.push(json!({"role": "user", "content": text}));
            return Ok(());
        }
        _ => blocks(message, "content")?,
    };
    let mut parts = Vec::new();
    let flush = |parts: &mut Vec<Value>, messages: &mut Vec<Value>| {
        if !parts.is_empty() {
            messages.push(json!({"role": "user", "content": std::mem::take(parts)}));
        }
    };
    let is_empty = blocks.is_empty();
    for block in blocks {
        if block.string("type")? == Some("tool_result") {
            flush(&mut parts, messages);
            messages.push(tool_result(&block)?);
        } else {
            parts.push(text_block(&block)?);
        }
    }
    flush(&mut parts, messages);
    if is_empty {
        messages.push(json!({"role": "user", "content": ""}));
    }
    Ok(())
}

fn tool_result(block: &Fields) -> Result<Value, ApiError> {
    let id = block.required_string("tool_use_id")?;
    let mut content = match block.get("content") {
        None => json!(""),
        Some(_) => texts(block, "content")?,
    };
    if block.bool("is_error")? == Some(true) {
        // Templates know no failed calls, so the text has to say it.
        match &mut content {
            Value::Array(parts) => parts.insert(0, json!({"type": "text", "text": "Error:"})),
            text => *text = json!(format!("Error: {}", text.as_str().unwrap_or_default())),
        }
    }
    Ok(json!({"role": "tool", "tool_call_id": id, "content": content}))
}

fn assistant(message: &Fields) -> Result<Value, ApiError> {
    if let Some(Value::String(text)) = message.get("content") {
        return Ok(json!({"role": "assistant", "content": text}));
    }
    let (mut parts, mut calls, mut thoughts) = (Vec::new(), Vec::new(), String::new());
    for block in blocks(message, "content")? {
        match block.string("type")? {
            Some("thinking") => thoughts.push_str(block.required_string("thinking")?),
            // Encrypted by another server for itself.
            Some("redacted_thinking") => {}
            Some("tool_use") => calls.push(tool_use(&block)?),
            _ => parts.push(text_block(&block)?),
        }
    }
    let mut turn = json!({"role": "assistant", "content": if parts.is_empty() { json!("") } else { json!(parts) }});
    if !calls.is_empty() {
        turn["tool_calls"] = json!(calls);
    }
    if !thoughts.is_empty() {
        turn["reasoning_content"] = json!(thoughts);
    }
    Ok(turn)
}

fn tool_use(block: &Fields) -> Result<Value, ApiError> {
    let arguments =
        block.object("input")?.map_or_else(|| "{}".to_owned(), |input| json!(input.to_object()).to_string());
    let function = json!({"name": block.required_string("name")?, "arguments": arguments});
    Ok(json!({"id": block.required_string("id")?, "type": "function", "function": function}))
}

/// A string, or blocks of text.
fn texts(fields: &Fields, name: &str) -> Result<Value, ApiError> {
    if let Some(Value::String(text)) = fields.get(name) {
        return Ok(json!(text));
    }
    blocks(fields, name)?.iter().map(text_block).collect()
}

fn blocks<'a>(fields: &Fields<'a>, name: &str) -> Result<Vec<Fields<'a>>, ApiError> {
    let path = fields.path(name);
    match fields.get(name) {
        Some(Value::Array(blocks)) => {
            blocks.iter().enumerate().map(|(idx, block)| Fields::at(format!("{path}[{idx}]"), block)).collect()
        }
        Some(other) => Err(wrong(path, "a string or an array of blocks", other)),
        None => Err(ApiError::field(path, "missing; expected a string or an array of blocks")),
    }
}

fn text_block(block: &Fields) -> Result<Value, ApiError> {
    match block.string("type")? {
        Some("text") => Ok(json!({"type": "text", "text": block.required_string("text")?})),
        Some(kind @ ("image" | "document")) => {
            Err(ApiError::field(block.path("type"), format_args!("{kind} input is not supported")))
        }
        Some(other) => {
            let problem = format_args!("blocks of type {other:?} are not supported here");
            Err(ApiError::field(block.path("type"), problem))
        }
        None => Err(ApiError::field(block.path("type"), "missing; expected a string")),
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

    fn text(text: &str) -> Value {
        json!({"type": "text", "text": text})
    }

    #[test]
    fn plain_messages() {
        assert_eq!(
            check(json!({"system": "be kind", "messages": [{"role": "user", "content": "a"},
                {"role": "assistant", "content": "b"}, {"role": "system", "content": "c"},
                {"role": "user", "content": []}]})),
            Ok(json!([{"role": "system", "content": "be kind"}, {"role": "user", "content": "a"},
                {"role": "assistant", "content": "b"}, {"role": "system", "content": "c"},
                {"role": "user", "content": ""}]))
        );
        let blocks = json!([{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}, text("b")]);
        assert_eq!(
            check(json!({"system": blocks, "messages": []})),
            Ok(json!([{"role": "system", "content": [text("a"), text("b")]}]))
        );
    }

    #[test]
    fn a_turn_with_tools_and_thoughts() {
        let messages = json!([
            {"role": "user", "content": [text("weather?")]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "I must look.", "signature": ""},
                {"type": "redacted_thinking", "data": "x"},
                text("Let me see."),
                {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}},
                {"type": "tool_use", "id": "t2", "name": "g", "input": {}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "sun"},
                {"type": "tool_result", "tool_use_id": "t2", "content": [text("no"), text("way")], "is_error": true},
                {"type": "tool_result", "tool_use_id": "t3"},
                text("and?")]},
        ]);
        let call = |id, name, arguments| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
        assert_eq!(
            check(json!({"messages": messages})),
            Ok(json!([
                {"role": "user", "content": [text("weather?")]},
                {"role": "assistant", "content": [text("Let me see.")], "reasoning_content": "I must look.",
                 "tool_calls": [call("t1", "f", "{\"a\":1}"), call("t2", "g", "{}")]},
                {"role": "tool", "tool_call_id": "t1", "content": "sun"},
                {"role": "tool", "tool_call_id": "t2", "content": [text("Error:"), text("no"), text("way")]},
                {"role": "tool", "tool_call_id": "t3", "content": ""},
                {"role": "user", "content": [text("and?")]}]))
        );
    }

    #[test]
    fn a_stamp_does_not_break_the_prefix() {
        let stamped = |cch| format!("x-anthropic-billing-header: cc_version=2.1; cch={cch};You are");
        for (system, expected) in [
            (stamped("a5145"), stamped("fffff")),
            (stamped("0b2"), stamped("fff")),
            ("cch=a5145; is my checksum".to_owned(), "cch=a5145; is my checksum".to_owned()),
            ("x-anthropic-billing-header: cch=é;".to_owned(), "x-anthropic-billing-header: cch=é;".to_owned()),
            ("x-anthropic-billing-header: cch=a".to_owned(), "x-anthropic-billing-header: cch=a".to_owned()),
        ] {
            let messages = check(json!({"system": [text(&system)], "messages": []})).unwrap();
            assert_eq!(messages[0]["content"][0]["text"], expected);
            let messages = check(json!({"system": system, "messages": []})).unwrap();
            assert_eq!(messages[0]["content"], expected);
        }
    }

    #[test]
    fn bad_messages_are_named() {
        let user = |block| json!([{"role": "user", "content": [block]}]);
        let assistant = |block| json!([{"role": "assistant", "content": [block]}]);
        for (messages, expected) in [
            (json!(null), "`messages`: missing; expected an array of messages"),
            (json!("a"), "`messages`: expected an array, got a string"),
            (json!([1]), "`messages[0]`: expected an object, got an integer"),
            (json!([{"content": "a"}]), "`messages[0].role`: missing; expected a string"),
            (
                json!([{"role": "tool", "content": "a"}]),
                "`messages[0].role`: unknown role \"tool\"; known are user, assistant and system",
            ),
            (json!([{"role": "user"}]), "`messages[0].content`: missing; expected a string or an array of blocks"),
            (
                json!([{"role": "assistant", "content": 1}]),
                "`messages[0].content`: expected a string or an array of blocks, got an integer",
            ),
            (user(json!({"text": "a"})), "`messages[0].content[0].type`: missing; expected a string"),
            (user(json!({"type": "text"})), "`messages[0].content[0].text`: missing; expected a string"),
            (user(json!({"type": "image"})), "`messages[0].content[0].type`: image input is not supported"),
            (user(json!({"type": "document"})), "`messages[0].content[0].type`: document input is not supported"),
            (
                user(json!({"type": "tool_use", "id": "1", "name": "f", "input": {}})),
                "`messages[0].content[0].type`: blocks of type \"tool_use\" are not supported here",
            ),
            (
                user(json!({"type": "tool_result", "content": "a"})),
                "`messages[0].content[0].tool_use_id`: missing; expected a string",
            ),
            (
                user(json!({"type": "tool_result", "tool_use_id": "1", "content": [{"type": "image"}]})),
                "`messages[0].content[0].content[0].type`: image input is not supported",
            ),
            (
                assistant(json!({"type": "tool_use", "id": "1", "name": "f", "input": "{}"})),
                "`messages[0].content[0].input`: expected an object, got a string",
            ),
            (
                assistant(json!({"type": "tool_result", "tool_use_id": "1"})),
                "`messages[0].content[0].type`: blocks of type \"tool_result\" are not supported here",
            ),
        ] {
            assert_eq!(check(json!({"messages": messages})), Err(expected.to_owned()));
        }
        assert_eq!(
            check(json!({"system": 1, "messages": []})),
            Err("`system`: expected a string or an array of blocks, got an integer".to_owned())
        );
    }
}
