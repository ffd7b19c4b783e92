//! Requests, by topic. The fields are read by the derive alone.
#![allow(dead_code, missing_docs)]

mod chat;
mod generation;
mod messages;
mod responses;
mod service;
mod text;

use super::{Named, add};

pub fn collect(schemas: &mut Vec<Named>) {
    add::<chat::ChatRequest>(schemas);
    add::<text::CompletionRequest>(schemas);
    add::<text::NativeRequest>(schemas);
    add::<text::InfillRequest>(schemas);
    add::<text::EmbeddingRequest>(schemas);
    add::<responses::ResponsesRequest>(schemas);
    add::<messages::MessagesRequest>(schemas);
    add::<service::TokenizeRequest>(schemas);
    add::<service::DetokenizeRequest>(schemas);
    add::<service::SlotRequest>(schemas);
}
