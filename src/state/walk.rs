//! Follows a file along the layout of its model, field by field.

use std::io::BufRead;
use std::ops::Range;

use super::error::StateError;
use super::header::VERSION_ROTATION;
use super::input::Input;
use super::layout::{BlockId, Layout, Row, SectionKind, SectionLayout};

/// What the file must be.
pub(super) struct Plan<'a> {
    pub layout: &'a Layout,
    /// The file's own version; one that [`Layout::inconvertible`] allows.
    pub version: u32,
    /// The version of the copy, where one is made.
    pub to: u32,
    pub ids: &'a [i32],
    /// Positions the file must hold; `None` takes the first section's word.
    pub n_states: Option<u32>,
    /// The most cells a section may have.
    pub n_ctx: u32,
    pub streams: Streams,
}

/// Whose cells an attention section holds. A context that keeps its sequences apart has a stream for each, and writes a cell
/// count for all of them, 0 but for the one that is saved. A file has one stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Streams {
    pub count: u32,
    pub own: u32,
}

impl Streams {
    pub const ONE: Streams = Streams { count: 1, own: 0 };
}

/// A section as it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// Which memory.
    pub kind: SectionKind,
    /// Its cells.
    pub n_cells: u32,
    /// Where it stands: in the copy, where one is made.
    pub bytes: Range<u64>,
    pub(super) cells: Cells,
}

/// The cells of a section: `count` positions up from `start`, the first cell holding `first`, then upwards and from
/// the last round to `start` again.
///
/// llama.cpp writes cells by index. A full cache was filled upwards, so `first == start`. A sliding-window cache is
/// smaller than the prompt and was filled round and round, so its file can begin anywhere in the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cells {
    pub start: u32,
    pub count: u32,
    pub first: u32,
}

impl Cells {
    /// Position of the cell with this index; `index < count`.
    pub fn position(&self, index: u32) -> u32 {
        let turned = u64::from(self.first - self.start) + u64::from(index);
        self.start + (turned % u64::from(self.count)) as u32
    }

    /// Index of the cell that holds this position.
    pub fn index(&self, position: u32) -> Option<u32> {
        let from_start = position.checked_sub(self.start).filter(|n| *n < self.count)?;
        let turned = u64::from(from_start) + u64::from(self.count) - u64::from(self.first - self.start);
        Some((turned % u64::from(self.count)) as u32)
    }
}

/// One tensor in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Block {
    pub id: BlockId,
    pub row: Row,
    pub cells: Cells,
    /// Where its rows begin.
    pub offset: u64,
}

impl Block {
    pub fn bytes(&self) -> u64 {
        // the product was checked against what is left of the file
        self.row.bytes * u64::from(self.cells.count)
    }
}

/// Reads along `plan` from the first byte of the memory to the end of the file. `visit` gets each tensor and must read
/// exactly its rows. Returns the sections.
pub(super) fn walk<R: BufRead>(
    input: &mut Input<R>,
    plan: &Plan,
    mut visit: impl FnMut(&mut Input<R>, &Block) -> Result<(), StateError>,
) -> Result<Vec<Span>, StateError> {
    let mut n_states = plan.n_states;
    let mut spans = Vec::new();
    for section in &plan.layout.sections {
        let start = input.written();
        let cells = match section.kind {
            SectionKind::Recurrent => recurrent_head(input, section, n_states)?,
            _ => attention_head(input, plan, section, n_states)?,
        };
        n_states = Some(cells.start + cells.count);
        for shape in &section.blocks {
            let block = block_head(input, shape.id, shape.row, cells)?;
            visit(input, &block)?;
        }
        if section.kind != SectionKind::Recurrent {
            empty_streams(input, section.kind, plan.streams.count - 1 - plan.streams.own)?;
        }
        spans.push(Span { kind: section.kind, n_cells: cells.count, bytes: start..input.written(), cells });
    }
    if input.left() > 0 {
        return Err(StateError::Trailing { offset: input.offset(), extra: input.left() });
    }
    Ok(spans)
}

fn attention_head<R: BufRead>(
    input: &mut Input<R>,
    plan: &Plan,
    section: &SectionLayout,
    n_states: Option<u32>,
) -> Result<Cells, StateError> {
    let kind = section.kind;
    stream_count(input, kind, plan.streams)?;
    let cells = cell_count(input, plan, kind, n_states)?;
    let cells = attention_cells(input, plan, section, cells)?;

    let offset = input.offset();
    let found = input.u32("V transposition flag")?;
    if found != 0 {
        return Err(StateError::Transposed { offset, section: kind, found });
    }
    layer_count(input, section)?;
    rotation(input, plan, section)?;
    Ok(cells)
}

/// Reads what stands before the sequence's own stream; a copy is of one stream.
pub(super) fn stream_count<R: BufRead>(
    input: &mut Input<R>,
    section: SectionKind,
    streams: Streams,
) -> Result<(), StateError> {
    let offset = input.offset();
    let found = u32::from_le_bytes(input.array_uncopied("stream count")?);
    if found != streams.count {
        return Err(StateError::Streams { offset, section, found });
    }
    input.insert(&1u32.to_le_bytes())?;
    empty_streams(input, section, streams.own)
}

/// Reads the cell counts of `n` streams that hold nothing; a copy leaves them out.
pub(super) fn empty_streams<R: BufRead>(input: &mut Input<R>, section: SectionKind, n: u32) -> Result<(), StateError> {
    for _ in 0..n {
        let offset = input.offset();
        let found = u32::from_le_bytes(input.array_uncopied("cell count of another stream")?);
        if found != 0 {
            return Err(StateError::CellCount { offset, section, found, min: 0, max: 0 });
        }
    }
    Ok(())
}

/// Reads the cell count, which says which positions the section holds; `first` is still open.
fn cell_count<R: BufRead>(
    input: &mut Input<R>,
    plan: &Plan,
    section: SectionKind,
    n_states: Option<u32>,
) -> Result<Cells, StateError> {
    let offset = input.offset();
    let found = input.u32("cell count")?;
    let n = n_states.unwrap_or(found);
    if found > plan.n_ctx {
        return Err(StateError::TooManyCells { offset, section, found, n_ctx: plan.n_ctx });
    }
    // positions are i32
    let max = n.clamp(1, i32::MAX as u32);
    let min = match section {
        SectionKind::Window => max - plan.layout.window_start(max),
        _ => max,
    }
    .max(1);
    if !(min..=max).contains(&found) {
        return Err(StateError::CellCount { offset, section, found, min, max });
    }
    let start = n - found;
    Ok(Cells { start, count: found, first: start })
}

fn attention_cells<R: BufRead>(
    input: &mut Input<R>,
    plan: &Plan,
    section: &SectionLayout,
    mut cells: Cells,
) -> Result<Cells, StateError> {
    input.need(u64::from(cells.count) * u64::from(section.cell_bytes()), "cells")?;
    for cell in 0..cells.count {
        let offset = input.offset();
        let found = input.i32("position")?;
        if cell == 0 && section.kind == SectionKind::Window {
            let inside = u32::try_from(found).is_ok_and(|p| cells.index(p).is_some());
            cells.first = if inside { found as u32 } else { cells.start };
        }
        let position = cells.position(cell);
        if found != position as i32 {
            return Err(StateError::Position { offset, section: section.kind, cell, found, expected: position as i32 });
        }
        seq_ids(input, section.kind, cell, 1)?;
        if section.cell_ext {
            cell_ext(input, plan, cell, position)?;
        }
        // any value: the loader reads it and puts the cell into the sequence it was asked for
        input.i32("sequence id")?;
    }
    Ok(cells)
}

fn seq_ids<R: BufRead>(input: &mut Input<R>, section: SectionKind, cell: u32, expected: u32) -> Result<(), StateError> {
    let offset = input.offset();
    let found = input.u32("sequence id count")?;
    if found != expected {
        return Err(StateError::SeqIds { offset, section, cell, found, expected });
    }
    Ok(())
}

/// A text token's 2D position is its position twice, and its token that of the prompt (or none).
fn cell_ext<R: BufRead>(input: &mut Input<R>, plan: &Plan, cell: u32, position: u32) -> Result<(), StateError> {
    let token = plan.ids.get(position as usize).copied().unwrap_or(-1);
    for (field, expected, also) in
        [("x", position as i32, None), ("y", position as i32, None), ("tok", token, Some(-1))]
    {
        let offset = input.offset();
        let found = input.i32("M-RoPE cell fields")?;
        if found != expected && Some(found) != also {
            return Err(StateError::CellExt { offset, cell, field, found, expected });
        }
    }
    Ok(())
}

/// One cell with the last position and no sequence ids: the loader asserts on more cells than it has sequences.
fn recurrent_head<R: BufRead>(
    input: &mut Input<R>,
    section: &SectionLayout,
    n_states: Option<u32>,
) -> Result<Cells, StateError> {
    let kind = section.kind;
    let offset = input.offset();
    let found = input.u32("cell count")?;
    if found != 1 {
        return Err(StateError::CellCount { offset, section: kind, found, min: 1, max: 1 });
    }
    let offset = input.offset();
    let found = input.i32("position")?;
    let last = n_states.map_or(found, |n| n as i32 - 1);
    if found != last || !(0..i32::MAX).contains(&found) {
        return Err(StateError::Position { offset, section: kind, cell: 0, found, expected: last.max(0) });
    }
    seq_ids(input, kind, 0, 0)?;

    let offset = input.offset();
    let transposed = input.u32("S transposition flag")?;
    if transposed != 0 {
        return Err(StateError::Transposed { offset, section: kind, found: transposed });
    }
    layer_count(input, section)?;
    Ok(Cells { start: found as u32, count: 1, first: found as u32 })
}

fn layer_count<R: BufRead>(input: &mut Input<R>, section: &SectionLayout) -> Result<(), StateError> {
    let offset = input.offset();
    let found = input.u32("layer count")?;
    if found != section.n_layer {
        return Err(StateError::LayerCount { offset, section: section.kind, found, expected: section.n_layer });
    }
    Ok(())
}

/// The two fields that came with version 4; here a copy gains or loses them.
fn rotation<R: BufRead>(input: &mut Input<R>, plan: &Plan, section: &SectionLayout) -> Result<(), StateError> {
    let fields = [("n_rot_k", section.n_rot_k), ("n_rot_v", section.n_rot_v)];
    for (field, expected) in fields {
        if plan.version >= VERSION_ROTATION {
            let offset = input.offset();
            let found = u32::from_le_bytes(input.array_uncopied(field)?);
            if found != expected {
                return Err(StateError::Rotation { offset, section: section.kind, field, found, expected });
            }
        }
        if plan.to >= VERSION_ROTATION {
            input.insert(&expected.to_le_bytes())?;
        }
    }
    Ok(())
}

fn block_head<R: BufRead>(input: &mut Input<R>, id: BlockId, row: Row, cells: Cells) -> Result<Block, StateError> {
    let offset = input.offset();
    let found = input.i32("type")?;
    if found != row.ty.number {
        return Err(StateError::Type { offset, block: id, found, expected: row.ty.number });
    }
    let offset = input.offset();
    let found = input.u64("row size")?;
    if found != row.bytes {
        return Err(StateError::RowSize { offset, block: id, found, expected: row.bytes });
    }
    let bytes = row.bytes.saturating_mul(cells.count.into());
    input.need(bytes, "rows")?;
    Ok(Block { id, row, cells, offset: input.offset() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turned_cells() {
        let cells = Cells { start: 8, count: 4, first: 10 };
        let positions: Vec<u32> = (0..4).map(|i| cells.position(i)).collect();
        assert_eq!(positions, [10, 11, 8, 9]);
        for (index, position) in positions.into_iter().enumerate() {
            assert_eq!(cells.index(position), Some(index as u32));
        }
        assert_eq!((cells.index(7), cells.index(12)), (None, None));
    }
}
