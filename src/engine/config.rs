//! What an engine is made from. No hidden defaults below [`EngineConfig::new`]: it is the one place that has them.

use std::path::PathBuf;

use super::Pooling;
use crate::store::StoreConfig;

/// Where the weights and the KV cache live and where the work is done.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Device {
    /// HRX when the build and the machine have it, else another accelerator of the build, else the CPU.
    #[default]
    Auto,
    /// The CPU only.
    Cpu,
    /// AMD's HRX backend (`HRX0`); an error when the build or the machine has none.
    Hrx,
    /// A ggml device by its name, as `onebit devices` lists it.
    Named(String),
}

/// Element type of the K or V cache, by the names llama.cpp's own tools use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub enum CacheType {
    F32,
    #[default]
    F16,
    Bf16,
    Q8_0,
    Q4_0,
    Q4_1,
    Iq4Nl,
    Q5_0,
    Q5_1,
}

impl CacheType {
    /// Every type with its name on the command line.
    pub const ALL: [(CacheType, &'static str); 9] = [
        (CacheType::F32, "f32"),
        (CacheType::F16, "f16"),
        (CacheType::Bf16, "bf16"),
        (CacheType::Q8_0, "q8_0"),
        (CacheType::Q4_0, "q4_0"),
        (CacheType::Q4_1, "q4_1"),
        (CacheType::Iq4Nl, "iq4_nl"),
        (CacheType::Q5_0, "q5_0"),
        (CacheType::Q5_1, "q5_1"),
    ];
}

impl std::str::FromStr for CacheType {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|(_, known)| *known == name);
        found.map(|(cache_type, _)| *cache_type).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|(_, name)| *name).collect();
            format!("`{name}` is no cache type; known are {}", names.join(", "))
        })
    }
}

impl std::fmt::Display for CacheType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let found = Self::ALL.iter().find(|(cache_type, _)| cache_type == self);
        f.write_str(found.map_or("?", |(_, name)| name))
    }
}

/// Whether attention is computed by the fused kernel. State files need it on: without it V is stored transposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum FlashAttention {
    /// On where the device can, which llama.cpp finds out when the context is made.
    #[default]
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}

/// Settings of one [`Engine`](super::Engine).
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// The GGUF file (the first one of a split model).
    pub model: PathBuf,
    /// Where to compute.
    pub device: Device,
    /// Context length of one sequence in tokens. `Some(0)` means what the model was trained with; `None` the same, but at
    /// most [`DEFAULT_N_CTX`].
    pub n_ctx: Option<u32>,
    /// Sequences decoded at once, each with its own `n_ctx` tokens.
    pub n_seq: u32,
    /// One pool of cells for all sequences, instead of a stream of the KV cache for each. With streams attention passes over no
    /// cells of others; but llama.cpp evaluates only sequences with consecutive numbers together, so that one that pauses splits
    /// the batch. A context for embeddings is unified always.
    pub kv_unified: bool,
    /// Most tokens in one call of `llama_decode`.
    pub n_batch: u32,
    /// Most tokens of prompts in one such call while answers are being generated beside them: no answer waits longer for its
    /// next token than these take.
    pub prefill_chunk: u32,
    /// Most tokens in one pass over the graph.
    pub n_ubatch: u32,
    /// Threads for single-token steps; `None` means one for each physical core.
    pub n_threads: Option<u32>,
    /// Threads for prompts; `None` means as `n_threads`.
    pub n_threads_batch: Option<u32>,
    /// Element type of the K cache.
    pub cache_type_k: CacheType,
    /// Element type of the V cache; a quantized one needs flash attention.
    pub cache_type_v: CacheType,
    /// Fused attention.
    pub flash_attention: FlashAttention,
    /// Layers on the accelerator; `None` means all.
    pub n_gpu_layers: Option<u32>,
    /// Addresses (`host:port`) of ggml RPC servers whose devices join this machine's.
    pub rpc_servers: Vec<String>,
    /// A Jinja chat template in place of the model's own.
    pub chat_template: Option<String>,
    /// Look for NaN and infinity in the values of state files.
    pub state_scan: bool,
    /// Compare the values of the first restored state file, and of every n-th after it, with what is computed here for the
    /// prompt's first tokens; `None` never does.
    pub state_probe: Option<u32>,
    /// Compute embeddings too ([`Engine::embed`](super::Engine::embed)).
    pub embeddings: bool,
    /// How a text's vectors become one; `None` as the model says.
    pub pooling: Option<Pooling>,
    /// Keep the states of long prompts on disk, and restore from there; only for jobs that may reuse what is held
    /// ([`GenerateOptions::reuse_prefix`](super::GenerateOptions::reuse_prefix)).
    pub prefix_store: Option<StoreConfig>,
    /// Run one token through the model at load, so that the first request finds weights paged in.
    pub warmup: bool,
}

/// Context length when nobody asks for one: most chats fit, and the KV cache of a small model stays under a gigabyte.
pub const DEFAULT_N_CTX: u32 = 8192;

/// Tokens of a prompt between two tokens of the answers beside it, when nobody says: enough that a prompt loses little by being
/// cut, few enough that a stream does not stand still.
pub const DEFAULT_PREFILL_CHUNK: u32 = 256;

/// How often state files are probed when nobody says: the first after a start tells a wrong set-up, the others that it
/// changed.
pub const DEFAULT_STATE_PROBE: u32 = 32;

impl EngineConfig {
    /// Defaults for `model`: automatic device, a context of [`DEFAULT_N_CTX`] tokens (or the model's, if that is less),
    /// one sequence, f16 cache.
    pub fn new(model: impl Into<PathBuf>) -> Self {
        Self {
            model: model.into(),
            device: Device::Auto,
            n_ctx: None,
            n_seq: 1,
            kv_unified: false,
            n_batch: 2048,
            prefill_chunk: DEFAULT_PREFILL_CHUNK,
            n_ubatch: 512,
            n_threads: None,
            n_threads_batch: None,
            cache_type_k: CacheType::F16,
            cache_type_v: CacheType::F16,
            flash_attention: FlashAttention::Auto,
            n_gpu_layers: None,
            rpc_servers: Vec::new(),
            chat_template: None,
            state_scan: true,
            state_probe: Some(DEFAULT_STATE_PROBE),
            embeddings: false,
            pooling: None,
            prefix_store: None,
            warmup: true,
        }
    }
}
