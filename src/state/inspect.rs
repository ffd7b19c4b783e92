//! What is in a file, whatever its model.

use std::io::{BufRead, Seek};

use super::error::StateError;
use super::header::{self, Header};
use super::input::Input;
use super::layout::{BlockShape, Layout, SectionKind};
use super::structure;
use super::walk::Streams;

/// A file, as far as it could be read.
#[derive(Debug)]
pub struct Report {
    /// Bytes of the file.
    pub len: u64,
    /// Version and ids.
    pub header: Header,
    /// The memories, in file order; empty when `problem` says why.
    pub sections: Vec<SectionReport>,
    /// Why the memory could not be read.
    pub problem: Option<StateError>,
}

/// One memory of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SectionReport {
    /// Which memory. Two attention sections are reported as `Attention` and `Window`; of a model with an indexer cache
    /// the second is that cache.
    pub kind: SectionKind,
    /// Where it begins.
    pub offset: u64,
    /// Its bytes.
    pub bytes: u64,
    /// Cells: positions held, or 1 for a recurrent state.
    pub n_cells: u32,
    /// Lowest position.
    pub pos_min: i32,
    /// Highest position.
    pub pos_max: i32,
    /// Each position is one more than the one before.
    pub in_order: bool,
    /// Bytes of M-RoPE extension in each cell.
    pub cell_ext_bytes: u32,
    /// `n_rot_k` and `n_rot_v`, which attention sections have since version 4.
    pub rotation: Option<[u32; 2]>,
    /// The layer count in the file: attention counts its own layers, recurrent all of the model's.
    pub n_layer: u32,
    /// Every tensor, in file order.
    pub blocks: Vec<BlockShape>,
}

impl SectionReport {
    pub(super) fn at(offset: u64, kind: SectionKind) -> Self {
        SectionReport {
            kind,
            offset,
            bytes: 0,
            n_cells: 0,
            pos_min: 0,
            pos_max: 0,
            in_order: true,
            cell_ext_bytes: 0,
            rotation: None,
            n_layer: 0,
            blocks: Vec::new(),
        }
    }
}

/// Reads a file of `len` bytes, from its start; `Err` only when even the header is not that of a state file.
///
/// The kinds of memory are found by trying them, those of `layout` first. When the file has none of them, the problem is the
/// one that `layout` has with it: a cut file of this model is not told as another model's.
pub fn inspect<R: BufRead + Seek>(reader: &mut R, len: u64, layout: Option<&Layout>) -> Result<Report, StateError> {
    let mut input = Input::new(reader, len);
    let header = header::read_from(&mut input)?;
    let own = layout.map(|layout| structure::read(&mut input, &header, Streams::ONE, |guess| guess.is_of(layout)));
    let sections = match own {
        Some(Ok(sections)) => Ok(sections),
        Some(Err(error)) => structure::read(&mut input, &header, Streams::ONE, |_| true).map_err(|_| error),
        None => structure::read(&mut input, &header, Streams::ONE, |_| true),
    };
    let (sections, problem) = match sections {
        Ok(sections) => (sections, None),
        Err(error) => (Vec::new(), Some(error)),
    };
    Ok(Report { len, header, sections, problem })
}
