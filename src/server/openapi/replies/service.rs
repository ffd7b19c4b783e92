//! Models, settings, slots, tokens.

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

#[derive(Serialize, ToSchema)]
pub struct Health {
    /// `ok`
    status: String,
}

#[derive(Serialize, ToSchema)]
pub struct ModelList {
    /// `list`
    object: String,
    data: Vec<Model>,
    /// The same in the form that Ollama's clients look for.
    #[schema(value_type = Vec<Object>)]
    models: Vec<Value>,
}

#[derive(Serialize, ToSchema)]
pub struct Model {
    id: String,
    /// `model`
    object: String,
    created: u64,
    owned_by: String,
    aliases: Vec<String>,
    tags: Vec<String>,
    architecture: ModelArchitecture,
    meta: ModelMeta,
}

#[derive(Serialize, ToSchema)]
pub struct ModelArchitecture {
    input_modalities: Vec<String>,
    output_modalities: Vec<String>,
}

#[derive(Serialize, ToSchema)]
pub struct ModelMeta {
    vocab_type: u32,
    n_vocab: u32,
    n_ctx: u32,
    n_ctx_train: u32,
    n_embd: u32,
    n_params: u64,
    size: u64,
    ftype: String,
}

#[derive(Serialize, ToSchema)]
pub struct Props {
    default_generation_settings: DefaultSettings,
    total_slots: u32,
    model_alias: String,
    model_path: String,
    model_ftype: String,
    modalities: Modalities,
    endpoint_slots: bool,
    endpoint_props: bool,
    endpoint_metrics: bool,
    ui: bool,
    chat_template: String,
    chat_template_tool_use: Option<String>,
    #[schema(value_type = Option<Object>)]
    chat_template_caps: Option<Value>,
    bos_token: String,
    eos_token: String,
    build_info: String,
    is_sleeping: bool,
}

#[derive(Serialize, ToSchema)]
pub struct DefaultSettings {
    params: Settings,
    n_ctx: u32,
}

/// How a text is generated.
#[derive(Serialize, ToSchema)]
pub struct Settings {
    seed: u32,
    temperature: f64,
    top_k: u32,
    top_p: f64,
    min_p: f64,
    typical_p: f64,
    repeat_last_n: u32,
    repeat_penalty: f64,
    presence_penalty: f64,
    frequency_penalty: f64,
    max_tokens: i64,
    n_predict: i64,
    ignore_eos: bool,
    stop: Vec<String>,
    n_probs: u64,
    samplers: Vec<String>,
    #[schema(value_type = Vec<Object>)]
    lora: Vec<Value>,
}

#[derive(Serialize, ToSchema)]
pub struct Modalities {
    vision: bool,
    audio: bool,
    video: bool,
}

#[derive(Serialize, ToSchema)]
pub struct Slots(Vec<Slot>);

/// The numbers are those of the task, or of the last one.
#[derive(Serialize, ToSchema)]
pub struct Slot {
    id: u64,
    n_ctx: u32,
    speculative: bool,
    is_processing: bool,
    id_task: Option<u64>,
    n_prompt_tokens: Option<u64>,
    n_prompt_tokens_processed: Option<u64>,
    n_prompt_tokens_cache: Option<u64>,
    params: Option<Settings>,
    next_token: Option<Vec<NextToken>>,
}

#[derive(Serialize, ToSchema)]
pub struct NextToken {
    has_next_token: bool,
    has_new_line: bool,
    n_remain: i64,
    n_decoded: u64,
}

#[derive(Serialize, ToSchema)]
pub struct SlotReply {
    id_slot: u32,
    filename: Option<String>,
    n_saved: Option<u64>,
    n_written: Option<u64>,
    n_restored: Option<u64>,
    n_read: Option<u64>,
    n_erased: Option<u64>,
    timings: Option<SlotTimings>,
}

#[derive(Serialize, ToSchema)]
pub struct SlotTimings {
    save_ms: Option<f64>,
    restore_ms: Option<f64>,
}

#[derive(Serialize, ToSchema)]
pub struct Tokens {
    tokens: Vec<TokenOrPiece>,
}

/// An id, or with `with_pieces` an id and what it stands for: text, or the bytes of a part of a character.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub enum TokenOrPiece {
    Id(i32),
    Piece(TokenPiece),
}

#[derive(Serialize, ToSchema)]
pub struct TokenPiece {
    id: i32,
    piece: Piece,
}

#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub enum Piece {
    Text(String),
    Bytes(Vec<u8>),
}

#[derive(Serialize, ToSchema)]
pub struct Text {
    content: String,
}

#[derive(Serialize, ToSchema)]
pub struct Prompt {
    prompt: String,
}

#[derive(Serialize, ToSchema)]
pub struct Adapters(Vec<Value>);

#[derive(Serialize, ToSchema)]
pub struct Document {
    openapi: String,
    #[schema(value_type = Object)]
    info: Value,
    #[schema(value_type = Object)]
    paths: Value,
    #[schema(value_type = Object)]
    components: Value,
    #[schema(value_type = Vec<Object>)]
    security: Vec<Value>,
}
