//! A request of the Responses API as a chat call, and what its reply repeats of it.

use serde_json::{Value, json};

use super::input;
use crate::server::{
    chat::{ChatCall, Tool, ToolChoice, check_schema, check_tool_choice, read_function, read_tool_choice},
    dialect::{self, count},
    error::ApiError,
    extract::Object,
    fields::{Fields, wrong},
    state::AppState,
};

/// Fields that mean something else to OpenAI's chat, or nothing.
const OWN: &[&str] = &[
    "input",
    "instructions",
    "messages",
    "tools",
    "tool_choice",
    "text",
    "metadata",
    "stream_options",
    "max_output_tokens",
    "include",
    "logprobs",
    "top_logprobs",
];

/// What asks for a memory, or for work that goes on without the client.
const REFUSED: &[(&str, &str)] = &[
    ("previous_response_id", "this server keeps no responses; send the whole conversation as `input`"),
    ("conversation", "this server keeps no conversations; send the whole conversation as `input`"),
    ("prompt", "this server keeps no prompts; send `instructions` and `input`"),
    ("background", "this server keeps no responses to fetch later; leave it out or set it to false"),
];

/// The call that a request makes, and the fields of the reply that repeat it.
pub fn read(body: &Object, state: &AppState) -> Result<(ChatCall, Object), ApiError> {
    let fields = Fields::root(body);
    dialect::refuse(&fields, REFUSED)?;

    // The strongest of its names, should a client send several.
    let renamed = count(&fields, "max_output_tokens")?.map(|n| ("n_predict", json!(n)));
    let mut call = dialect::call(body, OWN, renamed, input::read(&fields)?, state)?;
    (call.tools, call.tool_choice) = tools(&fields)?;
    call.schema = format(&fields)?.or(call.schema);
    dialect::check_grammar(&call)?;
    if let Some(n) = top_logprobs(&fields)? {
        call.params.set_top_logprobs("top_logprobs", i64::try_from(n).unwrap_or(i64::MAX))?;
    }
    // A summary of the thoughts is not made: the answer has the thoughts themselves.
    let reasoning = fields.object("reasoning")?;
    dialect::set_effort(&mut call, reasoning.map(|reasoning| reasoning.string("effort")).transpose()?.flatten());
    let text = fields.object("text")?;
    dialect::set_variable(&mut call, "verbosity", text.map(|text| text.string("verbosity")).transpose()?.flatten());

    let echo = echo(&fields, &call);
    Ok((call, echo))
}

/// `include` says whether there are log-probabilities, `top_logprobs` how many alternatives.
fn top_logprobs(fields: &Fields) -> Result<Option<usize>, ApiError> {
    let mut is_asked = false;
    for (idx, value) in fields.array("include")?.unwrap_or_default().iter().enumerate() {
        match value.as_str() {
            // The others ask for parts of items that no answer here has.
            Some(what) => is_asked |= what == "message.output_text.logprobs",
            None => return Err(wrong(format!("{}[{idx}]", fields.path("include")), "a string", value)),
        }
    }
    match count(fields, "top_logprobs")? {
        Some(1..) if !is_asked => {
            let problem = "needs \"message.output_text.logprobs\" in `include`";
            Err(ApiError::field(fields.path("top_logprobs"), problem))
        }
        n => Ok(is_asked.then(|| n.and_then(|n| usize::try_from(n).ok()).unwrap_or(0))),
    }
}

/// The functions, and whether they must be called. Tools that run on OpenAI's servers are left out: a client offers them
/// in passing, and the answer's `tools` tell what was there.
fn tools(fields: &Fields) -> Result<(Vec<Tool>, ToolChoice), ApiError> {
    let mut tools = Vec::new();
    for (idx, value) in fields.array("tools")?.unwrap_or_default().iter().enumerate() {
        let tool = Fields::at(format!("{}[{idx}]", fields.path("tools")), value)?;
        match tool.string("type")? {
            Some("function") => tools.push(read_function(&tool, "parameters")?),
            Some(_) => {}
            None => return Err(ApiError::field(tool.path("type"), "missing; expected a string")),
        }
    }
    if !matches!(fields.get("tool_choice"), Some(Value::Object(_))) {
        let choice = read_tool_choice(fields, &tools)?;
        return Ok((tools, choice));
    }
    let Some(choice) = fields.object("tool_choice")? else { return Ok((tools, ToolChoice::Auto)) };
    match choice.string("type")? {
        None | Some("function") => {
            let choice = read_tool_choice(fields, &tools)?;
            Ok((tools, choice))
        }
        Some("allowed_tools") => allowed_tools(&choice, tools),
        Some(other) => {
            let problem = format_args!("unknown type {other:?}; known are \"function\" and \"allowed_tools\"");
            Err(ApiError::field(choice.path("type"), problem))
        }
    }
}

/// `{"mode": "auto" or "required", "tools": [{"type": "function", "name"}]}`: a part of the tools.
fn allowed_tools(choice: &Fields, tools: Vec<Tool>) -> Result<(Vec<Tool>, ToolChoice), ApiError> {
    let path = choice.path("tools");
    let mut names = Vec::new();
    for (idx, value) in choice.array("tools")?.unwrap_or_default().iter().enumerate() {
        let allowed = Fields::at(format!("{path}[{idx}]"), value)?;
        names.extend(allowed.string("name")?);
    }
    let tools: Vec<Tool> = tools.into_iter().filter(|tool| names.contains(&tool.name.as_str())).collect();
    let mode = match choice.string("mode")? {
        None | Some("auto") => ToolChoice::Auto,
        Some("required") => ToolChoice::Required,
        Some(other) => {
            let problem = format_args!("unknown value {other:?}; known are \"auto\" and \"required\"");
            return Err(ApiError::field(choice.path("mode"), problem));
        }
    };
    let mode = check_tool_choice(mode, &tools, &path)?;
    Ok((tools, mode))
}

/// The schema of `text.format`.
fn format(fields: &Fields) -> Result<Option<Value>, ApiError> {
    let Some(text) = fields.object("text")? else { return Ok(None) };
    let Some(format) = text.object("format")? else { return Ok(None) };
    let schema = match format.string("type")? {
        Some("text") => return Ok(None),
        Some("json_object") => json!({"type": "object"}),
        Some("json_schema") => match format.get("schema") {
            Some(schema) => schema.clone(),
            None => return Err(ApiError::field(format.path("schema"), "missing; expected an object")),
        },
        Some(other) => {
            let problem =
                format_args!("unknown type {other:?}; known are \"text\", \"json_object\" and \"json_schema\"");
            return Err(ApiError::field(format.path("type"), problem));
        }
        None => return Err(ApiError::field(format.path("type"), "missing; expected a string")),
    };
    check_schema(&format.path("schema"), schema).map(Some)
}

/// The reply repeats what was asked for, with the values that were used.
fn echo(fields: &Fields, call: &ChatCall) -> Object {
    let given = |name: &str, default: Value| fields.get(name).cloned().unwrap_or(default);
    let sampling = call.params.sampling();
    let tools: Vec<Value> = call.tools.iter().map(flat_tool).collect();
    let echo = json!({
        "background": false,
        "instructions": given("instructions", Value::Null),
        "max_output_tokens": given("max_output_tokens", Value::Null),
        "max_tool_calls": given("max_tool_calls", Value::Null),
        "metadata": given("metadata", json!({})),
        "parallel_tool_calls": given("parallel_tool_calls", json!(true)),
        "previous_response_id": null,
        "reasoning": given("reasoning", json!({"effort": null, "summary": null})),
        "service_tier": "default",
        "store": false,
        "temperature": decimal(sampling.temperature),
        "text": given("text", json!({"format": {"type": "text"}})),
        "tool_choice": given("tool_choice", json!("auto")),
        "tools": tools,
        "top_logprobs": given("top_logprobs", json!(0)),
        "top_p": decimal(sampling.top_p),
        "truncation": "disabled",
        "user": given("user", Value::Null),
    });
    match echo {
        Value::Object(echo) => echo,
        _ => Object::new(),
    }
}

fn flat_tool(tool: &Tool) -> Value {
    let Tool { name, description, parameters } = tool;
    json!({"type": "function", "name": name, "description": description, "parameters": parameters, "strict": false})
}

/// 0.8, not the 0.800000011920929 that the `f32` is.
fn decimal(number: f32) -> Value {
    number.to_string().parse::<f64>().map_or(Value::Null, |number| json!(number))
}

#[cfg(test)]
mod tests;
