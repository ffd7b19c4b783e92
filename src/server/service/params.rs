//! Generation settings as llama-server shows them.

use serde::Serialize;

use crate::engine::GenerateOptions;

/// `max_tokens` and `n_predict` are one setting; -1 means until the model ends.
#[derive(Serialize)]
pub struct Params {
    seed: u32,
    temperature: f32,
    top_k: u32,
    top_p: f32,
    min_p: f32,
    typical_p: f32,
    repeat_last_n: u32,
    repeat_penalty: f32,
    presence_penalty: f32,
    frequency_penalty: f32,
    max_tokens: i64,
    n_predict: i64,
    ignore_eos: bool,
    stop: Vec<String>,
    n_probs: usize,
    samplers: [&'static str; 6],
    lora: [(); 0],
}

impl Params {
    pub fn new(options: &GenerateOptions) -> Self {
        let sampling = &options.sampling;
        let max_tokens = options.max_tokens.map_or(-1, i64::from);
        Self {
            seed: sampling.seed.unwrap_or(u32::MAX),
            temperature: sampling.temperature,
            top_k: sampling.top_k,
            top_p: sampling.top_p,
            min_p: sampling.min_p,
            typical_p: sampling.typical_p,
            repeat_last_n: sampling.repeat_last_n,
            repeat_penalty: sampling.repeat_penalty,
            presence_penalty: sampling.presence_penalty,
            frequency_penalty: sampling.frequency_penalty,
            max_tokens,
            n_predict: max_tokens,
            ignore_eos: options.ignore_eos,
            stop: options.stop.clone(),
            n_probs: options.top_logprobs.unwrap_or(0),
            samplers: ["penalties", "top_k", "typ_p", "top_p", "min_p", "temperature"],
            lora: [],
        }
    }
}
