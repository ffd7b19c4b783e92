//! The messages of a chat, checked here so that a client reads which one is wrong; templates only raise exceptions.

use serde_json::{Value, json};

use crate::server::{
    error::ApiError,
    fields::{Fields, wrong},
};

/// `messages` as the template takes them: checked, with `developer` turned into `system`.
pub fn read(request: &Fields) -> Result<Value, ApiError> {
    let Some(messages) = request.array("messages")? else {
        return Err(ApiError::field("messages", "missing; expected an array of messages"));
    };
    let mut checked = messages.to_vec();
    for (idx, (message, checked)) in messages.iter().zip(&mut checked).enumerate() {
        let fields = Fields::at(format!("messages[{idx}]"), message)?;
        if role(&fields)? == "developer" {
            checked["role"] = json!("system");
        }
        content(&fields)?;
        tool_calls(&fields)?;
    }
    match messages {
        [.., before, last] if before["role"] == "assistant" && last["role"] == "assistant" => Err(ApiError::field(
            format!("messages[{}]", messages.len() - 1),
            "the last two messages are the assistant's; only one can be continued",
        )),
        _ => Ok(Value::Array(checked)),
    }
}

fn role<'a>(message: &Fields<'a>) -> Result<&'a str, ApiError> {
    match message.string("role")? {
        Some(role @ ("system" | "developer" | "user" | "assistant" | "tool")) => Ok(role),
        Some(role) => Err(ApiError::field(
            message.path("role"),
            format_args!("unknown role {role:?}; known are system, developer, user, assistant and tool"),
        )),
        None => Err(ApiError::field(message.path("role"), "missing; expected a string")),
    }
}

/// Text, or an array of text parts; an assistant that calls tools needs none.
fn content(message: &Fields) -> Result<(), ApiError> {
    let path = message.path("content");
    match message.get("content") {
        Some(Value::String(_)) => Ok(()),
        Some(Value::Array(parts)) => {
            parts.iter().enumerate().try_for_each(|(idx, value)| part(Fields::at(format!("{path}[{idx}]"), value)?))
        }
        Some(other) => Err(wrong(path, "a string or an array of parts", other)),
        None if role(message)? != "assistant" => Err(ApiError::field(path, "missing; expected a string")),
        None if message.get("tool_calls").is_some() => Ok(()),
        None => Err(ApiError::field(path, "missing; an assistant message needs content or tool_calls")),
    }
}

fn part(part: Fields) -> Result<(), ApiError> {
    let no_media = |kind| Err(ApiError::field(part.path("type"), format_args!("{kind} input is not supported")));
    match part.string("type")? {
        Some("text") if part.string("text")?.is_some() => Ok(()),
        Some("text") => Err(ApiError::field(part.path("text"), "missing; expected a string")),
        Some("image_url") => no_media("image"),
        Some("input_audio") => no_media("audio"),
        Some("input_video") => no_media("video"),
        Some(other) => Err(ApiError::field(part.path("type"), format_args!("unknown type {other:?} of content"))),
        None => Err(ApiError::field(part.path("type"), "missing; expected a string")),
    }
}

/// Calls of earlier turns, which the template writes into the prompt.
fn tool_calls(message: &Fields) -> Result<(), ApiError> {
    let calls = message.array("tool_calls")?.unwrap_or_default();
    for (idx, call) in calls.iter().enumerate() {
        let call = Fields::at(format!("{}[{idx}]", message.path("tool_calls")), call)?;
        let Some(function) = call.object("function")? else {
            return Err(ApiError::field(call.path("function"), "missing; expected an object"));
        };
        for name in ["name", "arguments"] {
            if function.string(name)?.is_none() {
                return Err(ApiError::field(function.path(name), "missing; expected a string"));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(messages: Value) -> Result<Value, String> {
        let body = json!({"messages": messages});
        read(&Fields::root(body.as_object().unwrap())).map_err(|error| {
            let body = serde_json::to_value(error.body()).unwrap();
            body["error"]["message"].as_str().unwrap().to_owned()
        })
    }

    #[test]
    fn good_messages_pass_unchanged() {
        for messages in [
            json!([]),
            json!([{"role": "user", "content": ""}]),
            json!([{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "a"}]}]),
            json!([
                {"role": "user", "content": "a", "name": "n"},
                {"role": "assistant", "content": null,
                 "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
                {"role": "tool", "tool_call_id": "1", "content": "b"}]),
        ] {
            assert_eq!(check(messages.clone()), Ok(messages));
        }
        assert_eq!(
            check(json!([{"role": "developer", "content": "d"}])),
            Ok(json!([{"role": "system", "content": "d"}]))
        );
    }

    #[test]
    fn bad_messages_are_named() {
        for (messages, expected) in [
            (json!(null), "`messages`: missing; expected an array of messages"),
            (json!("hi"), "`messages`: expected an array, got a string"),
            (json!(["hi"]), "`messages[0]`: expected an object, got a string"),
            (json!([{"content": "hi"}]), "`messages[0].role`: missing; expected a string"),
            (
                json!([{"role": "boss", "content": "hi"}]),
                "`messages[0].role`: unknown role \"boss\"; known are system, developer, user, assistant and tool",
            ),
            (json!([{"role": "user"}]), "`messages[0].content`: missing; expected a string"),
            (
                json!([{"role": "user", "content": 1}]),
                "`messages[0].content`: expected a string or an array of parts, got an integer",
            ),
            (
                json!([{"role": "user", "content": [{"type": "text"}]}]),
                "`messages[0].content[0].text`: missing; expected a string",
            ),
            (
                json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
                "`messages[0].content[0].type`: image input is not supported",
            ),
            (
                json!([{"role": "assistant"}, {"role": "user", "content": "x"}]),
                "`messages[0].content`: missing; an assistant message needs content or tool_calls",
            ),
            (
                json!([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}]),
                "`messages[0].tool_calls[0].function.arguments`: expected a string, got an object",
            ),
            (
                json!([{"role": "assistant", "content": "x"}, {"role": "assistant", "content": "y"}]),
                "`messages[1]`: the last two messages are the assistant's; only one can be continued",
            ),
        ] {
            assert_eq!(check(messages), Err(expected.to_owned()));
        }
    }
}
