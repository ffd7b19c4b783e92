//! From a chat request to a prompt, options and a parser. Runs Jinja and the tokenizer: not for an async thread.

use serde_json::{Value, json};

use super::{ChatCall, ToolChoice, force, parse::ParserSpec, schema::schema_grammar};
use crate::{
    engine::{ChatPrompt, ChatRequest, GenerateOptions},
    llama::Token,
    server::{error::ApiError, state::Backend},
};

/// Everything a generation needs.
#[derive(Debug)]
pub struct Prepared {
    /// The prompt, with exactly one BOS where the model wants one.
    pub prompt: Vec<Token>,
    /// Options of all answers.
    pub options: GenerateOptions,
    /// How answers are parsed.
    pub parser: ParserSpec,
}

/// The rendered prompt as text.
pub fn render(backend: &Backend, call: &ChatCall) -> Result<String, ApiError> {
    Ok(backend.apply_template(&request(backend, call))?.prompt)
}

/// Renders the prompt and settles how its answer is constrained and parsed.
pub fn prepare(backend: &Backend, call: ChatCall) -> Result<Prepared, ApiError> {
    if matches!(call.tool_choice, ToolChoice::Required | ToolChoice::Named(_)) {
        return force::prepare(backend, call);
    }
    let chat = backend.apply_template(&request(backend, &call))?;
    let has_own_grammar = call.params.has_grammar();
    let grammar = match &call.schema {
        // The template's own grammar lets thoughts come first. Without thoughts it would still allow a code fence around
        // the JSON, which clients that asked for JSON cannot read.
        Some(schema) if !supports_thinking(&chat) || chat.grammar.is_none() => {
            Some(schema_grammar(schema, "response_format")?)
        }
        _ => chat.grammar.clone(),
    };
    let thinks = supports_thinking(&chat);
    let is_plain_json = call.schema.is_some() && !thinks;
    let parser = if is_plain_json { ParserSpec::Content } else { common_parser(&call, &chat, "") };
    let mut prepared = assemble(backend, call, chat, parser)?;
    if !has_own_grammar {
        prepared.options.sampling.grammar = grammar;
    }
    if thinks {
        // Which tokens were thoughts can be told piece by piece only, and usage says how many they were.
        prepared.options.two_pieces = false;
    }
    Ok(prepared)
}

/// Prompt and options, but for the grammar.
pub(super) fn assemble(
    backend: &Backend,
    call: ChatCall,
    chat: ChatPrompt,
    parser: ParserSpec,
) -> Result<Prepared, ApiError> {
    let prompt = backend.tokenize(&chat.prompt, true, true)?;
    let mut options = call.params.into_options(backend)?;
    options.stop.extend(chat.stop);
    options.preserved_tokens.extend(chat.preserved_tokens);
    Ok(Prepared { prompt, options, parser })
}

/// What goes to the template.
pub(super) fn request(backend: &Backend, call: &ChatCall) -> ChatRequest {
    let tools: Vec<Value> = call.tools.iter().map(super::Tool::to_json).collect();
    let caps = backend.template_info();
    let parallel = call.parallel_tool_calls.unwrap_or(caps["caps"]["supports_parallel_tool_calls"] == true);
    let ends_with_assistant =
        call.messages.as_array().and_then(|list| list.last()).is_some_and(|last| last["role"] == "assistant");
    let continue_final_message = call
        .continue_final_message
        .clone()
        .or_else(|| (ends_with_assistant && call.add_generation_prompt != Some(true)).then_some(json!(true)));
    ChatRequest {
        messages: call.messages.clone(),
        tools: (!tools.is_empty()).then_some(Value::Array(tools)),
        tool_choice: Some(if call.tool_choice == ToolChoice::None { "none" } else { "auto" }.to_owned()),
        parallel_tool_calls: Some(parallel),
        add_generation_prompt: call.add_generation_prompt,
        continue_final_message,
        json_schema: call.schema.clone(),
        grammar: None,
        // As llama-server: a template that knows the variable and shows no thoughts is told that there are none.
        enable_thinking: Some(call.enable_thinking.unwrap_or(caps["supports_thinking"] == true)),
        reasoning_format: call.reasoning_format.clone(),
        chat_template_kwargs: call.template_kwargs.clone(),
    }
}

pub(super) fn supports_thinking(chat: &ChatPrompt) -> bool {
    chat.parser_params["supports_thinking"] == true
}

/// llama.cpp's parser of this answer. `suffix` is what was added to the generation prompt.
pub(super) fn common_parser(call: &ChatCall, chat: &ChatPrompt, suffix: &str) -> ParserSpec {
    let mut params = chat.parser_params.clone();
    if params["parser"].as_str().is_none_or(str::is_empty) {
        return ParserSpec::Content;
    }
    params["reasoning_format"] = json!(call.reasoning_format.as_deref().unwrap_or("deepseek"));
    params["parse_tool_calls"] = json!(call.parse_tool_calls);
    let generation_prompt = params["generation_prompt"].as_str().unwrap_or_default().to_owned() + suffix;
    params["generation_prompt"] = json!(generation_prompt);
    ParserSpec::Common(params.to_string())
}
