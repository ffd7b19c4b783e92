//! One process that serves a GGUF model with llama.cpp linked in, and restores a prompt's KV cache from an external prefill
//! provider.
//!
//! Modules in the order to read them; each uses those before it and none after it:
//!
//! - [`llama`]: safe wrappers over llama.cpp's C API. The only module with `unsafe`.
//! - [`state`]: the sequence-state file, read without trusting it. Pure Rust, depends on nothing.
//! - [`store`]: states of prompts on disk, found again by their tokens. No FFI.
//! - [`engine`]: one decode thread, and the handle that library callers use: [`engine::Engine`].
//! - [`hybrid`]: prompts computed by another program, and what to do when that fails.
//! - [`server`]: the OpenAI-compatible HTTP API.
//! - [`cli`]: the commands of the `onebit` program.
//!
//! A library caller needs [`engine`] alone; its documentation has a complete example.

#[allow(unsafe_code)] // the one room for it: see the module's documentation
pub mod llama;

pub mod cli;
pub mod engine;
pub mod hybrid;
pub mod server;
pub mod state;
pub mod store;
#[doc(hidden)]
pub mod testing;
