//! An answer that has to be a tool call, by construction.
//!
//! The grammar that llama.cpp makes for a required call lets free text come first, in which a small model may go on for
//! ever. The one it makes for a call that the model may begin by itself starts at the call's first marker. So that one is
//! put in force from the first token on. A template that knows no tools gets them described in the system message, and the
//! answer has to be JSON.

use serde_json::{Value, json};

use super::{
    ChatCall, Prepared, Tool, ToolChoice,
    parse::ParserSpec,
    prepare::{assemble, common_parser, request},
    schema::{schema_grammar, tolerated},
};
use crate::{
    engine::{ChatPrompt, Grammar},
    server::{error::ApiError, state::Backend},
};

pub(super) fn prepare(backend: &Backend, mut call: ChatCall) -> Result<Prepared, ApiError> {
    if call.schema.is_some() {
        return Err(ApiError::field("response_format", "cannot be kept when a tool call is required"));
    }
    if call.params.has_grammar() {
        return Err(ApiError::field("grammar", "cannot be kept when a tool call is required"));
    }
    if let ToolChoice::Named(name) = &call.tool_choice {
        call.tools.retain(|tool| tool.name == *name);
    }
    for (index, tool) in call.tools.iter_mut().enumerate() {
        if let Some(kind) = tool.parameters.get("type").filter(|kind| *kind != "object") {
            let path = format!("tools[{index}].function.parameters.type");
            return Err(ApiError::field(path, format_args!("is {kind}; arguments are an \"object\"")));
        }
        tool.parameters = tolerated(&tool.parameters);
    }
    // Thoughts are free text, too.
    call.enable_thinking = Some(false);
    // Small models repeat themselves where they may.
    call.parallel_tool_calls.get_or_insert(false);
    let mut chat = backend.apply_template(&request(backend, &call))?;
    let markers = first_markers(&chat);
    match chat.grammar.take().and_then(|grammar| begin_with(&grammar.gbnf, &markers)) {
        Some(gbnf) => native(backend, call, chat, gbnf),
        None => generic(backend, call),
    }
}

/// The words that begin a section of calls in the model's own format.
fn first_markers(chat: &ChatPrompt) -> Vec<String> {
    let triggers = chat.parser_params["grammar_triggers"].as_array().cloned().unwrap_or_default();
    // 1 is a word (common.h, common_grammar_trigger_type).
    let words = triggers.iter().filter(|trigger| trigger["type"] == 1).filter_map(|trigger| trigger["value"].as_str());
    words.map(str::to_owned).collect()
}

/// The grammar of a call that the model may begin by itself, whose root is a choice of all places where one may begin, cut
/// down to those that begin with one of the markers: inside a section, say, a call begins otherwise, and alone the parser
/// does not know it. `None` when none does.
fn begin_with(gbnf: &str, markers: &[String]) -> Option<String> {
    let is_root = |line: &&str| line.starts_with("root ::= ");
    let root = gbnf.lines().find(is_root)?;
    let begins = |rule: &&str| {
        let definition = gbnf.lines().find_map(|line| line.strip_prefix(rule)?.strip_prefix(" ::= "));
        let first = definition.map(|text| text.trim_start_matches(['(', ' '])).unwrap_or_default();
        markers.iter().any(|marker| first.starts_with(&format!("\"{}", escaped(marker))))
    };
    let kept: Vec<&str> = root["root ::= ".len()..].split(" | ").map(str::trim).filter(begins).collect();
    if kept.is_empty() {
        return None;
    }
    let new_root = format!("root ::= {}", kept.join(" | "));
    Some(gbnf.lines().map(|line| if is_root(&line) { new_root.as_str() } else { line }).collect::<Vec<_>>().join("\n"))
}

/// As a literal of a grammar has it.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n").replace('\r', "\\r")
}

/// The model's own format.
fn native(backend: &Backend, call: ChatCall, mut chat: ChatPrompt, gbnf: String) -> Result<Prepared, ApiError> {
    let suffix = end_of_thoughts(&chat);
    chat.prompt.push_str(&suffix);
    let parser = common_parser(&call, &chat, &suffix);
    let mut prepared = assemble(backend, call, chat, parser)?;
    prepared.options.sampling.grammar = Some(Grammar { gbnf, ..Grammar::default() });
    Ok(prepared)
}

/// What closes the thoughts of a template that opens them in any case.
fn end_of_thoughts(chat: &ChatPrompt) -> String {
    let start = chat.parser_params["thinking_start_tag"].as_str().unwrap_or_default();
    let end = chat.parser_params["thinking_end_tags"][0].as_str().unwrap_or_default();
    let is_open = !start.is_empty() && !end.is_empty() && chat.prompt.trim_end().ends_with(start);
    if is_open { format!("\n{end}\n\n") } else { String::new() }
}

/// For templates without tools.
fn generic(backend: &Backend, mut call: ChatCall) -> Result<Prepared, ApiError> {
    let allow_several = call.parallel_tool_calls == Some(true);
    let schema = calls_schema(&call.tools, allow_several);
    let grammar = schema_grammar(&schema, "tools")?;
    call.messages = described(&call.messages, &call.tools, allow_several);
    call.tools.clear();
    call.tool_choice = ToolChoice::None;
    let chat = backend.apply_template(&request(backend, &call))?;
    let mut prepared = assemble(backend, call, chat, ParserSpec::ForcedCalls)?;
    prepared.options.sampling.grammar = Some(grammar);
    Ok(prepared)
}

fn calls_schema(tools: &[Tool], allow_several: bool) -> Value {
    let place = if allow_several { "#/items" } else { "#" };
    // A tool's own references begin at its parameters.
    let one = |place: &str, tool: &Tool| {
        let parameters = moved(&tool.parameters, &format!("{place}/properties/arguments"));
        json!({
            "type": "object",
            "properties": {"name": {"const": tool.name}, "arguments": parameters},
            "required": ["name", "arguments"],
            "additionalProperties": false,
        })
    };
    let call = match tools {
        [tool] => one(place, tool),
        tools => {
            let each = tools.iter().enumerate().map(|(index, tool)| one(&format!("{place}/anyOf/{index}"), tool));
            json!({"anyOf": each.collect::<Vec<_>>()})
        }
    };
    if allow_several { json!({"type": "array", "items": call, "minItems": 1}) } else { call }
}

/// A schema whose references work where it stands now.
fn moved(schema: &Value, place: &str) -> Value {
    match schema {
        Value::Object(object) => {
            let entry = |(key, value): (&String, &Value)| match (key.as_str(), value) {
                ("$ref", Value::String(target)) if target.starts_with('#') => {
                    (key.clone(), json!(format!("{place}{}", &target[1..])))
                }
                _ => (key.clone(), moved(value, place)),
            };
            Value::Object(object.iter().map(entry).collect())
        }
        Value::Array(values) => values.iter().map(|value| moved(value, place)).collect(),
        other => other.clone(),
    }
}

/// The messages with a system message that describes the tools.
fn described(messages: &Value, tools: &[Tool], allow_several: bool) -> Value {
    let list: Vec<String> = tools.iter().map(|tool| tool.to_json().to_string()).collect();
    let form = if allow_several { "a JSON array of objects" } else { "one JSON object" };
    let text = format!(
        "You can call these functions:\n{}\nAnswer with {form} of the form \
         {{\"name\": <function name>, \"arguments\": <object>}} and nothing else.",
        list.join("\n")
    );
    let mut messages = messages.as_array().cloned().unwrap_or_default();
    match messages.first_mut() {
        Some(first) if first["role"] == "system" && first["content"].is_string() => {
            let own = first["content"].as_str().unwrap_or_default().to_owned();
            first["content"] = json!(format!("{own}\n\n{text}"));
        }
        _ => messages.insert(0, json!({"role": "system", "content": text})),
    }
    Value::Array(messages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_of_tools_are_found() {
        let tool = |name: &str| Tool {
            name: name.into(),
            description: String::new(),
            parameters: json!({"$defs": {"c": {"type": "object", "properties": {"n": {"type": "null"}}}},
                "type": "object", "properties": {"city": {"$ref": "#/$defs/c"}}, "required": ["city"]}),
        };
        for tools in [vec![tool("f")], vec![tool("f"), tool("g")]] {
            for allow_several in [false, true] {
                let grammar = schema_grammar(&calls_schema(&tools, allow_several), "tools").unwrap().gbnf;
                assert!(grammar.contains("\"\\\"n\\\"\""), "{grammar}");
            }
        }
    }

    #[test]
    fn only_places_that_begin_with_a_marker_are_kept() {
        let gbnf = "root ::= call | calls\ncall ::= \"<call>\" x\ncalls ::= \"<calls>\" call \"</calls>\"\nx ::= \"a\"";
        let cut = |marker: &str| begin_with(gbnf, &[marker.to_owned()]);
        assert_eq!(cut("<calls>").unwrap(), gbnf.replacen("call | calls", "calls", 1));
        assert_eq!(cut("<call>").unwrap(), gbnf.replacen("call | calls", "call", 1));
        assert_eq!(cut("{"), None);
        assert!(begin_with("root ::= a\na ::= \"\\n<x>\"", &["\n<x>".to_owned()]).is_some());
    }
}
