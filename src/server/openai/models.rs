//! `GET /v1/models`: the one model that is served.

use axum::extract::{Path, State, rejection::PathRejection};
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    engine::ModelInfo,
    server::{error::ApiError, extract::ApiJson, state::AppState},
};

#[derive(Serialize)]
pub struct List {
    object: &'static str,
    data: [Model; 1],
    /// The same in the form that Ollama's clients look for, as llama-server adds it.
    models: [Value; 1],
}

#[derive(Serialize)]
pub struct Model {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    aliases: Vec<String>,
    tags: Vec<String>,
    architecture: Modalities,
    meta: Meta,
}

#[derive(Serialize)]
struct Modalities {
    input_modalities: [&'static str; 1],
    output_modalities: [&'static str; 1],
}

#[derive(Serialize)]
struct Meta {
    vocab_type: u32,
    n_vocab: u32,
    n_ctx: u32,
    n_ctx_train: u32,
    n_embd: u32,
    n_params: u64,
    size: u64,
    ftype: String,
}

/// All models.
pub async fn list(State(state): State<AppState>) -> Result<ApiJson<List>, ApiError> {
    let info = state.backend()?.info();
    Ok(ApiJson(List { object: "list", data: [model(&state)?], models: [ollama(state.model_id()?, info)] }))
}

/// One model by its id.
pub async fn retrieve(
    State(state): State<AppState>,
    id: Result<Path<String>, PathRejection>,
) -> Result<ApiJson<Model>, ApiError> {
    let model = model(&state)?;
    // Refused are paths that are not UTF-8, and no model has such an id.
    let Path(id) = id.map_err(|rejection| ApiError::not_found(rejection.body_text()))?;
    if id == model.id || model.aliases.contains(&id) {
        return Ok(ApiJson(model));
    }
    Err(ApiError::not_found(format!("there is no model {id:?} here; the one that is served is {:?}", model.id)))
}

fn model(state: &AppState) -> Result<Model, ApiError> {
    let info = state.backend()?.info();
    Ok(Model {
        id: state.model_id()?.to_string(),
        object: "model",
        created: info.loaded_at,
        owned_by: "onebit",
        aliases: state.config().alias.iter().chain(&state.config().other_names).cloned().collect(),
        tags: state.config().tags.clone(),
        architecture: Modalities { input_modalities: ["text"], output_modalities: ["text"] },
        meta: Meta {
            vocab_type: info.vocab_type,
            n_vocab: info.n_vocab,
            n_ctx: info.n_ctx,
            n_ctx_train: info.n_ctx_train,
            n_embd: info.n_embd,
            n_params: info.n_params,
            size: info.n_bytes,
            ftype: info.file_type.clone(),
        },
    })
}

fn ollama(id: &str, info: &ModelInfo) -> Value {
    json!({
        "name": id,
        "model": id,
        "modified_at": "",
        "size": info.n_bytes,
        "digest": "",
        "type": "model",
        "description": info.description,
        "tags": [],
        "capabilities": ["completion"],
        "parameters": "",
        "details": {
            "parent_model": "",
            "format": "gguf",
            "family": info.architecture,
            "families": [info.architecture],
            "parameter_size": info.n_params.to_string(),
            "quantization_level": info.file_type,
        },
    })
}
