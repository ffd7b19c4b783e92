//! `/tokenize`, `/detokenize` and `/apply-template`: what the model is given for a text or a chat.

use axum::extract::State;
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    llama::Token,
    server::{
        chat,
        error::ApiError,
        extract::{ApiJson, Object},
        fields::{Fields, integer, wrong},
        openai,
        state::{AppState, Backend, blocking},
    },
};

#[derive(Serialize)]
struct Piece {
    id: i32,
    /// Text, or the bytes of a token that is part of a character.
    piece: Value,
}

/// `content` (text, or an array of texts and ids) to ids.
pub async fn tokenize(
    State(state): State<AppState>,
    ApiJson(body): ApiJson<Object>,
) -> Result<ApiJson<Value>, ApiError> {
    let backend = state.backend()?.clone();
    let reply = blocking(move || {
        let fields = Fields::root(&body);
        let with_pieces = fields.bool("with_pieces")?.unwrap_or(false);
        let tokens = tokens(&fields, &backend)?;
        Ok::<_, ApiError>(match with_pieces {
            true => json!({"tokens": tokens.iter().map(|&token| piece(&backend, token)).collect::<Vec<_>>()}),
            false => json!({"tokens": tokens.iter().map(|token| token.0).collect::<Vec<_>>()}),
        })
    });
    Ok(ApiJson(reply.await?))
}

fn tokens(fields: &Fields, backend: &Backend) -> Result<Vec<Token>, ApiError> {
    let add_special = fields.bool("add_special")?.unwrap_or(false);
    let parse_special = fields.bool("parse_special")?.unwrap_or(true);
    match fields.get("content") {
        None => Ok(Vec::new()),
        Some(Value::String(text)) => Ok(backend.tokenize(text, add_special, parse_special)?),
        Some(Value::Array(items)) => {
            let mut tokens = Vec::new();
            for (idx, item) in items.iter().enumerate() {
                match item {
                    Value::String(text) => {
                        tokens.extend(backend.tokenize(text, add_special && idx == 0, parse_special)?)
                    }
                    item => tokens.push(id(format!("{}[{idx}]", fields.path("content")), item, backend)?),
                }
            }
            Ok(tokens)
        }
        Some(other) => Err(wrong(fields.path("content"), "a string or an array of strings and token ids", other)),
    }
}

fn id(path: String, item: &Value, backend: &Backend) -> Result<Token, ApiError> {
    let n_vocab = backend.info().n_vocab;
    let Some(id) = integer(item) else { return Err(wrong(path, "a token id", item)) };
    match i32::try_from(id) {
        Ok(token) if u32::try_from(token).is_ok_and(|token| token < n_vocab) => Ok(Token(token)),
        _ => Err(ApiError::field(path, format_args!("there is no token {id}; the vocabulary has {n_vocab}"))),
    }
}

fn piece(backend: &Backend, token: Token) -> Piece {
    let bytes = backend.token_bytes(token);
    let piece = String::from_utf8(bytes).map_or_else(|err| json!(err.as_bytes()), Value::String);
    Piece { id: token.0, piece }
}

/// `tokens` to text, special ones shown.
pub async fn detokenize(
    State(state): State<AppState>,
    ApiJson(body): ApiJson<Object>,
) -> Result<ApiJson<Value>, ApiError> {
    let backend = state.backend()?;
    let fields = Fields::root(&body);
    let items = fields.array("tokens")?.unwrap_or_default();
    let path = |idx| format!("{}[{idx}]", fields.path("tokens"));
    let tokens = items.iter().enumerate().map(|(idx, item)| id(path(idx), item, backend));
    let tokens: Vec<Token> = tokens.collect::<Result<_, _>>()?;
    Ok(ApiJson(json!({"content": backend.detokenize(&tokens)})))
}

/// The body of a chat to the prompt that it would give.
pub async fn apply_template(
    State(state): State<AppState>,
    ApiJson(body): ApiJson<Object>,
) -> Result<ApiJson<Value>, ApiError> {
    let backend = state.backend()?.clone();
    let call = openai::read_chat(&Fields::root(&body), &state)?.or(&state.config().chat);
    let prompt = blocking(move || chat::render(&backend, &call)).await?;
    Ok(ApiJson(json!({"prompt": prompt})))
}
