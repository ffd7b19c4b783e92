//! Reads the memory of a file without a layout, by trying what it could be.
//!
//! A file does not say which memories it holds, whether V is there, or whether cells are extended. A wrong guess
//! fails soon, on a number that can't be; only a guess that ends exactly where the file does counts.

use std::io::{BufRead, Seek};

use super::error::StateError;
use super::header::{Header, VERSION_CELL_TOKEN, VERSION_ROTATION};
use super::input::Input;
use super::inspect::SectionReport;
use super::layout::{BlockId, BlockShape, Layout, Row, SectionKind, Tensor};
use super::walk::{Streams, empty_streams, stream_count};

/// Twice `LLAMA_MAX_LAYERS` (`llama-hparams.h`): more is a misread number.
const MAX_LAYERS: u32 = 1024;

/// What a file might hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Guess {
    /// Attention sections: 2 with a sliding window.
    pub n_attention: u8,
    /// V follows K; MLA models have none.
    pub has_v: bool,
    pub cell_ext_bytes: u32,
    pub recurrent: bool,
}

impl Guess {
    /// The sections are those of the layout; anything else may differ.
    pub fn is_of(&self, layout: &Layout) -> bool {
        let n = |kind| layout.sections.iter().filter(|s| s.kind == kind).count();
        let n_attention = n(SectionKind::Attention) + n(SectionKind::Window);
        usize::from(self.n_attention) == n_attention && self.recurrent == (n(SectionKind::Recurrent) > 0)
    }
}

/// Every combination a file of this state version could be.
fn guesses(version: u32) -> impl Iterator<Item = Guess> {
    let cell_ext_bytes = if version >= VERSION_CELL_TOKEN { 12 } else { 8 };
    let attention = [1, 2].into_iter().flat_map(move |n_attention| {
        [false, true].into_iter().flat_map(move |recurrent| {
            [true, false].into_iter().flat_map(move |has_v| {
                [0, cell_ext_bytes].map(move |cell_ext_bytes| Guess { n_attention, has_v, cell_ext_bytes, recurrent })
            })
        })
    });
    let recurrent = Guess { n_attention: 0, has_v: false, cell_ext_bytes: 0, recurrent: true };
    attention.chain([recurrent])
}

/// The sections of the one guess among those that `fits` which reads to the end; else the most telling error.
pub(super) fn read<R: BufRead + Seek>(
    input: &mut Input<R>,
    header: &Header,
    streams: Streams,
    fits: impl Fn(&Guess) -> bool,
) -> Result<Vec<SectionReport>, StateError> {
    let mut found = None;
    let mut best = (false, 0);
    let mut telling = StateError::UnsupportedMemory { reason: "nothing fits" };
    for guess in guesses(header.version).filter(fits) {
        input.go_to(header.body_offset)?;
        match read_guess(input, header.version, streams, guess) {
            Ok(_) if found.is_some() => return Err(StateError::Ambiguous { offset: header.body_offset }),
            Ok(sections) => found = Some(sections),
            Err(error @ StateError::Read { .. }) => return Err(error),
            Err(error) => {
                // the guess that came farthest was the least wrong, but V's set transposition flag explains everything
                let transposed = matches!(&error, StateError::Transposed { found: 1, section, .. }
                    if *section != SectionKind::Recurrent);
                let rank = (transposed, input.offset());
                if rank > best {
                    (best, telling) = (rank, error);
                }
            }
        }
    }
    found.ok_or(telling)
}

fn read_guess<R: BufRead + Seek>(
    input: &mut Input<R>,
    version: u32,
    streams: Streams,
    guess: Guess,
) -> Result<Vec<SectionReport>, StateError> {
    let mut sections = Vec::new();
    for kind in [SectionKind::Attention, SectionKind::Window].into_iter().take(guess.n_attention.into()) {
        sections.push(attention(input, version, streams, guess, kind)?);
    }
    if guess.recurrent {
        sections.push(recurrent(input)?);
    }
    if input.left() > 0 {
        return Err(StateError::Trailing { offset: input.offset(), extra: input.left() });
    }
    Ok(sections)
}

fn attention<R: BufRead + Seek>(
    input: &mut Input<R>,
    version: u32,
    streams: Streams,
    guess: Guess,
    kind: SectionKind,
) -> Result<SectionReport, StateError> {
    let mut section = SectionReport::at(input.offset(), kind);
    stream_count(input, kind, streams)?;
    section.cell_ext_bytes = guess.cell_ext_bytes;
    cells(input, &mut section, 1)?;

    let offset = input.offset();
    let found = input.u32("V transposition flag")?;
    if found != 0 {
        return Err(StateError::Transposed { offset, section: kind, found });
    }
    section.n_layer = layer_count(input, kind)?;
    if version >= VERSION_ROTATION {
        section.rotation = Some([input.u32("n_rot_k")?, input.u32("n_rot_v")?]);
    }
    for tensor in [Tensor::K, Tensor::V].into_iter().take(1 + usize::from(guess.has_v)) {
        for layer in 0..section.n_layer {
            block(input, &mut section, tensor, layer)?;
        }
    }
    empty_streams(input, kind, streams.count - 1 - streams.own)?;
    section.bytes = input.offset() - section.offset;
    Ok(section)
}

/// Last in a file: how many layers have a state is not said, so it takes what is there.
fn recurrent<R: BufRead + Seek>(input: &mut Input<R>) -> Result<SectionReport, StateError> {
    let mut section = SectionReport::at(input.offset(), SectionKind::Recurrent);
    cells(input, &mut section, 0)?;
    let offset = input.offset();
    let found = input.u32("S transposition flag")?;
    if found != 0 {
        return Err(StateError::Transposed { offset, section: section.kind, found });
    }
    section.n_layer = layer_count(input, section.kind)?;
    let mut n_blocks = 0;
    while input.left() > 0 {
        if n_blocks == 2 * section.n_layer {
            return Err(StateError::Trailing { offset: input.offset(), extra: input.left() });
        }
        block(input, &mut section, Tensor::R, n_blocks)?;
        n_blocks += 1;
    }
    // the second half is S; all layers have the same sizes (n_embd_r and n_embd_s)
    let n_states = n_blocks / 2;
    let (r, s) = section.blocks.split_at_mut(n_states as usize);
    for block in &mut *s {
        block.id.tensor = Tensor::S;
        block.id.layer -= n_states;
    }
    let uniform = |blocks: &[BlockShape]| blocks.windows(2).all(|w| w[0].row == w[1].row);
    if r.len() != s.len() || !uniform(r) || !uniform(s) {
        return Err(StateError::UnsupportedMemory { reason: "its recurrent layers differ" });
    }
    section.bytes = input.offset() - section.offset;
    Ok(section)
}

fn cells<R: BufRead + Seek>(
    input: &mut Input<R>,
    section: &mut SectionReport,
    n_seq_id: u32,
) -> Result<(), StateError> {
    let count_offset = input.offset();
    section.n_cells = input.u32("cell count")?;
    let rest = u64::from(section.cell_ext_bytes) + 4 * u64::from(n_seq_id);
    input.need(u64::from(section.n_cells) * (8 + rest), "cells")?;
    if section.n_cells == 0 {
        return Err(StateError::CellCount {
            offset: count_offset,
            section: section.kind,
            found: 0,
            min: 1,
            max: u32::MAX,
        });
    }
    let mut previous = None;
    for cell in 0..section.n_cells {
        let offset = input.offset();
        let pos = input.i32("position")?;
        let found = input.u32("sequence id count")?;
        if found != n_seq_id {
            return Err(StateError::SeqIds {
                offset: offset + 4,
                section: section.kind,
                cell,
                found,
                expected: n_seq_id,
            });
        }
        input.jump(rest, "cell")?;
        section.in_order &= previous.is_none_or(|before: i32| before.checked_add(1) == Some(pos));
        section.pos_min = previous.map_or(pos, |_| section.pos_min.min(pos));
        section.pos_max = previous.map_or(pos, |_| section.pos_max.max(pos));
        previous = Some(pos);
    }
    Ok(())
}

fn layer_count<R: BufRead>(input: &mut Input<R>, section: SectionKind) -> Result<u32, StateError> {
    let offset = input.offset();
    let found = input.u32("layer count")?;
    if found > MAX_LAYERS {
        return Err(StateError::LayerCount { offset, section, found, expected: MAX_LAYERS });
    }
    Ok(found)
}

fn block<R: BufRead + Seek>(
    input: &mut Input<R>,
    section: &mut SectionReport,
    tensor: Tensor,
    layer: u32,
) -> Result<(), StateError> {
    let id = BlockId { section: section.kind, tensor, layer };
    let offset = input.offset();
    let type_number = input.i32("type")?;
    let bytes = input.u64("row size")?;
    let Some(row) = Row::new(type_number, bytes) else {
        return Err(StateError::UnknownRow { offset, block: id, type_number, bytes });
    };
    let rows = bytes.saturating_mul(section.n_cells.into());
    input.jump(rows, "rows")?;
    section.blocks.push(BlockShape { id, row });
    Ok(())
}
