//! llama.cpp's sequence-state file, read without trusting it.
//!
//! A file that `llama_state_seq_save_file` wrote in another program is proven well-formed here before llama.cpp
//! sees it: its loader asserts, and aborts the process, on things a file may hold. Everything streams, nothing is
//! allocated from a number in the file that has not been bounded, and no input panics.
//!
//! Read in this order: [`header`] (magic, version, ids), [`layout`] (what one model's files look like, learnt from
//! a sample), [`mod@check`] (a file against a layout), [`mod@convert`] (between state versions), [`mod@inspect`] (what
//! is in a file) and [`mod@diff`] (two files, layer by layer). Inside, `walk` follows a file along a layout and
//! `structure` reads one that has no layout yet.
//!
//! The format is llama.cpp's own, `llama-context.cpp` (`state_seq_save_file`) and the `state_write` of
//! `llama-kv-cache.cpp` and `llama-memory-recurrent.cpp`, build b11434; all numbers are little-endian.
#![forbid(unsafe_code)]

mod error;
mod input;
mod parts;
mod scan;
mod structure;
mod threads;
mod walk;
mod window;

pub mod check;
pub mod convert;
pub mod diff;
pub mod ggml_type;
pub mod header;
pub mod inspect;
pub mod layout;
#[cfg(test)]
mod tests;

pub use check::{Checked, Expect, check, check_and_convert, check_structure};
pub(crate) use check::{Piece, first_error};
pub use convert::{convert, single_stream};
pub use diff::{BlockDiff, BlockRows, Diff, Errors, SPANS, diff, first_rows};
pub use error::StateError;
pub use ggml_type::GgmlType;
pub use header::{Header, read_header};
pub use inspect::{Report, SectionReport, inspect};
pub use layout::{BlockId, BlockShape, Layout, ModelFacts, Row, SectionKind, SectionLayout, Tensor};
pub use walk::Span;
pub use window::sort_windows;
