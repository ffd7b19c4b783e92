//! Raw bindings to llama.cpp (`llama.h`, `ggml.h`, `ggml-backend.h`, `gguf.h`) and to the shim in `shim/shim.h`, which
//! reaches what only C++ offers. No policy here: the safe layer is `onebit::llama`.

#![allow(non_upper_case_globals, non_camel_case_types, non_snake_case, unsafe_code, missing_docs)]
#![allow(clippy::all, unnecessary_transmutes)]

include!(concat!(env!("OUT_DIR"), "/bindings.rs"));

/// Which llama.cpp tree was built: the pinned package and its version, or a checkout and its commit.
pub const SOURCE: &str = env!("ONEBIT_LLAMA_SOURCE");

/// The license texts of llama.cpp and of the libraries it bundles.
pub const LICENSES: &str = include_str!(concat!(env!("OUT_DIR"), "/licenses.txt"));
