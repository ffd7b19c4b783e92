//! A tiny model of every memory kind, engines on them, and greedy answers as ids.

use std::path::{Path, PathBuf};

use onebit::engine::{
    CacheType, Engine, EngineConfig, EngineError, Event, FlashAttention, GenerateOptions, Generation,
};
use onebit::llama::Token;
use onebit::testing::TinyModel;

use super::model;

/// Tokens in one pass over the graph: few, so that short prompts have edges too.
pub const N_UBATCH: u32 = 64;

/// A model, by the memory that it keeps of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Attention,
    SlidingWindow,
    Recurrent,
    Hybrid,
    HybridWindow,
    MRope,
}

impl Kind {
    pub const ALL: [Self; 6] =
        [Self::Attention, Self::SlidingWindow, Self::Recurrent, Self::Hybrid, Self::HybridWindow, Self::MRope];

    pub fn tiny(self) -> TinyModel {
        match self {
            // One head of 64, which a quantized cache is rotated for.
            Self::Attention => TinyModel::llama().with_heads(1, 1),
            Self::SlidingWindow => TinyModel::gemma3(),
            Self::Recurrent => TinyModel::mamba(),
            Self::Hybrid => TinyModel::hybrid(),
            Self::HybridWindow => TinyModel::hybrid_window(),
            Self::MRope => TinyModel::mrope(),
        }
    }

    pub fn model(self) -> PathBuf {
        model::write(&format!("tiny-{self:?}.gguf"), &self.tiny())
    }

    /// Ids that the file holds for a prompt of `n`.
    pub fn n_states(self, n: usize) -> usize {
        match self {
            Self::Attention | Self::SlidingWindow | Self::MRope => n,
            Self::Recurrent | Self::Hybrid | Self::HybridWindow => n - 1,
        }
    }

    /// A cache that is not attention's has no type to choose.
    pub fn has_attention(self) -> bool {
        self != Self::Recurrent
    }
}

/// Settings of an engine on one thread, with small batches.
pub fn config(model: &Path, cache: CacheType, n_seq: u32) -> EngineConfig {
    EngineConfig {
        n_ctx: Some(512),
        n_seq,
        n_batch: 2 * N_UBATCH,
        n_ubatch: N_UBATCH,
        n_threads: Some(1),
        cache_type_k: cache,
        cache_type_v: cache,
        flash_attention: FlashAttention::On,
        ..EngineConfig::new(model)
    }
}

pub fn engine(model: &Path, cache: CacheType, n_seq: u32) -> Engine {
    Engine::load(config(model, cache, n_seq)).unwrap()
}

/// `n` ids of the tiny models' bytes; another `salt` gives others from the first on.
pub fn prompt(n: usize, salt: u32) -> Vec<Token> {
    let byte = |i: usize| {
        (i as u32).wrapping_mul(2_654_435_761).wrapping_add(salt.wrapping_mul(0x5bd1_e995)).rotate_left(9) as u8
    };
    (0..n).map(|i| model::byte_token(byte(i + 1))).collect()
}

pub fn greedy(n: u32) -> GenerateOptions {
    GenerateOptions { ignore_eos: true, ..GenerateOptions::greedy(n) }
}

/// What a generation chose, and how many tokens of the prompt it evaluated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub ids: Vec<i32>,
    pub n_evaluated: usize,
}

impl Answer {
    /// Reads to the end. An error is the first event or none at all.
    pub fn read(generation: Generation) -> Result<Self, EngineError> {
        let mut answer = None;
        for (index, event) in generation.enumerate() {
            match (event, &mut answer) {
                (Err(error), _) => {
                    assert_eq!(index, 0, "an error after the first event: {error}");
                    return Err(error);
                }
                (Ok(Event::Prompt(prompt)), None) => {
                    answer = Some(Self { ids: Vec::new(), n_evaluated: prompt.n_prompt - prompt.n_cached });
                }
                (Ok(Event::Piece(piece)), Some(answer)) => answer.ids.extend(piece.tokens.iter().map(|token| token.0)),
                (Ok(Event::Done(_)), Some(_)) => {}
                (Ok(event), _) => panic!("{event:?} out of turn"),
            }
        }
        Ok(answer.expect("events"))
    }
}

/// The answer to a prompt that is evaluated here.
pub fn whole(engine: &Engine, prompt: &[Token], n: u32) -> Answer {
    Answer::read(engine.generate(prompt, &greedy(n)).unwrap()).unwrap()
}

/// The answer to a prompt whose state is in a file.
pub fn restored(engine: &Engine, file: &Path, prompt: &[Token], n: u32) -> Result<Answer, EngineError> {
    Answer::read(engine.restore_and_generate(file, prompt, &greedy(n)).unwrap())
}
