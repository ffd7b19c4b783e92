//! `POST /slots/{id}?action=save|restore|erase`: what a slot holds, to a file and back.

use std::{
    path::{Path as FilePath, PathBuf},
    time::Instant,
};

use axum::{
    extract::{Path, State, rejection::PathRejection},
    http::Uri,
};
use serde_json::{Value, json};

use crate::{
    engine::{Engine, EngineError},
    server::{
        error::ApiError,
        extract::{ApiJson, OptionalObject},
        fields::Fields,
        state::{AppState, blocking},
    },
};

/// The handler.
pub async fn act(
    State(state): State<AppState>,
    id: Result<Path<String>, PathRejection>,
    uri: Uri,
    OptionalObject(body): OptionalObject,
) -> Result<ApiJson<Value>, ApiError> {
    let backend = state.backend()?;
    let n_slots = backend.info().n_slots;
    let id = id.ok().and_then(|Path(id)| id.parse::<u32>().ok()).filter(|id| *id < n_slots);
    let id =
        id.ok_or_else(|| ApiError::field("id_slot", format_args!("is no slot; there are {n_slots}, from 0 on")))?;
    let pairs = uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
    let action = pairs.into_iter().find(|(name, _)| *name == "action").map(|(_, action)| action);
    let engine = backend.engine().cloned().ok_or_else(|| ApiError::internal("internal error: no engine"))?;
    let fields = Fields::root(&body);
    let reply = match action {
        Some("erase") => blocking(move || erase(&engine, id)).await?,
        Some("save") => {
            let (name, path) = file(&state, &fields)?;
            blocking(move || save(&engine, id, &name, &path)).await?
        }
        Some("restore") => {
            let (name, path) = file(&state, &fields)?;
            blocking(move || restore(&engine, id, &name, &path)).await?
        }
        _ => return Err(ApiError::field("action", "expected \"save\", \"restore\" or \"erase\"")),
    };
    Ok(ApiJson(reply))
}

/// The file's name and its place below the folder that the operator named.
fn file(state: &AppState, fields: &Fields) -> Result<(String, PathBuf), ApiError> {
    let Some(folder) = &state.config().slot_save_path else {
        return Err(ApiError::not_supported(
            "slots are not saved: start the server with --slot-save-path and the name of a folder",
        ));
    };
    let name = fields.required_string("filename")?;
    let is_plain = FilePath::new(name).components().eq([std::path::Component::Normal(name.as_ref())]);
    if !is_plain || name.contains(['/', '\\', '\0']) || name.starts_with('.') {
        return Err(ApiError::field("filename", "expected a plain name, without a folder"));
    }
    if name.len() > 255 {
        return Err(ApiError::field("filename", "is longer than the 255 bytes that a file's name may have"));
    }
    Ok((name.to_owned(), folder.join(name)))
}

fn erase(engine: &Engine, id: u32) -> Result<Value, ApiError> {
    let n_erased = engine.erase_slot(id)?;
    Ok(json!({"id_slot": id, "n_erased": n_erased}))
}

fn save(engine: &Engine, id: u32, name: &str, path: &FilePath) -> Result<Value, ApiError> {
    let started = Instant::now();
    let (n_saved, n_written) = engine.save_slot(id, path).map_err(|error| match error {
        EngineError::Save { reason, .. } if reason == "the slot holds nothing" => ApiError::field("id_slot", reason),
        error => error.into(),
    })?;
    let save_ms = started.elapsed().as_secs_f64() * 1e3;
    Ok(
        json!({"id_slot": id, "filename": name, "n_saved": n_saved, "n_written": n_written, "timings": {"save_ms": save_ms}}),
    )
}

fn restore(engine: &Engine, id: u32, name: &str, path: &FilePath) -> Result<Value, ApiError> {
    let started = Instant::now();
    let n_read = std::fs::metadata(path).map(|metadata| metadata.len()).unwrap_or(0);
    let n_restored = engine.restore_slot(id, path).map_err(|error| match error {
        // The client named the file.
        EngineError::Restore(reason) => ApiError::field("filename", reason),
        error => error.into(),
    })?;
    let restore_ms = started.elapsed().as_secs_f64() * 1e3;
    Ok(
        json!({"id_slot": id, "filename": name, "n_restored": n_restored, "n_read": n_read, "timings": {"restore_ms": restore_ms}}),
    )
}
