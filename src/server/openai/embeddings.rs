//! `POST /v1/embeddings`, and llama-server's own form of it.

use axum::extract::State;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::Serialize;
use serde_json::{Value, json};

use super::prompt::{self, Prompt};
use crate::{
    engine::{EmbeddingKind, Engine, EngineError},
    server::{
        error::ApiError,
        extract::{ApiJson, Object},
        fields::Fields,
        state::{AppState, blocking},
    },
};

#[derive(Serialize)]
struct Usage {
    prompt_tokens: usize,
    total_tokens: usize,
}

/// OpenAI's form: one vector for each input.
pub async fn create(State(state): State<AppState>, ApiJson(body): ApiJson<Object>) -> Result<ApiJson<Value>, ApiError> {
    let request = Request::read(&Fields::root(&body), &state)?;
    if request.kind == EmbeddingKind::Tokens {
        let problem = "the server was started with --pooling none, which gives a vector for each token: use /embeddings, \
                       or start it with --pooling mean, cls or last";
        return Err(ApiError::invalid(problem));
    }
    let model = body.get("model").cloned().filter(|model| model.is_string());
    let model = model.unwrap_or_else(|| json!(state.model_id().map(ToString::to_string).unwrap_or_default()));
    let (as_base64, norm, dimensions) = (request.as_base64, request.norm, request.dimensions);
    let texts = embed_all(&state, request).await?;
    let n_tokens = texts.iter().map(|text| text.n_tokens).sum();
    let entry = |(index, text): (usize, Text)| {
        let mut vector = text.vectors.into_iter().next().unwrap_or_default();
        normalize(&mut vector, norm);
        if let Some(dimensions) = dimensions {
            // A vector that is cut has another length.
            vector.truncate(dimensions);
            normalize(&mut vector, norm);
        }
        let embedding = if as_base64 { json!(base64(&vector)) } else { json!(vector) };
        json!({"object": "embedding", "index": index, "embedding": embedding})
    };
    let data: Vec<Value> = texts.into_iter().enumerate().map(entry).collect();
    let usage = Usage { prompt_tokens: n_tokens, total_tokens: n_tokens };
    Ok(ApiJson(json!({"object": "list", "model": model, "data": data, "usage": usage})))
}

/// llama-server's form: a list of vectors for each input, one of them when they are pooled.
pub async fn native(State(state): State<AppState>, ApiJson(body): ApiJson<Object>) -> Result<ApiJson<Value>, ApiError> {
    let request = Request::read(&Fields::root(&body), &state)?;
    // Vectors of single tokens are as the model gave them.
    let norm = if request.kind == EmbeddingKind::Tokens { -1 } else { request.norm };
    let texts = embed_all(&state, request).await?;
    let entry = |(index, mut text): (usize, Text)| {
        text.vectors.iter_mut().for_each(|vector| normalize(vector, norm));
        json!({"index": index, "embedding": text.vectors})
    };
    Ok(ApiJson(Value::Array(texts.into_iter().enumerate().map(entry).collect())))
}

struct Request {
    engine: Engine,
    kind: EmbeddingKind,
    inputs: Vec<Prompt>,
    /// The field that the inputs came in.
    name: &'static str,
    as_base64: bool,
    /// llama-server's `embd_normalize`.
    norm: i64,
    dimensions: Option<usize>,
}

impl Request {
    fn read(fields: &Fields, state: &AppState) -> Result<Self, ApiError> {
        let backend = state.backend()?;
        let (Some(engine), Some(kind)) = (backend.engine().cloned(), backend.info().embeddings) else {
            return Err(ApiError::not_supported(
                "this server does not compute embeddings: start it with --embeddings (and an embedding model)",
            ));
        };
        let name = if fields.get("input").is_none() && fields.get("content").is_some() { "content" } else { "input" };
        let inputs = prompt::read_all(fields, name, backend.info().n_vocab)?;
        if inputs.iter().any(Prompt::is_empty) {
            return Err(ApiError::field(name, "is empty"));
        }
        let as_base64 = match fields.string("encoding_format")? {
            None | Some("float") => false,
            Some("base64") => true,
            Some(other) => {
                let problem = format_args!("unknown value {other:?}; known are \"float\" and \"base64\"");
                return Err(ApiError::field("encoding_format", problem));
            }
        };
        let dimensions = match fields.integer("dimensions")? {
            Some(n) if n < 1 => return Err(ApiError::field("dimensions", "must be at least 1")),
            n => n.and_then(|n| usize::try_from(n).ok()),
        };
        let norm = fields.integer("embd_normalize")?.unwrap_or(2);
        Ok(Self { engine, kind, inputs, name, as_base64, norm, dimensions })
    }
}

struct Text {
    vectors: Vec<Vec<f32>>,
    n_tokens: usize,
}

async fn embed_all(state: &AppState, request: Request) -> Result<Vec<Text>, ApiError> {
    let backend = state.backend()?.clone();
    blocking(move || {
        let embed = |(index, input): (usize, &Prompt)| {
            let tokens = input.tokens(&backend, true)?;
            let embedding = request.engine.embed(tokens).map_err(|error| match error {
                EngineError::InvalidOption { option: "input", reason } => {
                    ApiError::field(format!("{}[{index}]", request.name), reason)
                }
                error => error.into(),
            })?;
            Ok(Text { vectors: embedding.vectors, n_tokens: embedding.n_tokens })
        };
        request.inputs.iter().enumerate().map(embed).collect()
    })
    .await
}

/// -1 leaves the vector, 0 makes the largest value that of an int16, p above 0 makes the p-norm 1.
fn normalize(vector: &mut [f32], norm: i64) {
    let values = vector.iter().map(|value| f64::from(value.abs()));
    let length = match norm {
        ..0 => return,
        0 => values.fold(0.0, f64::max) / 32760.0,
        1 => values.sum(),
        2 => values.map(|value| value * value).sum::<f64>().sqrt(),
        p => values.map(|value| value.powf(p as f64)).sum::<f64>().powf(1.0 / p as f64),
    };
    if length > 0.0 {
        vector.iter_mut().for_each(|value| *value = (f64::from(*value) / length) as f32);
    }
}

/// Little-endian, as OpenAI's clients read it.
fn base64(vector: &[f32]) -> String {
    STANDARD.encode(vector.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn norms() {
        for (norm, expected) in
            [(-1, [3.0, -4.0]), (0, [24570.0, -32760.0]), (1, [3.0 / 7.0, -4.0 / 7.0]), (2, [0.6, -0.8])]
        {
            let mut vector = [3.0, -4.0];
            normalize(&mut vector, norm);
            assert_eq!(vector, expected, "{norm}");
        }
        let mut zeros = [0.0; 2];
        normalize(&mut zeros, 2);
        assert_eq!(zeros, [0.0; 2]);
    }

    #[test]
    fn base64_is_little_endian() {
        assert_eq!(base64(&[1.0]), "AACAPw==");
    }
}
