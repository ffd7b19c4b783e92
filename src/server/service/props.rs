//! `GET /props`: the settings of the server and facts about its model.

use axum::extract::State;
use serde::Serialize;
use serde_json::Value;

use super::params::Params;
use crate::{
    llama::Token,
    server::{
        error::ApiError,
        extract::ApiJson,
        state::{AppState, Backend},
    },
};

#[derive(Serialize)]
pub struct Props {
    default_generation_settings: Defaults,
    total_slots: u32,
    model_alias: String,
    model_path: String,
    model_ftype: String,
    modalities: Modalities,
    endpoint_slots: bool,
    endpoint_props: bool,
    endpoint_metrics: bool,
    ui: bool,
    /// "" for a model that has none.
    chat_template: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    chat_template_tool_use: Option<String>,
    chat_template_caps: Value,
    bos_token: String,
    eos_token: String,
    build_info: String,
    is_sleeping: bool,
}

#[derive(Serialize)]
struct Defaults {
    params: Params,
    /// Of one slot.
    n_ctx: u32,
}

#[derive(Serialize, Default)]
struct Modalities {
    vision: bool,
    audio: bool,
    video: bool,
}

/// Everything.
pub async fn show(State(state): State<AppState>) -> Result<ApiJson<Props>, ApiError> {
    let (backend, config) = (state.backend()?, state.config());
    let info = backend.info();
    let template = backend.template_info();
    let text = |value: &Value| value.as_str().map(str::to_owned);
    Ok(ApiJson(Props {
        default_generation_settings: Defaults { params: Params::new(&config.defaults), n_ctx: info.n_ctx },
        total_slots: info.n_slots,
        model_alias: state.model_id()?.to_string(),
        model_path: info.path.display().to_string(),
        model_ftype: info.file_type.clone(),
        modalities: Modalities::default(),
        endpoint_slots: config.slots,
        endpoint_props: false,
        endpoint_metrics: config.metrics,
        ui: config.page,
        chat_template: text(&template["source"]).unwrap_or_default(),
        chat_template_tool_use: text(&template["tool_use_source"]),
        chat_template_caps: template["caps"].clone(),
        bos_token: shown(backend, backend.bos()),
        eos_token: shown(backend, backend.eos()),
        build_info: config.fingerprint.clone(),
        is_sleeping: false,
    }))
}

fn shown(backend: &Backend, token: Option<Token>) -> String {
    token.map(|token| backend.detokenize(&[token])).unwrap_or_default()
}

/// Settings stay as they were at the start.
pub async fn change() -> ApiError {
    ApiError::not_supported(
        "the settings of this server cannot be changed while it runs: give them as flags, or with a request",
    )
}
