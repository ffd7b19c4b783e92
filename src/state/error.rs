use std::io;

use super::ggml_type::type_name;
use super::header::MAGIC;
use super::layout::{BlockId, SectionKind};

/// Why a state file is refused. `offset` is a byte offset from the start of the file; each text is one line, made for
/// the author of the program that wrote the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the fields are named in the texts: where, what was found, what was expected
pub enum StateError {
    #[error("reading the state file failed at byte {offset}")]
    Read { offset: u64, source: io::Error },

    #[error("the copy of the state file could not be written")]
    Write { source: io::Error },

    #[error("the file ends too early: {what} at byte {offset} needs {needed} bytes, {left} are left")]
    Truncated { offset: u64, what: &'static str, needed: u64, left: u64 },

    #[error("{extra} bytes follow the end of the state at byte {offset}")]
    Trailing { offset: u64, extra: u64 },

    #[error("not a sequence-state file: magic {found:#010x} at byte 0, expected {MAGIC:#010x}{}", magic_hint(*found))]
    Magic { found: u32 },

    #[error("state version {found} at byte 4: this build reads {native} and can convert 2 to 4 only")]
    Version { found: u32, native: u32 },

    #[error("written by llama.cpp state version {from}, this build reads {to}: {why}, can't be converted")]
    NotConvertible { from: u32, to: u32, why: &'static str },

    #[error("{found} token ids claimed at byte {offset}, the most this reader takes is {limit}")]
    TooManyIds { offset: u64, found: u32, limit: u32 },

    #[error("{found} token ids at byte {offset}, expected {n_states}{}", or_all(*.n_states, *.n_prompt))]
    IdCount { offset: u64, found: usize, n_states: usize, n_prompt: usize },

    #[error("token id {index} at byte {offset} is {found}, the prompt has {expected}")]
    Id { offset: u64, index: usize, found: i32, expected: i32 },

    #[error("llama-server's packed token area: {what} at byte {offset} is {found}, expected {expected}")]
    PackedTokens { offset: u64, what: &'static str, found: i32, expected: i64 },

    #[error("no positions to expect: a handoff needs at least one evaluated token")]
    NothingExpected,

    #[error("{n_states} positions expected of a prompt of {n_prompt} tokens")]
    ImpossibleExpectation { n_states: usize, n_prompt: usize },

    #[error(
        "{section}: {found} streams at byte {offset}, expected 1 (save one sequence of a context with one, or unified)"
    )]
    Streams { offset: u64, section: SectionKind, found: u32 },

    #[error("{section}: {found} cells at byte {offset}, expected {}", range(*.min, *.max))]
    CellCount { offset: u64, section: SectionKind, found: u32, min: u32, max: u32 },

    #[error("{section}: {found} cells at byte {offset}, this context has room for {n_ctx}")]
    TooManyCells { offset: u64, section: SectionKind, found: u32, n_ctx: u32 },

    #[error("{section}: cell {cell} at byte {offset} has position {found}, expected {expected}")]
    Position { offset: u64, section: SectionKind, cell: u32, found: i32, expected: i32 },

    #[error("{section}: cell {cell} at byte {offset} has {found} sequence ids, expected {expected}")]
    SeqIds { offset: u64, section: SectionKind, cell: u32, found: u32, expected: u32 },

    #[error("cell {cell} at byte {offset} has M-RoPE field {field} = {found}, expected {expected}")]
    CellExt { offset: u64, cell: u32, field: &'static str, found: i32, expected: i32 },

    #[error(
        "{section}: transposition flag at byte {offset} is {found}, expected 0 (V untransposed: turn flash attention on)"
    )]
    Transposed { offset: u64, section: SectionKind, found: u32 },

    #[error("{section}: {found} layers at byte {offset}, this model has {expected}")]
    LayerCount { offset: u64, section: SectionKind, found: u32, expected: u32 },

    #[error("{section}: {field} at byte {offset} is {found}, expected {expected} (another attention rotation)")]
    Rotation { offset: u64, section: SectionKind, field: &'static str, found: u32, expected: u32 },

    #[error("{block}: type {} at byte {offset}, expected {}", type_name(*.found), type_name(*.expected))]
    Type { offset: u64, block: BlockId, found: i32, expected: i32 },

    #[error("{block}: rows of {found} bytes at byte {offset}, expected {expected}")]
    RowSize { offset: u64, block: BlockId, found: u64, expected: u64 },

    #[error("{block}: rows of {bytes} bytes of type {} at byte {offset} are of no known type", type_name(*.type_number))]
    UnknownRow { offset: u64, block: BlockId, type_number: i32, bytes: u64 },

    #[error("{block}: NaN or infinity in cell {cell} at byte {offset}")]
    NotFinite { offset: u64, block: BlockId, cell: u64 },

    #[error("this model's memory kind is not supported for handoff: {reason}")]
    UnsupportedMemory { reason: &'static str },

    #[error("the bytes after the ids, from byte {offset}, read as more than one kind of memory")]
    Ambiguous { offset: u64 },
}

fn magic_hint(found: u32) -> &'static str {
    // "ggsn", LLAMA_SESSION_MAGIC: the likeliest mistake
    if found == 0x6767_736e { " (this is a whole-context file: use llama_state_seq_save_file)" } else { "" }
}

fn or_all(n_states: usize, n_prompt: usize) -> String {
    if n_states == n_prompt { " (the whole prompt)".into() } else { format!(" (or the prompt's {n_prompt})") }
}

fn range(min: u32, max: u32) -> String {
    if min == max { min.to_string() } else { format!("{min} to {max}") }
}
