//! Metadata and tensors of each architecture, by the names and shapes in llama.cpp's `src/models`.

use crate::llama::Error;
use crate::llama::gguf::Writer;

use super::tensors::Tensors;
use super::vocabulary::N_VOCAB;
use super::{Architecture, TinyModel};

const N_FF: usize = 96;
/// One layer of this many sees everything (gemma3's own pattern).
const SWA_PATTERN: usize = 6;
/// Length of a convolution.
const N_CONV: usize = 4;
/// Values of a running state for each inner channel.
const N_STATE: usize = 16;
/// Rank of the time step.
const N_RANK: usize = 4;

/// What a layer does with the tokens before its own.
enum Mixer {
    Attention,
    Mamba,
    ShortConvolution,
}

impl Architecture {
    /// `general.architecture`.
    fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Gemma3 => "gemma3",
            Self::Mamba => "mamba",
            Self::Jamba => "jamba",
            Self::Lfm2 => "lfm2",
            Self::Qwen2Vl => "qwen2vl",
            Self::Bert => "bert",
        }
    }

    /// Of the hybrid ones every layer but each third remembers in a state.
    fn mixer(self, layer: usize) -> Mixer {
        match self {
            Self::Llama | Self::Gemma3 | Self::Qwen2Vl | Self::Bert => Mixer::Attention,
            Self::Mamba => Mixer::Mamba,
            Self::Jamba | Self::Lfm2 if layer % 3 == 1 => Mixer::Attention,
            Self::Jamba => Mixer::Mamba,
            Self::Lfm2 => Mixer::ShortConvolution,
        }
    }

    fn normalizes_heads(self) -> bool {
        matches!(self, Self::Gemma3 | Self::Lfm2)
    }
}

impl TinyModel {
    fn head_size(&self) -> usize {
        self.n_embd / self.n_head.max(1)
    }

    /// gemma3 multiplies embeddings by the root of their width, and normalizes what layers add to them: smaller ones let the
    /// layers have a say.
    pub(super) fn embedding_deviation(&self) -> f32 {
        if self.architecture == Architecture::Gemma3 { 0.1 } else { 1.0 }
    }

    /// LFM2's files have it under another name.
    pub(super) fn output_norm(&self) -> &'static str {
        if self.architecture == Architecture::Lfm2 { "token_embd_norm.weight" } else { "output_norm.weight" }
    }

    pub(super) fn metadata(&self, gguf: &mut Writer) -> Result<(), Error> {
        let name = self.architecture.name();
        let key = |part: &str| format!("{name}.{part}");
        gguf.text("general.architecture", name)?
            .text("general.name", "tiny random model")?
            .number(&key("context_length"), self.n_ctx)?
            .number(&key("embedding_length"), number(self.n_embd))?
            .number(&key("block_count"), number(self.n_layer))?
            .number(&key("feed_forward_length"), number(N_FF))?
            .number(&key("attention.head_count"), number(self.n_head))?
            .float(&key("attention.layer_norm_rms_epsilon"), 1e-5)?;
        match self.architecture {
            // A layer without heads of K and V is a recurrent one.
            Architecture::Jamba | Architecture::Lfm2 => {
                gguf.integers(&key("attention.head_count_kv"), &self.heads_kv())?
            }
            _ => gguf.number(&key("attention.head_count_kv"), number(self.n_head_kv))?,
        };
        if self.n_head > 0 {
            gguf.number(&key("rope.dimension_count"), number(self.head_size()))?
                .number(&key("attention.key_length"), number(self.head_size()))?
                .number(&key("attention.value_length"), number(self.head_size()))?;
        }
        if self.n_swa > 0 {
            gguf.number(&key("attention.sliding_window"), self.n_swa)?;
        }
        match self.architecture {
            Architecture::Llama => {}
            Architecture::Bert => {
                gguf.float(&key("attention.layer_norm_epsilon"), 1e-5)?
                    .flag(&key("attention.causal"), false)?
                    // The mean.
                    .number(&key("pooling_type"), 1)?
                    .number("tokenizer.ggml.token_type_count", 1)?;
            }
            Architecture::Gemma3 => {
                gguf.number(&key("attention.sliding_window_pattern"), number(SWA_PATTERN))?;
            }
            Architecture::Mamba | Architecture::Jamba => {
                gguf.number(&key("ssm.conv_kernel"), number(N_CONV))?
                    .number(&key("ssm.inner_size"), number(2 * self.n_embd))?
                    .number(&key("ssm.state_size"), number(N_STATE))?
                    .number(&key("ssm.time_step_rank"), number(N_RANK))?;
            }
            Architecture::Lfm2 => {
                gguf.number(&key("shortconv.l_cache"), number(N_CONV))?;
            }
            Architecture::Qwen2Vl => {
                // Pairs of a head that turn with time, height and width.
                let pairs = i32::try_from(self.head_size() / 2).unwrap_or(0);
                gguf.integers(&key("rope.dimension_sections"), &[pairs - 2 * (pairs / 3), pairs / 3, pairs / 3, 0])?;
            }
        }
        Ok(())
    }

    /// Heads of K and V in each layer.
    fn heads_kv(&self) -> Vec<i32> {
        let heads = |layer| match self.architecture.mixer(layer) {
            Mixer::Attention => i32::try_from(self.n_head_kv).unwrap_or(0),
            Mixer::Mamba | Mixer::ShortConvolution => 0,
        };
        (0..self.n_layer).map(heads).collect()
    }

    /// What stands before the first layer of an encoder, and is a norm behind the last one elsewhere.
    pub(super) fn frame(&self, tensors: &mut Tensors<'_>) -> Result<(), Error> {
        if self.architecture != Architecture::Bert {
            tensors.ones(self.output_norm(), self.n_embd)?;
            return tensors.matrix("output.weight", [self.n_embd, N_VOCAB], 0.3);
        }
        tensors.matrix("position_embd.weight", [self.n_embd, self.n_ctx as usize], 0.5)?;
        tensors.ones("token_embd_norm.weight", self.n_embd)?;
        tensors.vector("token_embd_norm.bias", self.n_embd, 0.0, 0.0)
    }

    fn encoder_layer(&self, tensors: &mut Tensors<'_>, layer: usize) -> Result<(), Error> {
        self.attention(tensors, layer)?;
        tensors.matrix(&weight(layer, "ffn_up"), [self.n_embd, N_FF], 0.25)?;
        tensors.matrix(&weight(layer, "ffn_down"), [N_FF, self.n_embd], 0.25)?;
        for part in ["attn_output_norm", "layer_output_norm"] {
            tensors.ones(&weight(layer, part), self.n_embd)?;
            tensors.vector(&format!("blk.{layer}.{part}.bias"), self.n_embd, 0.0, 0.0)?;
        }
        Ok(())
    }

    pub(super) fn layer(&self, tensors: &mut Tensors<'_>, layer: usize) -> Result<(), Error> {
        if self.architecture == Architecture::Bert {
            return self.encoder_layer(tensors, layer);
        }
        tensors.ones(&weight(layer, "attn_norm"), self.n_embd)?;
        // mamba has nothing else in a layer.
        if self.architecture != Architecture::Mamba {
            tensors.ones(&weight(layer, "ffn_norm"), self.n_embd)?;
        }
        if self.architecture == Architecture::Gemma3 {
            tensors.ones(&weight(layer, "post_attention_norm"), self.n_embd)?;
            tensors.ones(&weight(layer, "post_ffw_norm"), self.n_embd)?;
        }
        match self.architecture.mixer(layer) {
            Mixer::Attention => self.attention(tensors, layer)?,
            Mixer::Mamba => self.mamba_block(tensors, layer)?,
            Mixer::ShortConvolution => self.short_convolution(tensors, layer)?,
        }
        if self.architecture == Architecture::Mamba {
            return Ok(());
        }
        for (part, shape) in
            [("ffn_gate", [self.n_embd, N_FF]), ("ffn_up", [self.n_embd, N_FF]), ("ffn_down", [N_FF, self.n_embd])]
        {
            tensors.matrix(&weight(layer, part), shape, 0.25)?;
        }
        Ok(())
    }

    fn attention(&self, tensors: &mut Tensors<'_>, layer: usize) -> Result<(), Error> {
        let (n, n_kv) = (self.n_embd, self.head_size() * self.n_head_kv);
        // Large enough that attention prefers some positions: the answer then depends on the whole prompt.
        for (part, shape) in [("attn_q", [n, n]), ("attn_k", [n, n_kv]), ("attn_v", [n, n_kv]), ("attn_output", [n, n])]
        {
            tensors.matrix(&weight(layer, part), shape, 0.25)?;
        }
        if self.architecture.normalizes_heads() {
            // The same wish: 1 would make all positions about equal.
            tensors.vector(&weight(layer, "attn_q_norm"), self.head_size(), 2.0, 0.1)?;
            tensors.vector(&weight(layer, "attn_k_norm"), self.head_size(), 2.0, 0.1)?;
        }
        Ok(())
    }

    fn mamba_block(&self, tensors: &mut Tensors<'_>, layer: usize) -> Result<(), Error> {
        let (n, n_inner) = (self.n_embd, 2 * self.n_embd);
        tensors.matrix(&weight(layer, "ssm_in"), [n, 2 * n_inner], 0.15)?;
        tensors.matrix(&weight(layer, "ssm_conv1d"), [N_CONV, n_inner], 0.5)?;
        tensors.vector(&format!("blk.{layer}.ssm_conv1d.bias"), n_inner, 0.0, 0.1)?;
        tensors.matrix(&weight(layer, "ssm_x"), [n_inner, N_RANK + 2 * N_STATE], 0.15)?;
        tensors.matrix(&weight(layer, "ssm_dt"), [N_RANK, n_inner], 0.2)?;
        // Small time steps and slow decay: the state remembers the whole prompt.
        tensors.vector(&format!("blk.{layer}.ssm_dt.bias"), n_inner, -3.0, 0.5)?;
        #[allow(clippy::cast_precision_loss)] // small numbers
        let decay = (0..n_inner * N_STATE).map(|i| -0.05 * (1 + i % N_STATE) as f32).collect();
        tensors.values(&format!("blk.{layer}.ssm_a"), &[N_STATE, n_inner], decay)?;
        tensors.ones(&format!("blk.{layer}.ssm_d"), n_inner)?;
        tensors.matrix(&weight(layer, "ssm_out"), [n_inner, n], 0.3)?;
        if self.architecture == Architecture::Jamba {
            tensors.ones(&weight(layer, "ssm_dt_norm"), N_RANK)?;
            tensors.ones(&weight(layer, "ssm_b_norm"), N_STATE)?;
            tensors.ones(&weight(layer, "ssm_c_norm"), N_STATE)?;
        }
        Ok(())
    }

    fn short_convolution(&self, tensors: &mut Tensors<'_>, layer: usize) -> Result<(), Error> {
        let n = self.n_embd;
        tensors.matrix(&weight(layer, "shortconv.conv"), [N_CONV, n], 0.5)?;
        tensors.matrix(&weight(layer, "shortconv.in_proj"), [n, 3 * n], 0.15)?;
        tensors.matrix(&weight(layer, "shortconv.out_proj"), [n, n], 0.25)
    }
}

fn weight(layer: usize, part: &str) -> String {
    format!("blk.{layer}.{part}.weight")
}

fn number(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
