//! Reading the requests of APIs that say otherwise what OpenAI's chat completions say.

use serde_json::{Value, json};

use super::{
    chat::{ChatCall, ToolChoice},
    error::ApiError,
    extract::Object,
    fields::Fields,
    openai,
    state::AppState,
};

/// The call that `messages` make. Fields that the API does not have itself, those of `body` but for its `own` ones, mean
/// what they mean in chat completions; `renamed` are values under their names there, which the caller has checked, so
/// that an error names the client's field.
///
/// # Errors
/// Those of chat completions.
pub fn call(
    body: &Object,
    own: &[&str],
    renamed: impl IntoIterator<Item = (&'static str, Value)>,
    messages: Value,
    state: &AppState,
) -> Result<ChatCall, ApiError> {
    let others = body.iter().filter(|(name, _)| !own.contains(&name.as_str()));
    let mut fields: Object = others.map(|(name, value)| (name.clone(), value.clone())).collect();
    fields.insert("messages".to_owned(), json!([]));
    fields.extend(renamed.into_iter().map(|(name, value)| (name.to_owned(), value)));
    let fields = Fields::root(&fields);
    let call = openai::read_chat(&fields, state)?;
    if call.params.n != 1 {
        return Err(ApiError::field("n", "this API has one answer to a request; expected 1"));
    }
    Ok(ChatCall { messages, ..call })
}

/// An error of the chat, told of the field that the client sent; `names` are pairs of the chat's name and the API's.
pub fn rename(error: ApiError, names: &[(&str, &str)]) -> ApiError {
    match names.iter().find(|(name, _)| error.param() == Some(name)) {
        Some((_, own)) => error.at(*own),
        None => error,
    }
}

/// Refuses a grammar beside something else that constrains the answer.
///
/// # Errors
/// Both are there.
pub fn check_grammar(call: &ChatCall) -> Result<(), ApiError> {
    let has_tools = !call.tools.is_empty() && call.tool_choice != ToolChoice::None;
    if call.params.has_grammar() && (has_tools || call.schema.is_some()) {
        return Err(ApiError::field("grammar", "cannot be used together with tools or a JSON schema"));
    }
    Ok(())
}

/// A variable for the template, which may not know it.
pub fn set_variable(call: &mut ChatCall, name: &str, value: Option<&str>) {
    if let Some(value) = value {
        call.template_kwargs.get_or_insert_with(|| json!({}))[name] = json!(value);
    }
}

/// How much thought the answer is worth, in the API's words; `none` switches it off.
pub fn set_effort(call: &mut ChatCall, effort: Option<&str>) {
    match effort {
        Some("none") => call.enable_thinking = Some(false),
        effort => set_variable(call, "reasoning_effort", effort),
    }
}

/// A count of tokens.
///
/// # Errors
/// What is no integer, or negative.
pub fn count(fields: &Fields, name: &str) -> Result<Option<i64>, ApiError> {
    match fields.integer(name)? {
        Some(n) if n < 0 => Err(ApiError::field(fields.path(name), "must not be negative")),
        count => Ok(count),
    }
}

/// Refuses fields that ask for what this server does not have, with the reason; false and what is empty ask for nothing.
///
/// # Errors
/// One of `fields` is there.
pub fn refuse(request: &Fields, fields: &[(&str, &str)]) -> Result<(), ApiError> {
    let asks = |value: &&Value| match value {
        Value::Bool(asks) => *asks,
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        _ => true,
    };
    match fields.iter().find(|(name, _)| request.get(name).filter(asks).is_some()) {
        Some((name, problem)) => Err(ApiError::field(request.path(name), problem)),
        None => Ok(()),
    }
}
