//! What can go wrong below the engine.

use std::ffi::c_char;

use llama_sys::{ONEBIT_INVALID, ONEBIT_OK, onebit_status};

use super::log;
use super::strings::take_string;

/// A call into llama.cpp that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The input is at fault (a template that raises, a grammar that cannot be parsed, a refused state file).
    #[error("{0}")]
    Invalid(String),
    /// Anything else, in llama.cpp's own words.
    #[error("{0}")]
    Failed(String),
    /// A text with a NUL byte cannot be handed to C.
    #[error("the text has a NUL byte")]
    Nul,
    /// `llama_decode` did not succeed.
    #[error(transparent)]
    Decode(#[from] DecodeError),
}

/// What `llama_decode` returned (llama.h, "Process a batch of tokens").
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// 1: no room in the KV cache. The memory is as before.
    #[error("no room left in the KV cache")]
    NoKvSlot,
    /// 2: the abort callback said stop. Finished micro-batches remain in the memory.
    #[error("aborted")]
    Aborted,
    /// -1: llama.cpp refused the batch. The memory is as before.
    #[error("llama.cpp refused the batch")]
    InvalidBatch,
    /// -2: an allocation failed. Finished micro-batches remain in the memory.
    #[error("llama.cpp could not allocate memory for the batch")]
    AllocFailed,
    /// -3: the computation failed. Finished micro-batches remain in the memory.
    #[error("the computation failed")]
    ComputeFailed,
    /// Any other code.
    #[error("llama_decode returned {0}")]
    Other(i32),
}

impl DecodeError {
    /// The error for a code of `llama_decode`; `None` for 0.
    pub(super) fn from_code(code: i32) -> Option<Self> {
        match code {
            0 => None,
            1 => Some(Self::NoKvSlot),
            2 => Some(Self::Aborted),
            -1 => Some(Self::InvalidBatch),
            -2 => Some(Self::AllocFailed),
            -3 => Some(Self::ComputeFailed),
            other => Some(Self::Other(other)),
        }
    }
}

/// Runs one shim call and turns its status into a [`Result`]; error lines that llama.cpp logged meanwhile become the text.
pub(super) fn check(call: impl FnOnce(*mut *mut c_char) -> onebit_status) -> Result<(), Error> {
    let mut text: *mut c_char = std::ptr::null_mut();
    let (status, logged) = log::capture(|| call(&raw mut text));
    if status == ONEBIT_OK {
        return Ok(());
    }
    let thrown = take_string(text).unwrap_or_else(|| "unknown error".to_owned());
    let message = if logged.is_empty() { thrown } else { logged };
    Err(if status == ONEBIT_INVALID { Error::Invalid(message) } else { Error::Failed(message) })
}
