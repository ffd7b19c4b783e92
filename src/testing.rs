//! Tiny random models, written by llama.cpp's own GGUF writer: real models for tests, without a download.

use std::path::Path;

use crate::llama::Error;
use crate::llama::gguf::Writer;

/// A random model of the `llama` architecture with a byte vocabulary (SPM with byte fallback: `<unk>`, `<s>`, `</s>`, then
/// the 256 bytes), well under 1 MB. The same seed gives the same model.
#[derive(Clone, Debug)]
pub struct TinyModel {
    /// Seed of the weights.
    pub seed: u64,
    /// Context length that the metadata tells.
    pub n_ctx: u32,
    /// The chat template, if any.
    pub chat_template: Option<String>,
}

const N_EMBD: usize = 64;
const N_FF: usize = 96;
const N_LAYER: usize = 2;
const N_HEAD: usize = 4;
const N_HEAD_KV: usize = 2;
const N_VOCAB: usize = 259;

/// Renders `<role>: <content>` lines and the beginning of the assistant's.
const CHAT_TEMPLATE: &str = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}\
                             {% if add_generation_prompt %}assistant: {% endif %}";

impl TinyModel {
    /// The model that most tests use.
    pub fn llama() -> Self {
        Self { seed: 1, n_ctx: 2048, chat_template: Some(CHAT_TEMPLATE.to_owned()) }
    }

    /// The same shape with other weights.
    pub fn with_seed(seed: u64) -> Self {
        Self { seed, ..Self::llama() }
    }

    /// Writes the GGUF file.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let mut gguf = Writer::new()?;
        self.metadata(&mut gguf)?;
        vocabulary(&mut gguf)?;
        let mut weights = Weights(self.seed);
        gguf.tensor("token_embd.weight", &[N_EMBD, N_VOCAB], weights.normal(N_EMBD * N_VOCAB, 1.0))?;
        gguf.tensor("output_norm.weight", &[N_EMBD], vec![1.0; N_EMBD])?;
        gguf.tensor("output.weight", &[N_EMBD, N_VOCAB], weights.normal(N_EMBD * N_VOCAB, 0.3))?;
        for layer in 0..N_LAYER {
            self.layer(&mut gguf, layer, &mut weights)?;
        }
        gguf.write(path)
    }

    fn metadata(&self, gguf: &mut Writer) -> Result<(), Error> {
        gguf.text("general.architecture", "llama")?.text("general.name", "tiny random model")?;
        gguf.number("llama.context_length", self.n_ctx)?
            .number("llama.embedding_length", N_EMBD as u32)?
            .number("llama.block_count", N_LAYER as u32)?
            .number("llama.feed_forward_length", N_FF as u32)?
            .number("llama.attention.head_count", N_HEAD as u32)?
            .number("llama.attention.head_count_kv", N_HEAD_KV as u32)?
            .number("llama.rope.dimension_count", (N_EMBD / N_HEAD) as u32)?
            .float("llama.attention.layer_norm_rms_epsilon", 1e-5)?;
        if let Some(template) = &self.chat_template {
            gguf.text("tokenizer.chat_template", template)?;
        }
        Ok(())
    }

    fn layer(&self, gguf: &mut Writer, layer: usize, weights: &mut Weights) -> Result<(), Error> {
        let n_kv = N_EMBD / N_HEAD * N_HEAD_KV;
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        gguf.tensor(&name("attn_norm"), &[N_EMBD], vec![1.0; N_EMBD])?;
        gguf.tensor(&name("ffn_norm"), &[N_EMBD], vec![1.0; N_EMBD])?;
        // Large enough that attention prefers some positions: the answer then depends on the whole prompt.
        for (part, shape) in [
            ("attn_q", [N_EMBD, N_EMBD]),
            ("attn_k", [N_EMBD, n_kv]),
            ("attn_v", [N_EMBD, n_kv]),
            ("attn_output", [N_EMBD, N_EMBD]),
            ("ffn_gate", [N_EMBD, N_FF]),
            ("ffn_up", [N_EMBD, N_FF]),
            ("ffn_down", [N_FF, N_EMBD]),
        ] {
            gguf.tensor(&name(part), &shape, weights.normal(shape[0] * shape[1], 0.25))?;
        }
        Ok(())
    }
}

/// `<unk>`, `<s>`, `</s>`, then `<0x00>` to `<0xFF>`: token id = byte + 3.
fn vocabulary(gguf: &mut Writer) -> Result<(), Error> {
    const NORMAL_UNKNOWN: i32 = 2;
    const CONTROL: i32 = 3;
    const BYTE: i32 = 6;
    let mut texts = vec!["<unk>".to_owned(), "<s>".to_owned(), "</s>".to_owned()];
    texts.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
    let mut kinds = vec![NORMAL_UNKNOWN, CONTROL, CONTROL];
    kinds.resize(N_VOCAB, BYTE);
    gguf.text("tokenizer.ggml.model", "llama")?
        .texts("tokenizer.ggml.tokens", &texts)?
        .floats("tokenizer.ggml.scores", &vec![0.0; N_VOCAB])?
        .integers("tokenizer.ggml.token_type", &kinds)?
        .number("tokenizer.ggml.bos_token_id", 1)?
        .number("tokenizer.ggml.eos_token_id", 2)?
        .number("tokenizer.ggml.unknown_token_id", 0)?
        .flag("tokenizer.ggml.add_bos_token", true)?
        .flag("tokenizer.ggml.add_space_prefix", false)?;
    Ok(())
}

/// Reproducible pseudo-random numbers (splitmix64), about normal: the sum of four uniform ones.
struct Weights(u64);

impl Weights {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        #[allow(clippy::cast_precision_loss)] // 24 bits fit an f32
        let unit = (z >> 40) as f32 / (1u32 << 24) as f32;
        unit - 0.5
    }

    fn normal(&mut self, n: usize, deviation: f32) -> Vec<f32> {
        // Each summand has variance 1/12, four of them 1/3.
        let scale = deviation * 3f32.sqrt();
        (0..n).map(|_| (self.next() + self.next() + self.next() + self.next()) * scale).collect()
    }
}
