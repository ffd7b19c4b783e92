//! A request of the Messages API as a chat call.

use serde_json::{Value, json};

use super::messages;
use crate::server::{
    chat::{ChatCall, Tool, ToolChoice, check_schema, check_tool_choice, read_function},
    dialect::{self, count},
    error::ApiError,
    extract::Object,
    fields::{Fields, wrong},
    state::AppState,
};

/// Fields that mean something else to OpenAI's chat, or nothing.
const OWN: &[&str] = &[
    "messages",
    "system",
    "tools",
    "tool_choice",
    "metadata",
    "stream_options",
    "max_tokens",
    "stop_sequences",
    "logprobs",
    "top_logprobs",
];

/// What asks for services that there are not.
const REFUSED: &[(&str, &str)] = &[
    ("mcp_servers", "this server calls no other servers; let the client do it"),
    ("container", "this server has no containers"),
];

/// What a request without `max_tokens` gets, which Anthropic would refuse; as in llama-server.
const MAX_TOKENS: u32 = 4096;

/// What a request says about its answer alone.
#[derive(Debug, Default)]
pub struct Form {
    /// Its stop strings. The template has some of its own, which are ordinary ends.
    pub stop: Vec<String>,
    /// Blocks of thoughts are empty.
    pub hides_thoughts: bool,
}

/// The call that a request makes, and the form of its answer.
pub fn read(body: &Object, state: &AppState) -> Result<(ChatCall, Form), ApiError> {
    let fields = Fields::root(body);
    dialect::refuse(&fields, REFUSED)?;

    let defaults = &state.config().defaults;
    let max_tokens = count(&fields, "max_tokens")?.unwrap_or(defaults.max_tokens.unwrap_or(MAX_TOKENS).into());
    let stop = stop_sequences(&fields)?;
    let renamed = [("n_predict", json!(max_tokens))].into_iter().chain(stop.clone().map(|stop| ("stop", json!(stop))));
    let mut call = dialect::call(body, OWN, renamed, messages::read(&fields)?, state)?;
    call.tools = tools(&fields)?;
    (call.tool_choice, call.parallel_tool_calls) = tool_choice(&fields, &call.tools)?;
    call.schema = format(&fields)?.or(call.schema);
    dialect::check_grammar(&call)?;
    let config = fields.object("output_config")?;
    dialect::set_effort(&mut call, config.map(|config| config.string("effort")).transpose()?.flatten());
    call.enable_thinking = thinking(&fields)?.or(call.enable_thinking);
    Ok((call, Form { stop: stop.unwrap_or_default(), hides_thoughts: hides_thoughts(&fields)? }))
}

fn stop_sequences(fields: &Fields) -> Result<Option<Vec<String>>, ApiError> {
    let path = fields.path("stop_sequences");
    let Some(texts) = fields.array("stop_sequences")? else { return Ok(None) };
    let text = |(idx, value): (usize, &Value)| match value {
        Value::String(text) => Ok(text.clone()),
        other => Err(wrong(format!("{path}[{idx}]"), "a string", other)),
    };
    texts.iter().enumerate().map(text).collect::<Result<_, _>>().map(Some)
}

fn tools(fields: &Fields) -> Result<Vec<Tool>, ApiError> {
    let tool = |(idx, value)| {
        let tool = Fields::at(format!("{}[{idx}]", fields.path("tools")), value)?;
        match tool.string("type")? {
            None | Some("custom") => read_function(&tool, "input_schema"),
            Some(other) => {
                let problem = format_args!(
                    "tools of type {other:?} are not supported; describe it with \"name\" and \"input_schema\""
                );
                Err(ApiError::field(tool.path("type"), problem))
            }
        }
    };
    fields.array("tools")?.unwrap_or_default().iter().enumerate().map(tool).collect()
}

/// Whether tools are called, and whether several at once may be.
fn tool_choice(fields: &Fields, tools: &[Tool]) -> Result<(ToolChoice, Option<bool>), ApiError> {
    let Some(choice) = fields.object("tool_choice")? else { return Ok((ToolChoice::Auto, None)) };
    let parallel = choice.bool("disable_parallel_tool_use")?.map(|disable| !disable);
    let kind = match choice.string("type")? {
        Some("auto") => ToolChoice::Auto,
        Some("any") => ToolChoice::Required,
        Some("none") => ToolChoice::None,
        Some("tool") => match choice.string("name")? {
            Some(name) => ToolChoice::Named(name.to_owned()),
            None => return Err(ApiError::field(choice.path("name"), "missing; expected a string")),
        },
        Some(other) => {
            let problem = format_args!("unknown type {other:?}; known are auto, any, tool and none");
            return Err(ApiError::field(choice.path("type"), problem));
        }
        None => return Err(ApiError::field(choice.path("type"), "missing; expected a string")),
    };
    Ok((check_tool_choice(kind, tools, &fields.path("tool_choice"))?, parallel))
}

/// The schema of `output_config.format`, or of `output_format`, its name while it was new.
fn format(fields: &Fields) -> Result<Option<Value>, ApiError> {
    let config = fields.object("output_config")?;
    let format = match config.map(|config| config.object("format")).transpose()?.flatten() {
        Some(format) => format,
        None => match fields.object("output_format")? {
            Some(format) => format,
            None => return Ok(None),
        },
    };
    match (format.string("type")?, format.get("schema")) {
        (Some("json_schema"), Some(schema)) => check_schema(&format.path("schema"), schema.clone()).map(Some),
        (Some("json_schema"), None) => Err(ApiError::field(format.path("schema"), "missing; expected an object")),
        (Some(other), _) => {
            let problem = format_args!("unknown type {other:?}; known is \"json_schema\"");
            Err(ApiError::field(format.path("type"), problem))
        }
        (None, _) => Err(ApiError::field(format.path("type"), "missing; expected a string")),
    }
}

/// `thinking` switches it on or off; without it the template decides, as in llama-server.
fn thinking(fields: &Fields) -> Result<Option<bool>, ApiError> {
    let Some(thinking) = fields.object("thinking")? else { return Ok(None) };
    match thinking.string("type")? {
        Some("enabled") => {
            // A bound of the thoughts alone cannot be kept yet; `max_tokens` bounds both.
            count(&thinking, "budget_tokens")?;
            Ok(Some(true))
        }
        Some("adaptive") => Ok(Some(true)),
        Some("disabled") => Ok(Some(false)),
        Some(other) => {
            let problem = format_args!("unknown type {other:?}; known are enabled, disabled and adaptive");
            Err(ApiError::field(thinking.path("type"), problem))
        }
        None => Err(ApiError::field(thinking.path("type"), "missing; expected a string")),
    }
}

/// `display` of `thinking`. A summary is not made: the thoughts themselves are shown in its place.
fn hides_thoughts(fields: &Fields) -> Result<bool, ApiError> {
    let Some(thinking) = fields.object("thinking")? else { return Ok(false) };
    match thinking.string("display")? {
        None | Some("summarized") => Ok(false),
        Some("omitted") => Ok(true),
        Some(other) => {
            let problem = format_args!("unknown value {other:?}; known are \"summarized\" and \"omitted\"");
            Err(ApiError::field(thinking.path("display"), problem))
        }
    }
}

#[cfg(test)]
mod tests;
