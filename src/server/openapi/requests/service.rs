//! Tokens and slots.

use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

#[derive(Deserialize, ToSchema)]
pub struct TokenizeRequest {
    content: Option<TokenizeContent>,
    add_special: Option<bool>,
    parse_special: Option<bool>,
    with_pieces: Option<bool>,
}

/// Text, or texts and token ids in a row.
#[derive(Deserialize, ToSchema)]
#[serde(untagged)]
pub enum TokenizeContent {
    Text(String),
    Row(Vec<Value>),
}

#[derive(Deserialize, ToSchema)]
pub struct DetokenizeRequest {
    tokens: Option<Vec<i64>>,
}

#[derive(Deserialize, ToSchema)]
pub struct SlotRequest {
    /// A plain name, for `save` and `restore`.
    filename: Option<String>,
}
