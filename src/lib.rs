//! onebit: one process that serves a GGUF model with llama.cpp linked in.
pub mod engine;
#[allow(unsafe_code)]
pub mod llama;
pub mod state;
#[doc(hidden)]
pub mod testing;
