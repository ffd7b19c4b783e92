//! A file against the layout of the model it is for.
//!
//! What passes can be given to llama.cpp's loader in a context of this model: the loader will find every
//! field as it wants it, and the sequence will hold exactly the expected positions.
//!
//! Accepted, and why:
//! - ids: as many as there are states, or the whole prompt's; the loader only hands them back.
//! - attention: positions `0..n` in order, as a cache that held nothing else is written. Any other set leaves holes or
//!   doubles; `-1` aborts llama.cpp at the next request.
//! - sliding window: the last `m` positions, where `m` covers at least the window. llama.cpp since state version 2b
//!   writes just the window, before it wrote every cell; what is more is masked and never read. They may begin
//!   anywhere and go round (see `walk::Cells`): the small cache was filled so. The loader gets the window only, whose cache has
//!   room for little more (see [`Checked::parts`]).
//! - recurrent: one cell of the last position; more make the loader assert.
//! - the sequence id of a cell: any; the loader ignores it.
//! - M-RoPE cells: `x` and `y` equal to the position, as for all text; `tok` the prompt's id, or -1.

use std::io::{BufRead, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::error::StateError;
use super::header::{self, Header, VERSION_CELL_TOKEN, VERSION_MAX, VERSION_MIN};
use super::input::Input;
use super::layout::Layout;
use super::scan::Scan;
use super::threads::on_threads;
use super::walk::{Block, Plan, Span, Streams, walk};

/// What the file is expected to hold.
#[derive(Debug, Clone, Copy)]
pub struct Expect<'a> {
    /// The whole prompt.
    pub ids: &'a [i32],
    /// Positions evaluated: all of the prompt, or one less for models that can't step back.
    pub n_states: usize,
    /// The most cells a section may have: the context's size.
    pub n_ctx: u32,
    /// Look for NaN and infinity in the values.
    pub scan: bool,
}

/// A file that passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    /// The file's state version. When it is not the layout's native one the file can be converted, and must be
    /// before it is loaded.
    pub version: u32,
    /// `version` is the native one.
    pub native: bool,
    /// Words in the token area: the capacity `llama_state_seq_load_file` needs.
    pub n_area: u32,
    /// Where the memory begins, in the file as in its copy.
    pub body_offset: usize,
    /// The sections, in file order; where they stand in the copy, if one was made.
    pub sections: Vec<Span>,
    pub(super) blocks: Vec<Block>,
}

impl Checked {
    /// Looks for NaN and infinity in the rows, on `n_threads` threads: for a file that was checked without
    /// [`Expect::scan`] and lies in memory. Tells of the first.
    pub fn scan(&self, file: &[u8], n_threads: usize) -> Result<(), StateError> {
        let (next, first_bad) = (AtomicUsize::new(0), Mutex::new(None));
        on_threads(n_threads.min(self.blocks.len()), || {
            while let Some((index, block)) = next_of(&self.blocks, &next) {
                if let Err(error) = scan_block(file, block) {
                    let mut first_bad = first_bad.lock().unwrap_or_else(PoisonError::into_inner);
                    if first_bad.as_ref().is_none_or(|(before, _)| index < *before) {
                        *first_bad = Some((index, error));
                    }
                }
            }
        });
        match first_bad.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some((_, error)) => Err(error),
            None => Ok(()),
        }
    }
}

fn next_of<'a>(blocks: &'a [Block], next: &AtomicUsize) -> Option<(usize, &'a Block)> {
    let index = next.fetch_add(1, Ordering::Relaxed);
    Some((index, blocks.get(index)?))
}

/// Proves that a file of `len` bytes, from its start, is what a model of this layout can load.
///
/// Reads every byte once and allocates nothing but the ids. With `&mut &[u8]` as reader the values are looked at in
/// place; for a file use a buffer of some 256 KB, which stays in the CPU's cache between reading and scanning.
pub fn check(reader: &mut impl BufRead, len: u64, layout: &Layout, expect: &Expect) -> Result<Checked, StateError> {
    prove(&mut Input::new(reader, len), layout, expect, None)
}

/// As [`check`], and writes the file to `writer` on the way, in the layout's native version.
///
/// One pass for a caller that wants its own copy of what was checked. On an error the copy is to be thrown away.
pub fn check_and_convert(
    reader: &mut impl BufRead,
    len: u64,
    layout: &Layout,
    expect: &Expect,
    writer: &mut impl Write,
) -> Result<Checked, StateError> {
    let mut input = Input::copying(reader, len, writer);
    header::begin_copy(&mut input, layout.native)?;
    let checked = prove(&mut input, layout, expect, Some(layout.native))?;
    input.flush()?;
    Ok(checked)
}

/// `to` is the version of the copy that `input` makes, if it makes one.
fn prove<R: BufRead>(
    input: &mut Input<R>,
    layout: &Layout,
    expect: &Expect,
    to: Option<u32>,
) -> Result<Checked, StateError> {
    let (n_states, n_prompt) = (expect.n_states, expect.ids.len());
    if n_states == 0 {
        return Err(StateError::NothingExpected);
    }
    let as_i32 = i32::try_from(n_states).ok().filter(|_| n_states <= n_prompt);
    let Some(n) = as_i32 else {
        return Err(StateError::ImpossibleExpectation { n_states, n_prompt });
    };
    let header = header::read_from(input)?;
    let version = header.version;
    check_version(version, layout.native, layout)?;
    check_ids(&header, expect)?;

    let plan = Plan {
        layout,
        version,
        to: to.unwrap_or(version),
        ids: expect.ids,
        n_states: Some(n.cast_unsigned()),
        n_ctx: expect.n_ctx,
        streams: Streams::ONE,
    };
    let mut blocks = Vec::new();
    let sections = walk(input, &plan, |input, block| {
        blocks.push(Block { offset: input.written(), ..*block });
        if expect.scan { scan(input, block) } else { input.skip(block.bytes(), "rows") }
    })?;
    let body_offset = usize::try_from(header.body_offset).unwrap_or(usize::MAX);
    Ok(Checked { version, native: version == layout.native, n_area: header.n_area, body_offset, sections, blocks })
}

/// A file of state version `from` is one that llama.cpp of version `to` reads, or can be made one.
pub(super) fn check_version(from: u32, to: u32, layout: &Layout) -> Result<(), StateError> {
    let known = (VERSION_MIN..=VERSION_MAX).contains(&from) && (VERSION_CELL_TOKEN..=VERSION_MAX).contains(&to);
    if from != to && !known {
        return Err(StateError::Version { found: from, native: to });
    }
    match layout.inconvertible(from, to) {
        Some(why) => Err(StateError::NotConvertible { from, to, why }),
        None => Ok(()),
    }
}

fn check_ids(header: &Header, expect: &Expect) -> Result<(), StateError> {
    let (found, n_states, n_prompt) = (header.ids.len(), expect.n_states, expect.ids.len());
    // the first difference says more than the count does
    if let Some(index) = header.ids.iter().zip(expect.ids).position(|(a, b)| a != b) {
        let (found, expected) = (header.ids[index], expect.ids[index]);
        return Err(StateError::Id { offset: header.id_offset(index), index, found, expected });
    }
    if found != n_states && found != n_prompt {
        return Err(StateError::IdCount { offset: 8, found, n_states, n_prompt });
    }
    Ok(())
}

fn scan<R: BufRead>(input: &mut Input<R>, block: &Block) -> Result<(), StateError> {
    let scan = Scan::of(block.row.ty);
    input.units(block.bytes(), scan.unit(), "rows", |offset, bytes| finite(scan, block, offset, bytes))
}

fn scan_block(file: &[u8], block: &Block) -> Result<(), StateError> {
    let scan = Scan::of(block.row.ty);
    let (offset, needed) = (block.offset, block.bytes());
    let rows = |start: u64, n: u64| file.get(usize::try_from(start).ok()?..)?.get(..usize::try_from(n).ok()?);
    let rows = rows(offset, needed).ok_or(StateError::Truncated { offset, what: "rows", needed, left: 0 })?;
    finite(scan, block, offset, rows)
}

/// `bytes` are some of the block's, from `offset` in the file on.
fn finite(scan: Scan, block: &Block, offset: u64, bytes: &[u8]) -> Result<(), StateError> {
    match scan.first_bad(bytes) {
        None => Ok(()),
        Some(at) => {
            let offset = offset + at as u64;
            let cell = (offset - block.offset) / block.row.bytes;
            Err(StateError::NotFinite { offset, block: block.id, cell })
        }
    }
}
