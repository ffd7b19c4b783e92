//! The generation fields that chat and text completions share.

use serde_json::Value;

use crate::{
    engine::{EngineError, GenerateOptions, Grammar, Sampling},
    llama::Token,
    server::{
        error::ApiError,
        fields::{Fields, integer, wrong},
        state::Backend,
    },
};

/// What a request says about its generation and about the form of the reply.
#[derive(Debug)]
pub struct Params {
    /// Server-sent events instead of one body.
    pub stream: bool,
    /// One more chunk, with the usage.
    pub include_usage: bool,
    /// Everything for the engine but the biases of `bias`.
    options: GenerateOptions,
    /// Biases in the order of the request.
    bias: Vec<(BiasKey, f32)>,
}

/// What a bias is for.
#[derive(Clone, Debug, PartialEq)]
enum BiasKey {
    /// This id, which the vocabulary may not have.
    Id(i64),
    /// Each token of this text.
    Text(String),
}

impl Params {
    /// Reads the fields; those that are missing are as in `defaults`.
    ///
    /// # Errors
    /// A field of the wrong type, or a value outside a hard range. Soft ranges are clamped.
    pub fn read(fields: &Fields, defaults: &GenerateOptions) -> Result<Self, ApiError> {
        let stream_options = fields.object("stream_options")?;
        let include_usage = stream_options.map(|options| options.bool("include_usage")).transpose()?.flatten();
        let options = GenerateOptions {
            max_tokens: max_tokens(fields, defaults.max_tokens)?,
            stop: stop(fields)?.unwrap_or_else(|| defaults.stop.clone()),
            sampling: sampling(fields, &defaults.sampling)?,
            ignore_eos: fields.bool("ignore_eos")?.unwrap_or(defaults.ignore_eos),
            preserved_tokens: defaults.preserved_tokens.clone(),
            top_logprobs: None,
            two_pieces: !fields.bool("stream")?.unwrap_or(false),
            reuse_prefix: fields.bool("cache_prompt")?.unwrap_or(defaults.reuse_prefix),
        };
        // Read for its type only: one model is served, and replies carry that one's id.
        fields.string("model")?;
        Ok(Self {
            stream: fields.bool("stream")?.unwrap_or(false),
            include_usage: include_usage.unwrap_or(false),
            options,
            bias: logit_bias(fields)?,
        })
    }

    /// The options for the engine. Tokenizes, so not for an async thread.
    pub fn into_options(self, backend: &Backend) -> Result<GenerateOptions, EngineError> {
        let mut options = self.options;
        let bias = &mut options.sampling.logit_bias;
        for (key, value) in self.bias {
            match key {
                BiasKey::Id(id) => {
                    // Ids of another model's vocabulary are harmless, as with llama-server.
                    if (0..i64::from(backend.info().n_vocab)).contains(&id) {
                        bias.push((Token(id as i32), value));
                    }
                }
                BiasKey::Text(text) => {
                    bias.extend(backend.tokenize(&text, false, false)?.into_iter().map(|token| (token, value)));
                }
            }
        }
        Ok(options)
    }
}

/// `n_predict`, then `max_completion_tokens`, then `max_tokens`. All are read, so that a bad one is not hidden by a
/// stronger one.
fn max_tokens(fields: &Fields, default: Option<u32>) -> Result<Option<u32>, ApiError> {
    let mut strongest = None;
    for name in ["max_tokens", "max_completion_tokens", "n_predict"] {
        strongest = match fields.integer(name)? {
            None => strongest,
            Some(n) if n < -1 => return Err(ApiError::field(fields.path(name), "must be at least -1")),
            Some(-1) => Some(None),
            Some(n) => Some(Some(u32::try_from(n).unwrap_or(u32::MAX))),
        };
    }
    Ok(strongest.unwrap_or(default))
}

fn stop(fields: &Fields) -> Result<Option<Vec<String>>, ApiError> {
    let texts = match fields.get("stop") {
        None => return Ok(None),
        Some(Value::String(text)) => vec![text.clone()],
        Some(Value::Array(items)) => items
            .iter()
            .enumerate()
            .map(|(idx, item)| match item {
                Value::String(text) => Ok(text.clone()),
                other => Err(wrong(format!("{}[{idx}]", fields.path("stop")), "a string", other)),
            })
            .collect::<Result<_, _>>()?,
        Some(other) => return Err(wrong(fields.path("stop"), "a string or an array of strings", other)),
    };
    // An empty one would stop before the first character.
    Ok(Some(texts.into_iter().filter(|text| !text.is_empty()).collect()))
}

fn sampling(fields: &Fields, defaults: &Sampling) -> Result<Sampling, ApiError> {
    let number = |name, default| Ok::<f32, ApiError>(fields.number(name)?.unwrap_or(default));
    let share = |name, default| Ok::<f32, ApiError>(number(name, default)?.clamp(0.0, 1.0));
    Ok(Sampling {
        temperature: number("temperature", defaults.temperature)?.max(0.0),
        top_k: match fields.integer("top_k")? {
            Some(k) => u32::try_from(k.max(0)).unwrap_or(u32::MAX),
            None => defaults.top_k,
        },
        top_p: share("top_p", defaults.top_p)?,
        min_p: share("min_p", defaults.min_p)?,
        typical_p: share("typical_p", defaults.typical_p)?,
        repeat_penalty: match number("repeat_penalty", defaults.repeat_penalty)? {
            penalty if penalty > 0.0 => penalty,
            _ => return Err(ApiError::field(fields.path("repeat_penalty"), "must be greater than 0")),
        },
        repeat_last_n: match fields.integer("repeat_last_n")? {
            Some(n) if n < 0 => return Err(ApiError::field(fields.path("repeat_last_n"), "must not be negative")),
            Some(n) => u32::try_from(n).unwrap_or(u32::MAX),
            None => defaults.repeat_last_n,
        },
        presence_penalty: number("presence_penalty", defaults.presence_penalty)?,
        frequency_penalty: number("frequency_penalty", defaults.frequency_penalty)?,
        seed: match fields.integer("seed")? {
            Some(seed) => self::seed(seed),
            None => defaults.seed,
        },
        logit_bias: defaults.logit_bias.clone(),
        grammar: match fields.string("grammar")? {
            Some("") => None,
            Some(gbnf) => Some(Grammar { gbnf: gbnf.to_owned(), ..Grammar::default() }),
            None => defaults.grammar.clone(),
        },
    })
}

/// llama.cpp's seeds have 32 bits and the highest means "draw one"; OpenAI's have 64, of which the low half counts.
fn seed(seed: i64) -> Option<u32> {
    Some(seed as u32).filter(|seed| *seed != u32::MAX)
}

/// `{"id or text": bias}` or `[[id or text, bias]]`.
fn logit_bias(fields: &Fields) -> Result<Vec<(BiasKey, f32)>, ApiError> {
    let path = fields.path("logit_bias");
    match fields.get("logit_bias") {
        None => Ok(Vec::new()),
        Some(Value::Object(entries)) => entries
            .iter()
            .map(|(key, value)| {
                let bias = bias(format!("{path}.{key}"), value)?;
                Ok((key.parse().map_or_else(|_| BiasKey::Text(key.clone()), BiasKey::Id), bias))
            })
            .collect(),
        Some(Value::Array(entries)) => {
            entries.iter().enumerate().map(|(idx, entry)| bias_pair(format!("{path}[{idx}]"), entry)).collect()
        }
        Some(other) => Err(wrong(path, "an object or an array of pairs", other)),
    }
}

fn bias_pair(path: String, entry: &Value) -> Result<(BiasKey, f32), ApiError> {
    let Some([key, value]) = entry.as_array().map(Vec::as_slice) else {
        return Err(ApiError::field(path, "expected a pair [token id or text, bias]"));
    };
    let bias = bias(format!("{path}[1]"), value)?;
    match (key, integer(key)) {
        (_, Some(id)) => Ok((BiasKey::Id(id), bias)),
        (Value::String(text), _) => Ok((BiasKey::Text(text.clone()), bias)),
        (other, _) => Err(wrong(format!("{path}[0]"), "a token id or a string", other)),
    }
}

fn bias(path: String, value: &Value) -> Result<f32, ApiError> {
    match value {
        Value::Bool(false) => Ok(f32::NEG_INFINITY),
        // Positive infinity would turn probabilities into NaN.
        Value::Number(number) => Ok((number.as_f64().unwrap_or(0.0) as f32).clamp(f32::MIN, f32::MAX)),
        other => Err(wrong(path, "a number or false", other)),
    }
}

#[cfg(test)]
mod tests;
