//! What a chat request asks for, in OpenAI's terms.

use serde_json::{Map, Value, json};

use super::{
    limits::{MAX_NAME, limit},
    schema::check_schema,
};
use crate::server::{
    error::ApiError,
    fields::{Fields, wrong},
    openai::Params,
};

/// A chat request, checked.
#[derive(Debug)]
pub struct ChatCall {
    /// OpenAI-shaped, as [`messages::read`](crate::server::openai::read_messages) gives them.
    pub messages: Value,
    /// What the model may call.
    pub tools: Vec<Tool>,
    /// Whether it may or must.
    pub tool_choice: ToolChoice,
    /// Whether one answer may hold several calls; `None` leaves it to the template.
    pub parallel_tool_calls: Option<bool>,
    /// The schema that the content must follow.
    pub schema: Option<Value>,
    /// Where thoughts go: `none` (into the content), `auto`, `deepseek`, `deepseek-legacy`.
    pub reasoning_format: Option<String>,
    /// Whether a thinking model thinks; `None` leaves it to the template.
    pub enable_thinking: Option<bool>,
    /// Further variables of the template.
    pub template_kwargs: Option<Value>,
    /// Whether the prompt ends with the beginning of the assistant's turn.
    pub add_generation_prompt: Option<bool>,
    /// Whether a last assistant message is continued; `None` means yes, if there is one.
    pub continue_final_message: Option<Value>,
    /// Whether calls in the answer are parsed, or left in the content.
    pub parse_tool_calls: bool,
    /// Whether an assistant message that is continued comes with the answer.
    pub echo: bool,
    /// Sampling and the form of the reply.
    pub params: Params,
}

/// What a chat gets that does not say otherwise.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChatDefaults {
    /// Variables of the template, without `enable_thinking`.
    pub template_kwargs: Map<String, Value>,
    /// Whether a thinking model thinks; `None` leaves it to the template.
    pub enable_thinking: Option<bool>,
    /// Where thoughts go; `None` is `deepseek`.
    pub reasoning_format: Option<String>,
}

impl ChatCall {
    /// The same, with the server's defaults where it says nothing.
    pub fn or(mut self, defaults: &ChatDefaults) -> Self {
        self.reasoning_format = self.reasoning_format.or_else(|| defaults.reasoning_format.clone());
        self.enable_thinking = self.enable_thinking.or(defaults.enable_thinking);
        let mut variables = defaults.template_kwargs.clone();
        if let Some(Value::Object(own)) = self.template_kwargs {
            variables.extend(own);
        }
        self.template_kwargs = Some(Value::Object(variables));
        self
    }

    /// Whether the answer goes on with the last message, an assistant's.
    pub fn continues(&self) -> bool {
        let last = self.messages.as_array().and_then(|list| list.last());
        last.is_some_and(|last| last["role"] == "assistant")
            && self.add_generation_prompt != Some(true)
            && self.continue_final_message != Some(json!(false))
    }

    /// The text that the answer begins with, where it is asked for.
    pub fn echoed(&self) -> Option<String> {
        let last = self.messages.as_array().filter(|_| self.echo && self.continues())?.last()?;
        let text = match &last["content"] {
            Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
            content => content.as_str().unwrap_or_default().to_owned(),
        };
        Some(text).filter(|text| !text.is_empty())
    }

    /// Messages and how to answer them, nothing else.
    pub fn new(messages: Value, params: Params) -> Self {
        Self {
            messages,
            tools: Vec::new(),
            tool_choice: ToolChoice::Auto,
            parallel_tool_calls: None,
            schema: None,
            reasoning_format: None,
            enable_thinking: None,
            template_kwargs: None,
            add_generation_prompt: None,
            continue_final_message: None,
            parse_tool_calls: true,
            echo: false,
            params,
        }
    }
}

/// A function that the model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// What it is for.
    pub description: String,
    /// The JSON schema of its arguments, an object.
    pub parameters: Value,
}

impl Tool {
    /// As OpenAI's `tools` have it.
    pub fn to_json(&self) -> Value {
        let Self { name, description, parameters } = self;
        json!({"type": "function", "function": {"name": name, "description": description, "parameters": parameters}})
    }
}

/// Whether tools are called.
#[derive(Clone, Debug, PartialEq)]
pub enum ToolChoice {
    /// The model decides.
    Auto,
    /// Never.
    None,
    /// At least one.
    Required,
    /// This one.
    Named(String),
}

/// OpenAI's `tools`: `[{"type": "function", "function": {"name", "description", "parameters"}}]`.
pub fn read_tools(request: &Fields) -> Result<Vec<Tool>, ApiError> {
    let tools = request.array("tools")?.unwrap_or_default();
    let path = request.path("tools");
    tools.iter().enumerate().map(|(index, tool)| read_tool(Fields::at(format!("{path}[{index}]"), tool)?)).collect()
}

fn read_tool(tool: Fields) -> Result<Tool, ApiError> {
    match tool.string("type")? {
        None | Some("function") => {}
        Some(other) => {
            let problem = format_args!("unknown type {other:?}; known is \"function\"");
            return Err(ApiError::field(tool.path("type"), problem));
        }
    }
    let Some(function) = tool.object("function")? else {
        return Err(ApiError::field(tool.path("function"), "missing; expected an object"));
    };
    read_function(&function, "parameters")
}

/// `{"name", "description", PARAMETERS}`.
pub fn read_function(function: &Fields, parameters: &str) -> Result<Tool, ApiError> {
    let name = match function.string("name")? {
        Some("") => return Err(ApiError::field(function.path("name"), "is empty")),
        Some(name) => name.to_owned(),
        None => return Err(ApiError::field(function.path("name"), "missing; expected a string")),
    };
    let schema = match function.get(parameters) {
        None => json!({"type": "object", "properties": {}}),
        Some(Value::Object(schema)) if schema.is_empty() => json!({"type": "object", "properties": {}}),
        Some(schema @ Value::Object(_)) => schema.clone(),
        Some(other) => return Err(wrong(function.path(parameters), "an object", other)),
    };
    if name.len() > MAX_NAME {
        return Err(ApiError::field(function.path("name"), format_args!("is longer than {MAX_NAME} bytes")));
    }
    let mut schema = schema;
    limit(&function.path(parameters), &mut schema)?;
    Ok(Tool { name, description: function.string("description")?.unwrap_or_default().to_owned(), parameters: schema })
}

/// OpenAI's `tool_choice`: `auto`, `none`, `required` or `{"type": "function", "function": {"name"}}`.
pub fn read_tool_choice(request: &Fields, tools: &[Tool]) -> Result<ToolChoice, ApiError> {
    let path = request.path("tool_choice");
    let choice = match request.get("tool_choice") {
        None => return Ok(ToolChoice::Auto),
        Some(Value::String(word)) => match word.as_str() {
            "auto" => ToolChoice::Auto,
            "none" => ToolChoice::None,
            "required" => ToolChoice::Required,
            other => {
                let problem = format_args!("unknown value {other:?}; known are \"auto\", \"none\" and \"required\"");
                return Err(ApiError::field(path, problem));
            }
        },
        Some(value @ Value::Object(_)) => {
            let choice = Fields::at(path.clone(), value)?;
            let function = choice.object("function")?.unwrap_or(choice);
            match function.string("name")? {
                Some(name) => ToolChoice::Named(name.to_owned()),
                None => return Err(ApiError::field(function.path("name"), "missing; expected a string")),
            }
        }
        Some(other) => return Err(wrong(path, "a string or an object", other)),
    };
    check_tool_choice(choice, tools, &path)
}

/// Refuses a choice that no tool can meet.
pub fn check_tool_choice(choice: ToolChoice, tools: &[Tool], path: &str) -> Result<ToolChoice, ApiError> {
    match &choice {
        ToolChoice::Required if tools.is_empty() => {
            Err(ApiError::field(path, "a call is required, but there are no tools"))
        }
        ToolChoice::Named(name) if !tools.iter().any(|tool| tool.name == *name) => {
            Err(ApiError::field(path, format_args!("there is no tool {name:?} in this request")))
        }
        _ => Ok(choice),
    }
}

/// OpenAI's `response_format`, and llama-server's `json_schema` beside it: the schema that the content must follow.
pub fn read_format(request: &Fields) -> Result<Option<Value>, ApiError> {
    let (schema, path) = match request.object("response_format")? {
        None => (request.get("json_schema").cloned(), request.path("json_schema")),
        Some(format) => match format.string("type")? {
            Some("text") => return Ok(None),
            Some("json_object") => {
                (Some(format.get("schema").cloned().unwrap_or(json!({"type": "object"}))), format.path("schema"))
            }
            Some("json_schema") => {
                let Some(outer) = format.object("json_schema")? else {
                    return Err(ApiError::field(format.path("json_schema"), "missing; expected an object"));
                };
                (Some(outer.get("schema").cloned().unwrap_or(json!({"type": "object"}))), outer.path("schema"))
            }
            Some(other) => {
                let problem =
                    format_args!("unknown type {other:?}; known are \"text\", \"json_object\" and \"json_schema\"");
                return Err(ApiError::field(format.path("type"), problem));
            }
            None => return Err(ApiError::field(format.path("type"), "missing; expected a string")),
        },
    };
    schema.map(|schema| check_schema(&path, schema)).transpose()
}
