//! The generation fields that chat and text completions share.

use std::time::Duration;

use serde_json::Value;

use crate::{
    engine::{GenerateOptions, Grammar, Sampling},
    llama::Token,
    server::{
        chat,
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
    /// Answers to the one prompt.
    pub n: usize,
    /// A stream tells how far its prompt is.
    return_progress: bool,
    /// A stream that is silent for so long gives a sign; `None` as the server is set.
    keep_alive: Option<Duration>,
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
            slot: match fields.integer("id_slot")? {
                None | Some(-1) => None,
                Some(slot) => Some(u32::try_from(slot).map_err(|_| ApiError::field("id_slot", "must be at least -1"))?),
            },
            two_pieces: false,
            report_progress: false,
            reuse_restored: false,
            reuse_prefix: fields.bool("cache_prompt")?.unwrap_or(defaults.reuse_prefix),
        };
        let return_progress = fields.bool("return_progress")?.unwrap_or(false);
        let n = count(fields, "n")?.or(count(fields, "n_cmpl")?).unwrap_or(1);
        // Timings come with the last chunk in any case.
        fields.bool("timings_per_token")?;
        read_without_effect(fields)?;
        // Read for its type only: one model is served, and replies carry that one's id.
        fields.string("model")?;
        let mut params = Self {
            stream: fields.bool("stream")?.unwrap_or(false),
            include_usage: include_usage.unwrap_or(false),
            n,
            return_progress,
            keep_alive: keep_alive(fields)?,
            options,
            bias: logit_bias(fields)?,
        };
        // llama-server's name; 0 asks for nothing.
        if let Some(n) = fields.integer("n_probs")?.filter(|n| *n != 0) {
            params.set_top_logprobs("n_probs", n)?;
        }
        Ok(params)
    }

    /// How long a stream may be silent.
    pub fn keep_alive(&self, default: Duration) -> Duration {
        self.keep_alive.unwrap_or(default)
    }

    /// Whether the request brings a grammar.
    pub fn has_grammar(&self) -> bool {
        self.options.sampling.grammar.is_some()
    }

    /// How many alternatives come with each token's log-probability; `None` when neither was asked for.
    pub fn top_logprobs(&self) -> Option<usize> {
        self.options.top_logprobs
    }

    /// Asks for log-probabilities where an endpoint has its own field for them.
    ///
    /// # Errors
    /// More of them than anybody reads: a reply grows by each for each token.
    pub fn set_top_logprobs(&mut self, field: &str, n: i64) -> Result<(), ApiError> {
        match usize::try_from(n) {
            Err(_) => Err(ApiError::field(field, "must not be negative")),
            Ok(n) if n > MAX_LOGPROBS => Err(ApiError::field(field, format_args!("must be at most {MAX_LOGPROBS}"))),
            Ok(n) => {
                self.options.top_logprobs = Some(n);
                Ok(())
            }
        }
    }

    /// Reads `json_schema`, and `response_format` which some clients send for text too: the whole text follows it.
    pub fn read_schema(&mut self, fields: &Fields) -> Result<(), ApiError> {
        let Some(schema) = chat::read_format(fields)? else { return Ok(()) };
        if self.has_grammar() {
            return Err(ApiError::field(
                "grammar",
                "cannot be used together with a JSON schema; leave out one of them",
            ));
        }
        self.options.sampling.grammar = Some(chat::schema_grammar(&schema, "json_schema")?);
        Ok(())
    }

    /// Most tokens to generate; `None` without a limit.
    pub fn max_tokens(&self) -> Option<u32> {
        self.options.max_tokens
    }

    /// How tokens are chosen.
    pub fn sampling(&self) -> &Sampling {
        &self.options.sampling
    }

    /// The options for the engine. Tokenizes, so not for an async thread.
    pub fn into_options(self, backend: &Backend) -> Result<GenerateOptions, ApiError> {
        let n_slots = backend.info().n_slots;
        if let Some(slot) = self.options.slot.filter(|slot| *slot >= n_slots) {
            return Err(ApiError::field("id_slot", format_args!("there is no slot {slot}; there are {n_slots}")));
        }
        let mut options = self.options;
        // Nobody looks at a whole reply before its end.
        options.two_pieces = !self.stream;
        options.report_progress = self.stream && self.return_progress;
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

/// Of these only the type is looked at: they say how to do what is not done here (`later` refuses that), or what is never done,
/// shifting a full context.
fn read_without_effect(fields: &Fields) -> Result<(), ApiError> {
    for name in ["n_keep", "n_discard", "n_cache_reuse"] {
        fields.integer(name)?;
    }
    for name in ["dry_base", "xtc_threshold", "dynatemp_exponent", "mirostat_tau", "mirostat_eta", "adaptive_decay"] {
        fields.number(name)?;
    }
    Ok(())
}

/// llama-server's `sse_ping_interval`, in seconds; -1 is never.
fn keep_alive(fields: &Fields) -> Result<Option<Duration>, ApiError> {
    const NEVER: Duration = Duration::from_secs(365 * 24 * 60 * 60);
    match fields.integer("sse_ping_interval")? {
        None => Ok(None),
        Some(-1) => Ok(Some(NEVER)),
        Some(seconds @ 1..) => Ok(Some(Duration::from_secs(seconds.unsigned_abs()).min(NEVER))),
        Some(_) => Err(ApiError::field("sse_ping_interval", "expected a number of seconds above 0, or -1 for never")),
    }
}

/// Most alternatives to a token.
const MAX_LOGPROBS: usize = 100;

/// Most answers to one prompt, as with OpenAI.
const MAX_N: i64 = 128;

fn count(fields: &Fields, name: &str) -> Result<Option<usize>, ApiError> {
    match fields.integer(name)? {
        None => Ok(None),
        Some(n) if (1..=MAX_N).contains(&n) => Ok(usize::try_from(n).ok()),
        Some(_) => Err(ApiError::field(fields.path(name), format_args!("must be from 1 to {MAX_N}"))),
    }
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
