//! Tiny random models, written by llama.cpp's own GGUF writer: real models for tests, without a download.
//!
//! One architecture for each kind of memory that a state file can come from. They share a byte vocabulary, so that text
//! and ids can be turned into each other without a model.

mod architecture;
mod tensors;
mod vocabulary;

use std::path::Path;

use crate::llama::Error;
use crate::llama::gguf::Writer;

use tensors::Tensors;
use vocabulary::N_VOCAB;

/// A random model with a byte vocabulary (SPM with byte fallback: `<unk>`, `<s>`, `</s>`, then the 256 bytes), well under
/// 1 MB. The same fields give the same file.
#[derive(Clone, Debug)]
pub struct TinyModel {
    /// What it is; decides metadata and tensors.
    pub architecture: Architecture,
    /// Seed of the weights.
    pub seed: u64,
    /// Context length that the metadata tells.
    pub n_ctx: u32,
    /// Number of layers.
    pub n_layer: usize,
    /// Width of an embedding.
    pub n_embd: usize,
    /// Attention heads; they share the width of the embedding.
    pub n_head: usize,
    /// Heads of K and V.
    pub n_head_kv: usize,
    /// Window of sliding-window attention, where the architecture has it.
    pub n_swa: u32,
    /// The chat template, if any.
    pub chat_template: Option<String>,
    /// Whether the vocabulary has tokens for filling in the middle.
    pub has_fim: bool,
}

/// An architecture of llama.cpp, and the memory it keeps of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// Plain attention.
    Llama,
    /// Attention: five layers with a sliding window, then one that sees everything.
    Gemma3,
    /// A recurrent state.
    Mamba,
    /// Mamba layers with an attention layer among them.
    Jamba,
    /// Short convolutions, with attention in a sliding window among them.
    Lfm2,
    /// Attention whose cells hold M-RoPE positions.
    Qwen2Vl,
    /// Attention to all of the text at once, and no memory.
    Bert,
}

/// Renders `<role>: <content>` lines and the beginning of the assistant's.
const CHAT_TEMPLATE: &str = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}\
                             {% if add_generation_prompt %}assistant: {% endif %}";

impl TinyModel {
    /// The model that most tests use: plain attention.
    pub fn llama() -> Self {
        Self {
            architecture: Architecture::Llama,
            seed: 1,
            n_ctx: 2048,
            n_layer: 2,
            n_embd: 64,
            n_head: 4,
            n_head_kv: 2,
            n_swa: 0,
            chat_template: Some(CHAT_TEMPLATE.to_owned()),
            has_fim: false,
        }
    }

    /// [`llama`](Self::llama)'s shape with other weights.
    pub fn with_seed(seed: u64) -> Self {
        Self { seed, ..Self::llama() }
    }

    /// Sliding-window attention with a window of 32 tokens, and one layer of six that sees everything.
    pub fn gemma3() -> Self {
        Self { n_layer: 6, n_swa: 32, ..Self::of(Architecture::Gemma3) }
    }

    /// A recurrent state and nothing else.
    pub fn mamba() -> Self {
        Self { n_layer: 3, n_head: 0, n_head_kv: 0, ..Self::of(Architecture::Mamba) }
    }

    /// Attention beside a recurrent state.
    pub fn hybrid() -> Self {
        Self { n_layer: 3, ..Self::of(Architecture::Jamba) }
    }

    /// Sliding-window attention (window of 32 tokens) beside a recurrent state.
    pub fn hybrid_window() -> Self {
        Self { n_layer: 3, n_swa: 32, ..Self::of(Architecture::Lfm2) }
    }

    /// Attention with M-RoPE positions.
    pub fn mrope() -> Self {
        Self::of(Architecture::Qwen2Vl)
    }

    /// An encoder: it sees the whole text at once, and its mean is what it makes of it.
    pub fn bert() -> Self {
        Self { n_ctx: 128, n_head_kv: 4, chat_template: None, architecture: Architecture::Bert, ..Self::llama() }
    }

    /// Heads of 32 values, which a quantized cache needs: its blocks are that long.
    fn of(architecture: Architecture) -> Self {
        Self { architecture, n_head: 2, n_head_kv: 1, ..Self::llama() }
    }

    /// With another number of layers.
    pub fn with_layers(self, n_layer: usize) -> Self {
        Self { n_layer, ..self }
    }

    /// With another width; a multiple of 32 times the number of heads.
    pub fn with_width(self, n_embd: usize) -> Self {
        Self { n_embd, ..self }
    }

    /// With tokens for filling in the middle: those of the bytes 1 (prefix), 2 (suffix) and 3 (middle).
    pub fn with_fim(self) -> Self {
        Self { has_fim: true, ..self }
    }

    /// With other heads. The width over `n_head` is the size of a head.
    pub fn with_heads(self, n_head: usize, n_head_kv: usize) -> Self {
        Self { n_head, n_head_kv, ..self }
    }

    /// Writes the GGUF file.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let mut gguf = Writer::new()?;
        self.metadata(&mut gguf)?;
        vocabulary::write(&mut gguf)?;
        if self.has_fim {
            vocabulary::write_fim(&mut gguf)?;
        }
        if let Some(template) = &self.chat_template {
            gguf.text("tokenizer.chat_template", template)?;
        }
        let mut tensors = Tensors::new(&mut gguf, self.seed);
        tensors.matrix("token_embd.weight", [self.n_embd, N_VOCAB], self.embedding_deviation())?;
        self.frame(&mut tensors)?;
        for layer in 0..self.n_layer {
            self.layer(&mut tensors, layer)?;
        }
        gguf.write(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::llama::{Model, ModelParams};

    #[test]
    fn all_are_small_and_load() {
        let folder = tempfile::tempdir().unwrap();
        for (model, recurrent, hybrid, n_swa) in [
            (TinyModel::llama(), false, false, 0),
            (TinyModel::gemma3(), false, false, 32),
            (TinyModel::mamba(), true, false, 0),
            (TinyModel::hybrid(), false, true, 0),
            (TinyModel::hybrid_window(), false, true, 32),
            (TinyModel::mrope(), false, false, 0),
            (TinyModel::bert(), false, false, 0),
        ] {
            let path = folder.path().join("tiny.gguf");
            model.write(&path).unwrap();
            let bytes = std::fs::read(&path).unwrap();
            assert!(bytes.len() < 1_000_000, "{:?}: {} bytes", model.architecture, bytes.len());
            let again = folder.path().join("again.gguf");
            model.write(&again).unwrap();
            assert!(std::fs::read(&again).unwrap() == bytes, "{:?}: not the same twice", model.architecture);
            let params = ModelParams { devices: Vec::new(), n_gpu_layers: None, vocab_only: false };
            let loaded = Model::load(&path, &params, &mut |_| true).unwrap();
            assert_eq!(loaded.n_layer() as usize, model.n_layer);
            assert_eq!((loaded.is_recurrent(), loaded.is_hybrid(), loaded.n_swa()), (recurrent, hybrid, n_swa));
        }
    }
}
