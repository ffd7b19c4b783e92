//! The safe layer over llama.cpp: each C handle has one Rust owner, each C code a name, each failure llama.cpp's own words.
//!
//! Threads: [`Model`] and [`Vocab`] are read-only after loading and may be shared ([`Send`] + [`Sync`]). [`Context`],
//! and the [`Sampler`] that reads its logits, belong to one thread at a time ([`Send`], not [`Sync`]); the engine gives
//! each context a thread of its own. [`CancelFlag`] is how another thread stops a running
//! [`decode`](Context::decode). Log lines may come from any thread that calls into llama.cpp.
//!
//! `unsafe` is allowed here and in `llama-sys`, nowhere else.

#[cfg(test)]
mod attention_tests;
mod backend;
mod batch;
mod callback;
mod chat;
mod context;
mod device;
mod error;
pub mod gguf;
mod grammar_guard;
mod grammar_ways;
mod library;
mod log;
mod memory;
mod model;
mod sampler;
mod state;
mod strings;
mod trigger;
mod vocab;

pub use backend::{
    Backend, build_number, cpu_threads, licenses, release_free_memory, source, state_version, system_info,
};
pub use batch::Batch;
pub use callback::CancelFlag;
pub use chat::{ChatParser, ChatTemplates, schema_to_grammar};
pub use context::{Context, ContextParams, KvType, PoolingType};
pub use device::{Device, DeviceKind};
pub use error::{DecodeError, Error};
pub use library::{probe_library, set_environment};
pub use memory::{Pos, SeqId};
pub use model::{MemoryNeed, Model, ModelParams};
pub(crate) use sampler::argmax;
pub use sampler::{GrammarSpec, Sampler, SamplerSpec, TriggerSpec};
pub use state::ReadRows;
pub use vocab::{Token, Vocab};
