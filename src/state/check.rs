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

use std::io::{BufRead, Seek, Write};
use std::ops::Range;
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
        let pieces = self.pieces(file.len() as u64);
        first_error(n_threads.min(pieces.len()), pieces.iter(), |piece| {
            let missing = || piece.missing(file.len() as u64);
            let start = usize::try_from(piece.offset).map_err(|_| missing())?;
            let bytes = file.get(start..).and_then(|rest| rest.get(..piece.len)).ok_or_else(missing)?;
            piece.scan(bytes)
        })
    }

    /// Some of a block's rows: `len` bytes at `offset`. `None` where there are none.
    pub(crate) fn rows(&self, offset: u64, len: usize) -> Option<Piece<'_>> {
        let index = self.blocks.partition_point(|block| block.offset + block.bytes() <= offset);
        let block = self.blocks.get(index)?;
        let is_in_block = block.offset <= offset && offset + len as u64 <= block.offset + block.bytes();
        is_in_block.then_some(Piece { offset, len, block: Some(block) })
    }

    /// All of a file of `len` bytes, in pieces that follow each other: for readers that look at the rows while these are in
    /// the CPU's cache.
    pub(crate) fn pieces(&self, len: u64) -> Vec<Piece<'_>> {
        let mut pieces = Vec::new();
        let mut at = 0;
        for block in &self.blocks {
            cut(&mut pieces, at..block.offset, PIECE as u64, None);
            at = block.offset + block.bytes();
            let unit = Scan::of(block.row.ty).unit() as u64;
            cut(&mut pieces, block.offset..at, PIECE as u64 / unit * unit, Some(block));
        }
        cut(&mut pieces, at..len, PIECE as u64, None);
        pieces
    }
}

/// What one thread takes at a time; half of a small L2 cache.
const PIECE: usize = 256 * 1024;

/// A part of a file that passed.
pub(crate) struct Piece<'a> {
    pub offset: u64,
    pub len: usize,
    /// Whose rows it holds, if rows.
    block: Option<&'a Block>,
}

impl Piece<'_> {
    #[cfg(test)]
    pub fn without_rows(offset: u64, len: usize) -> Self {
        Self { offset, len, block: None }
    }

    pub fn has_rows(&self) -> bool {
        self.block.is_some()
    }

    /// Looks for NaN and infinity in the piece's bytes.
    pub fn scan(&self, bytes: &[u8]) -> Result<(), StateError> {
        self.block.map_or(Ok(()), |block| finite(Scan::of(block.row.ty), block, self.offset, bytes))
    }

    /// The file ends at `end`, before the piece does.
    pub fn missing(&self, end: u64) -> StateError {
        let left = end.saturating_sub(self.offset);
        StateError::Truncated { offset: self.offset, what: "rows", needed: self.len as u64, left }
    }
}

fn cut<'a>(pieces: &mut Vec<Piece<'a>>, range: Range<u64>, most: u64, block: Option<&'a Block>) {
    let mut offset = range.start;
    while offset < range.end {
        let n = most.min(range.end - offset);
        pieces.push(Piece { offset, len: usize::try_from(n).unwrap_or(PIECE), block });
        offset += n;
    }
}

/// Does `work` for all items, on `n_threads` threads. The error of the first item that has one.
pub(crate) fn first_error<T: Send>(
    n_threads: usize,
    items: impl Iterator<Item = T> + Send,
    work: impl Fn(T) -> Result<(), StateError> + Sync,
) -> Result<(), StateError> {
    let (items, first) = (Mutex::new(items.enumerate()), Mutex::new(None));
    on_threads(n_threads, || {
        loop {
            let next = items.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((index, item)) = next else { return };
            if let Err(error) = work(item) {
                let mut first = first.lock().unwrap_or_else(PoisonError::into_inner);
                if first.as_ref().is_none_or(|(before, _)| index < *before) {
                    *first = Some((index, error));
                }
            }
        }
    });
    first.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), |(_, error)| Err(error))
}

/// Proves that a file of `len` bytes, from its start, is what a model of this layout can load.
///
/// Reads every byte once and allocates nothing but the ids. With `&mut &[u8]` as reader the values are looked at in
/// place; for a file use a buffer of some 256 KB, which stays in the CPU's cache between reading and scanning.
pub fn check(reader: &mut impl BufRead, len: u64, layout: &Layout, expect: &Expect) -> Result<Checked, StateError> {
    prove(&mut Input::new(reader, len), layout, expect, None, skip_or_scan(expect.scan))
}

/// As [`check`], but passes over the rows without reading them; [`Expect::scan`] is not heard.
pub fn check_structure(
    reader: &mut (impl BufRead + Seek),
    len: u64,
    layout: &Layout,
    expect: &Expect,
) -> Result<Checked, StateError> {
    prove(&mut Input::new(reader, len), layout, expect, None, |input, block| input.jump(block.bytes(), "rows"))
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
    let checked = prove(&mut input, layout, expect, Some(layout.native), skip_or_scan(expect.scan))?;
    input.flush()?;
    Ok(checked)
}

fn skip_or_scan<R: BufRead>(is_scanned: bool) -> impl Fn(&mut Input<R>, &Block) -> Result<(), StateError> {
    move |input, block| if is_scanned { scan(input, block) } else { input.skip(block.bytes(), "rows") }
}

/// `to` is the version of the copy that `input` makes, if it makes one. `rows` takes a block's.
fn prove<R: BufRead>(
    input: &mut Input<R>,
    layout: &Layout,
    expect: &Expect,
    to: Option<u32>,
    rows: impl Fn(&mut Input<R>, &Block) -> Result<(), StateError>,
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
        rows(input, block)
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
