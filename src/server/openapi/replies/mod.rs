//! Replies, by topic. The fields are read by the derive alone.
#![allow(dead_code, missing_docs)]

mod chat;
mod common;
mod messages;
mod responses;
mod service;
mod text;

use super::{Named, add};

pub fn collect(schemas: &mut Vec<Named>) {
    add::<common::ErrorReply>(schemas);
    add::<chat::ChatCompletion>(schemas);
    add::<chat::ChatChunk>(schemas);
    add::<text::Completion>(schemas);
    add::<text::NativeReply>(schemas);
    add::<text::NativeChunk>(schemas);
    add::<text::Embeddings>(schemas);
    add::<text::NativeEmbeddings>(schemas);
    add::<responses::Response>(schemas);
    add::<responses::ResponseEvent>(schemas);
    add::<responses::InputTokens>(schemas);
    add::<messages::AnthropicMessage>(schemas);
    add::<messages::AnthropicEvent>(schemas);
    add::<messages::TokenCount>(schemas);
    add::<service::Health>(schemas);
    add::<service::ModelList>(schemas);
    add::<service::Props>(schemas);
    add::<service::Slots>(schemas);
    add::<service::SlotReply>(schemas);
    add::<service::Tokens>(schemas);
    add::<service::Text>(schemas);
    add::<service::Prompt>(schemas);
    add::<service::Adapters>(schemas);
    add::<service::Document>(schemas);
}
