//! What every state file of one model looks like, learnt from one of them.

use std::fmt;
use std::io::Cursor;

use super::check::{Expect, check};
use super::convert::single_stream;
use super::error::StateError;
use super::ggml_type::{GgmlType, type_name};
use super::header;
use super::input::Input;
use super::inspect::SectionReport;
use super::structure::{self, Guess};
use super::walk::Streams;

/// What the caller knows of the model and of the linked llama.cpp; the rest is read from the sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelFacts {
    /// `llama_model_is_recurrent`.
    pub is_recurrent: bool,
    /// `llama_model_is_hybrid`.
    pub is_hybrid: bool,
    /// `llama_model_n_layer`. Layers of a sliding-window model are split between its two sections, those of a model
    /// with an indexer cache are not: this number tells the two apart.
    pub n_layer: u32,
    /// `llama_model_n_swa`, 0 without a sliding window.
    pub n_swa: u32,
    /// The window is a chunk (positions from the last multiple of `n_swa`), as in llama4; else the last `n_swa`
    /// positions. llama.h does not tell: it is so for `general.architecture` = `llama4`.
    pub swa_chunked: bool,
    /// `LLAMA_STATE_SEQ_VERSION` of the linked llama.cpp.
    pub native: u32,
    /// Streams of the context that saved the sample, which is of the first: 1 for a context of one sequence or a unified one.
    pub n_streams: u32,
}

/// The parts of a file that are the same whatever its tokens. Cell counts are not part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// The state version this layout was learnt in, and that the linked llama.cpp reads.
    pub native: u32,
    /// Window of the sliding-window section, in positions.
    pub n_swa: u32,
    /// See [`ModelFacts::swa_chunked`].
    pub swa_chunked: bool,
    /// In file order.
    pub sections: Vec<SectionLayout>,
}

/// One memory of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SectionLayout {
    /// Which memory.
    pub kind: SectionKind,
    /// Cells hold 12 bytes of M-RoPE `x, y, tok`.
    pub cell_ext: bool,
    /// Size of K's attention rotation, 0 without.
    pub n_rot_k: u32,
    /// Size of V's attention rotation, 0 without.
    pub n_rot_v: u32,
    /// The `n_layer` field. Attention counts its own layers, recurrent all of the model's.
    pub n_layer: u32,
    /// Every tensor, in file order: K of all layers then V, or R then S. Models with MLA have no V.
    pub blocks: Vec<BlockShape>,
}

/// One tensor of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockShape {
    /// Which.
    pub id: BlockId,
    /// Its rows.
    pub row: Row,
}

/// One cell's row of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// Type of the values.
    pub ty: GgmlType,
    /// Bytes, a whole number of `ty`'s blocks.
    pub bytes: u64,
}

/// Names a tensor in messages and reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockId {
    /// The memory it is in.
    pub section: SectionKind,
    /// Which of the layer's tensors.
    pub tensor: Tensor,
    /// Counts the section's layers that have one, from 0: in models whose layers are of several kinds not the
    /// model's own layer number.
    pub layer: u32,
}

/// The memories a file can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SectionKind {
    /// `llama_kv_cache` with every position.
    Attention,
    /// The second `llama_kv_cache` of a sliding-window model.
    Window,
    /// `llama_memory_recurrent`: one state, of the last position.
    Recurrent,
}

/// The tensors a layer can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Tensor {
    /// Keys.
    K,
    /// Values.
    V,
    /// Recurrent: convolution or token-shift state.
    R,
    /// Recurrent: the state proper.
    S,
}

impl fmt::Display for SectionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SectionKind::Attention => "attention",
            SectionKind::Window => "sliding-window attention",
            SectionKind::Recurrent => "recurrent",
        })
    }
}

impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

impl fmt::Display for BlockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of layer {} ({})", self.tensor, self.layer, self.section)
    }
}

impl ModelFacts {
    /// Of a model of `n_layer` layers with attention to all positions, in a context of one stream.
    pub const fn attention(n_layer: u32, native: u32) -> Self {
        let (is_recurrent, is_hybrid, swa_chunked) = (false, false, false);
        Self { is_recurrent, is_hybrid, n_layer, n_swa: 0, swa_chunked, native, n_streams: 1 }
    }
}

impl Layout {
    /// Learns from a state file that this very llama.cpp saved, of a short sequence of text tokens (one is enough),
    /// with its ids in the header and all of them evaluated.
    ///
    /// `UnsupportedMemory` when the file is none of: attention, attention with a sliding window, recurrent, or
    /// attention (either kind) and recurrent.
    pub fn learn(sample: &[u8], facts: &ModelFacts) -> Result<Layout, StateError> {
        let mut reader = Cursor::new(sample);
        let header = header::read_header(&mut reader, sample.len() as u64)?;
        if header.version != facts.native || !(header::VERSION_CELL_TOKEN..=header::VERSION_MAX).contains(&facts.native)
        {
            return Err(StateError::Version { found: header.version, native: facts.native });
        }
        reader.set_position(0);
        let mut input = Input::new(&mut reader, sample.len() as u64);
        let fits = |guess: &Guess| {
            guess.recurrent == (facts.is_recurrent || facts.is_hybrid)
                && (guess.n_attention == 0) == facts.is_recurrent
                && (guess.n_attention < 2 || facts.n_swa > 0)
        };
        let streams = Streams { count: facts.n_streams.max(1), own: 0 };
        let sections = structure::read(&mut input, &header, streams, fits).map_err(unsupported)?;
        let layout = Layout {
            native: facts.native,
            n_swa: facts.n_swa,
            swa_chunked: facts.swa_chunked,
            sections: sections.into_iter().map(SectionLayout::from).collect(),
        };
        if layout.has_indexer(facts.n_layer) {
            return Err(StateError::UnsupportedMemory { reason: "it has an indexer cache" });
        }
        // what a layout does not say (order of cells, M-RoPE fields) must hold for the sample as well
        let mut file = Vec::new();
        single_stream(sample, &layout, streams.count, streams.own, &mut file)?;
        let expect = Expect { ids: &header.ids, n_states: header.ids.len(), n_ctx: u32::MAX, scan: false };
        match check(&mut &file[..], file.len() as u64, &layout, &expect) {
            Ok(_) => Ok(layout),
            Err(_) => Err(StateError::UnsupportedMemory { reason: "its cells are not in the order of the tokens" }),
        }
    }

    /// Why files of state version `from` can't become files of version `to`, if they can't.
    ///
    /// The versions differ in the M-RoPE cells and in the rotation of quantized caches; without both they mean the
    /// same.
    pub fn inconvertible(&self, from: u32, to: u32) -> Option<&'static str> {
        if from == to {
            return None;
        }
        let sections = || self.sections.iter();
        if sections().any(|s| s.cell_ext) {
            Some("M-RoPE cells")
        } else if sections().any(|s| s.blocks.iter().any(|b| !b.row.ty.is_float())) {
            Some("quantized cache")
        } else if sections().any(|s| s.n_rot_k != 0 || s.n_rot_v != 0) {
            Some("rotated cache")
        } else {
            None
        }
    }

    /// The first position a sliding-window section must hold to continue after position `n - 1`.
    pub(super) fn window_start(&self, n: u32) -> u32 {
        match (self.n_swa, self.swa_chunked) {
            (0, _) => 0,
            (n_swa, true) => n.saturating_sub(1) / n_swa * n_swa,
            (n_swa, false) => n.saturating_sub(n_swa),
        }
    }

    /// A window section's layers are not among the attention section's; an indexer cache's are.
    fn has_indexer(&self, n_layer: u32) -> bool {
        let layers = |kind| self.sections.iter().filter(move |s| s.kind == kind).map(|s| s.n_layer).sum::<u32>();
        let n_window = layers(SectionKind::Window);
        n_window > 0 && layers(SectionKind::Attention) + n_window > n_layer
    }
}

impl SectionLayout {
    /// Bytes of a cell of a sequence's state in an attention section: position, sequence id count, M-RoPE fields, sequence id.
    pub(super) fn cell_bytes(&self) -> u32 {
        if self.cell_ext { 24 } else { 12 }
    }
}

impl Row {
    /// Whole blocks of a known type.
    pub(super) fn new(type_number: i32, bytes: u64) -> Option<Row> {
        let ty = GgmlType::from_number(type_number)?;
        bytes.is_multiple_of(ty.block_bytes.into()).then_some(Row { ty, bytes })
    }

    /// Values in the row.
    pub fn n_values(&self) -> u64 {
        self.bytes / u64::from(self.ty.block_bytes) * u64::from(self.ty.block_len)
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} x {}", self.n_values(), type_name(self.ty.number))
    }
}

impl From<SectionReport> for SectionLayout {
    fn from(section: SectionReport) -> Self {
        let [n_rot_k, n_rot_v] = section.rotation.unwrap_or_default();
        SectionLayout {
            kind: section.kind,
            cell_ext: section.cell_ext_bytes > 0,
            n_rot_k,
            n_rot_v,
            n_layer: section.n_layer,
            blocks: section.blocks,
        }
    }
}

/// Of the engine's own file there is no use in saying at which byte it became strange.
fn unsupported(error: StateError) -> StateError {
    let reason = match error {
        StateError::Read { .. } => return error,
        StateError::Transposed { .. } => "V is stored transposed (flash attention is off)",
        // more than LLAMA_MAX_SEQ is not a stream count but another kind of memory
        StateError::Streams { found: 1..=256, .. } => "its context has another number of streams than it should",
        _ => "a short sequence of it reads as none of the known ones",
    };
    StateError::UnsupportedMemory { reason }
}
