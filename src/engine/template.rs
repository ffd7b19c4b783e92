//! Chat messages to prompt text, through llama.cpp's `common`.

use serde_json::{Value, json};

use crate::llama::{ChatTemplates, Error, GrammarSpec, Token, TriggerSpec, Vocab};

use super::{Engine, EngineError, Grammar, GrammarTriggers};

/// What a chat template is applied to. The values are OpenAI-shaped JSON and go to llama.cpp's `common` as they are, so
/// that every model it knows is rendered as llama-server renders it.
#[derive(Clone, Debug, Default)]
pub struct ChatRequest {
    /// `[{"role", "content", ...}, ...]`.
    pub messages: Value,
    /// Tool definitions.
    pub tools: Option<Value>,
    /// `auto`, `required` or `none`.
    pub tool_choice: Option<String>,
    /// Whether one answer may hold several calls.
    pub parallel_tool_calls: Option<bool>,
    /// Whether the prompt ends with the beginning of the assistant's turn (the default).
    pub add_generation_prompt: Option<bool>,
    /// Whether a last assistant message is to be continued: bool, `"content"` or `"reasoning_content"`.
    pub continue_final_message: Option<Value>,
    /// A JSON schema that the answer must follow.
    pub json_schema: Option<Value>,
    /// A GBNF grammar that the answer must follow.
    pub grammar: Option<String>,
    /// Whether a thinking model thinks.
    pub enable_thinking: Option<bool>,
    /// Where its thoughts go: `none`, `auto`, `deepseek`, `deepseek-legacy`.
    pub reasoning_format: Option<String>,
    /// Further variables of the template.
    pub chat_template_kwargs: Option<Value>,
}

impl ChatRequest {
    /// Messages and nothing else.
    pub fn new(messages: Value) -> Self {
        Self { messages, ..Self::default() }
    }

    /// One user message.
    pub fn user(text: &str) -> Self {
        Self::new(json!([{"role": "user", "content": text}]))
    }

    fn to_json(&self) -> Value {
        json!({
            "messages": self.messages,
            "tools": self.tools,
            "tool_choice": self.tool_choice,
            "parallel_tool_calls": self.parallel_tool_calls,
            "add_generation_prompt": self.add_generation_prompt,
            "continue_final_message": self.continue_final_message,
            "json_schema": self.json_schema,
            "grammar": self.grammar,
            "enable_thinking": self.enable_thinking,
            "reasoning_format": self.reasoning_format,
            "chat_template_kwargs": self.chat_template_kwargs,
        })
    }
}

/// A rendered prompt, and what its answer is to be generated and parsed with.
#[derive(Clone, Debug)]
pub struct ChatPrompt {
    /// The text, without BOS.
    pub prompt: String,
    /// A grammar for the answer, when tools or a schema ask for one.
    pub grammar: Option<Grammar>,
    /// Further stop strings.
    pub stop: Vec<String>,
    /// Special tokens that the answer's parser must see.
    pub preserved_tokens: Vec<Token>,
    /// For [`ChatParser`](crate::llama::ChatParser): `common`'s own words.
    pub parser_params: Value,
}

pub(super) fn apply(
    templates: &ChatTemplates,
    vocab: Vocab<'_>,
    request: &ChatRequest,
) -> Result<ChatPrompt, EngineError> {
    let reply = templates.apply(&request.to_json().to_string()).map_err(template_error)?;
    let reply: Value =
        serde_json::from_str(&reply).map_err(|err| EngineError::Template(format!("unreadable reply: {err}")))?;
    let preserved = strings(&reply["preserved_tokens"]);
    Ok(ChatPrompt {
        prompt: text(&reply["prompt"]),
        grammar: grammar(&reply, vocab),
        stop: strings(&reply["additional_stops"]),
        preserved_tokens: preserved.iter().filter_map(|word| single_token(vocab, word)).collect(),
        parser_params: reply,
    })
}

fn template_error(error: Error) -> EngineError {
    EngineError::Template(error.to_string())
}

/// The engine's grammar in the terms of the safe layer.
pub(super) fn grammar_spec(engine: &Engine, grammar: &Grammar) -> Result<GrammarSpec, EngineError> {
    if grammar.gbnf.trim().is_empty() {
        return Err(EngineError::InvalidOption { option: "grammar", reason: "has no rules".to_owned() });
    }
    let prefill =
        if grammar.prefill.is_empty() { Vec::new() } else { engine.tokenize(&grammar.prefill, false, true)? };
    let triggers = grammar.triggers.as_ref().map(|triggers| TriggerSpec {
        words: triggers.words.clone(),
        patterns: triggers.patterns.clone(),
        tokens: triggers.tokens.clone(),
    });
    Ok(GrammarSpec { gbnf: grammar.gbnf.clone(), triggers, prefill })
}

fn grammar(reply: &Value, vocab: Vocab<'_>) -> Option<Grammar> {
    let gbnf = text(&reply["grammar"]);
    if gbnf.is_empty() {
        return None;
    }
    let is_lazy = reply["grammar_lazy"].as_bool().unwrap_or(false);
    let prefill = if is_lazy { String::new() } else { text(&reply["generation_prompt"]) };
    Some(Grammar { gbnf, triggers: is_lazy.then(|| triggers(&reply["grammar_triggers"], vocab)), prefill })
}

/// `common_grammar_trigger_type` in common.h: 0 a token, 1 a word, 2 a pattern, 3 a pattern for the whole output.
fn triggers(list: &Value, vocab: Vocab<'_>) -> GrammarTriggers {
    let mut triggers = GrammarTriggers::default();
    for trigger in list.as_array().into_iter().flatten() {
        let value = text(&trigger["value"]);
        match trigger["type"].as_i64() {
            Some(0) => {
                triggers.tokens.extend(trigger["token"].as_i64().and_then(|id| i32::try_from(id).ok()).map(Token))
            }
            Some(1) => match single_token(vocab, &value) {
                Some(token) => triggers.tokens.push(token),
                None => triggers.words.push(value),
            },
            Some(2) => triggers.patterns.push(format!("[\\s\\S]*?({value})[\\s\\S]*")),
            _ => triggers.patterns.push(anchored(&value)),
        }
    }
    triggers
}

fn anchored(pattern: &str) -> String {
    let start = if pattern.starts_with('^') { "" } else { "^" };
    let end = if pattern.ends_with('$') { "" } else { "$" };
    format!("{start}{pattern}{end}")
}

fn single_token(vocab: Vocab<'_>, word: &str) -> Option<Token> {
    match vocab.tokenize(word, false, true).ok()?.as_slice() {
        [token] => Some(*token),
        _ => None,
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn strings(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().map(text).collect()
}
