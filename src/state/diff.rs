//! Two files of one model, tensor by tensor.

use std::io::{BufRead, Seek};
use std::ops::Range;

use super::error::StateError;
use super::ggml_type::dequantize;
use super::header;
use super::input::Input;
use super::layout::{BlockId, Layout, Row};
use super::walk::{Block, Plan, Streams, walk};

/// How two files differ.
#[derive(Debug, Clone, PartialEq)]
pub struct Diff {
    /// One for each tensor, in file order.
    pub blocks: Vec<BlockDiff>,
}

/// How one tensor differs.
#[derive(Debug, Clone, PartialEq)]
pub struct BlockDiff {
    /// Which tensor.
    pub id: BlockId,
    /// Its rows.
    pub row: Row,
    /// Positions compared, those that both files hold; empty where there is none.
    pub positions: Range<u32>,
    /// The compared rows are the same bytes.
    pub same_bytes: bool,
    /// `|a - b| / |a|` of the rows of each of up to [`SPANS`] equal spans of `positions`: where the error lies. Empty
    /// without `errors`.
    pub spans: Vec<f64>,
    /// `None` for types that are not decoded here (see [`dequantize`]), or when nothing was compared.
    pub errors: Option<Errors>,
}

/// Of the values of file B against those of A.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Errors {
    /// Largest `|a - b|`; infinite when a value of either is not finite.
    pub max_abs: f64,
    /// Mean of `|a - b|`.
    pub mean_abs: f64,
    /// `|a - b| / |a|` of all rows as one vector; 0 when they are equal, infinite when only A is zero or one is not
    /// finite.
    pub relative_l2: f64,
    /// Cosine between A's and B's rows as one vector; 1 when they are equal, 0 when one is zero or not finite.
    pub cosine: f64,
    /// The factor `g` for which `g * a` comes closest to `b` (least squares, `<a, b> / <a, a>`). Rounding has no
    /// direction and leaves it at 1; a scale that was applied twice, or not at all, is this factor. 1 when A is zero, 0
    /// when a value is not finite.
    pub gain: f64,
    /// Position of the cell that has `max_abs`.
    pub worst: u32,
}

/// The rows of one tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockRows {
    /// Which tensor.
    pub id: BlockId,
    /// Its rows.
    pub row: Row,
    /// Positions of the rows.
    pub positions: Range<u32>,
    /// The rows as they are in the file, in the order of their positions.
    pub bytes: Vec<u8>,
}

/// Compares file B with file A, at positions below `n` if that is given.
///
/// Both are files of this layout, each of any state version it can be converted from, and hold any number of
/// positions: those in both are compared. A sliding-window section holds only the last ones, a recurrent section one,
/// so there may be none. Rows are read one at a time.
pub fn diff<A: BufRead + Seek, B: BufRead + Seek>(
    (a, len_a): (&mut A, u64),
    (b, len_b): (&mut B, u64),
    layout: &Layout,
    n: Option<u32>,
) -> Result<Diff, StateError> {
    let mut a = Tensors::open(a, len_a, layout)?;
    let mut b = Tensors::open(b, len_b, layout)?;
    let mut blocks = Vec::new();
    for index in 0..a.blocks.len().min(b.blocks.len()) {
        blocks.push(diff_block(&mut a, &mut b, index, n.unwrap_or(u32::MAX))?);
    }
    Ok(Diff { blocks })
}

/// The rows of the positions below `n`, of every tensor that has some.
///
/// Holds them all: `n` times the bytes per position.
pub fn first_rows<R: BufRead + Seek>(
    reader: &mut R,
    len: u64,
    layout: &Layout,
    n: u32,
) -> Result<Vec<BlockRows>, StateError> {
    let mut file = Tensors::open(reader, len, layout)?;
    let mut all = Vec::new();
    for block in file.blocks.clone() {
        let positions = block.positions(n);
        let mut bytes = Vec::new();
        let mut row = Vec::new();
        for position in positions.clone() {
            file.row(&block, position, &mut row)?;
            bytes.extend_from_slice(&row);
        }
        if !positions.is_empty() {
            all.push(BlockRows { id: block.id, row: block.row, positions, bytes });
        }
    }
    Ok(all)
}

fn diff_block<A: BufRead + Seek, B: BufRead + Seek>(
    a: &mut Tensors<A>,
    b: &mut Tensors<B>,
    index: usize,
    n: u32,
) -> Result<BlockDiff, StateError> {
    let (in_a, in_b) = (a.blocks[index], b.blocks[index]);
    let (of_a, of_b) = (in_a.positions(n), in_b.positions(n));
    let start = of_a.start.max(of_b.start);
    // Empty, not backwards, where the two have nothing in common.
    let positions = start..of_a.end.min(of_b.end).max(start);
    let mut same_bytes = true;
    let mut spans = Spans::over(&positions);
    let (mut row_a, mut row_b) = (Vec::new(), Vec::new());
    let (mut values_a, mut values_b) = (Vec::new(), Vec::new());
    let mut decoded = true;
    for position in positions.clone() {
        a.row(&in_a, position, &mut row_a)?;
        b.row(&in_b, position, &mut row_b)?;
        same_bytes &= row_a == row_b;
        values_a.clear();
        values_b.clear();
        decoded = dequantize(in_a.row.ty, &row_a, &mut values_a) && dequantize(in_b.row.ty, &row_b, &mut values_b);
        spans.of(position).add(&values_a, &values_b, position);
    }
    let errors = (decoded && !positions.is_empty()).then(|| spans.total().errors());
    let spans = errors.map_or_else(Vec::new, |_| spans.sums.iter().map(|sums| sums.errors().relative_l2).collect());
    Ok(BlockDiff { id: in_a.id, row: in_a.row, positions, same_bytes, spans, errors })
}

/// The most spans that an error is told for separately.
pub const SPANS: usize = 32;

/// Sums over equal parts of a range of positions.
struct Spans {
    start: u32,
    count: u32,
    sums: Vec<Sums>,
}

impl Spans {
    fn over(positions: &Range<u32>) -> Self {
        let count = positions.end - positions.start;
        Spans { start: positions.start, count, sums: vec![Sums::default(); SPANS.min(count as usize)] }
    }

    /// Those of the span that `position`, which is in the range, falls into.
    fn of(&mut self, position: u32) -> &mut Sums {
        let index = u64::from(position - self.start) * self.sums.len() as u64 / u64::from(self.count);
        &mut self.sums[index as usize]
    }

    fn total(&self) -> Sums {
        self.sums.iter().fold(Sums::default(), |total, part| total.and(part))
    }
}

/// A file whose tensors have been found.
struct Tensors<'a, R> {
    input: Input<'a, R>,
    blocks: Vec<Block>,
}

impl<'a, R: BufRead + Seek> Tensors<'a, R> {
    fn open(reader: &'a mut R, len: u64, layout: &Layout) -> Result<Self, StateError> {
        let mut input = Input::new(reader, len);
        let header = header::read_from(&mut input)?;
        super::check::check_version(header.version, layout.native, layout)?;
        let version = header.version;
        let plan = Plan {
            layout,
            version,
            to: version,
            ids: &header.ids,
            n_states: None,
            n_ctx: u32::MAX,
            streams: Streams::ONE,
        };
        let mut blocks = Vec::new();
        walk(&mut input, &plan, |input, block| {
            blocks.push(*block);
            input.jump(block.bytes(), "rows")
        })?;
        Ok(Tensors { input, blocks })
    }

    fn row(&mut self, block: &Block, position: u32, row: &mut Vec<u8>) -> Result<(), StateError> {
        let index = block.cells.index(position).unwrap_or(0);
        self.input.go_to(block.offset + u64::from(index) * block.row.bytes)?;
        // `walk` has seen that the file holds this many
        row.resize(block.row.bytes as usize, 0);
        self.input.read_exact(row, "row")
    }
}

impl Block {
    /// Positions held that are below `n`.
    fn positions(&self, n: u32) -> Range<u32> {
        let end = (self.cells.start + self.cells.count).min(n);
        self.cells.start.min(end)..end
    }
}

#[derive(Clone, Copy, Default)]
struct Sums {
    n: u64,
    max_abs: f64,
    worst: u32,
    abs: f64,
    square: f64,
    aa: f64,
    bb: f64,
    ab: f64,
}

impl Sums {
    fn add(&mut self, a: &[f32], b: &[f32], position: u32) {
        self.n += a.len() as u64;
        for (a, b) in a.iter().zip(b) {
            let (a, b) = (f64::from(*a), f64::from(*b));
            let error = (a - b).abs();
            // also for inf against inf, which is NaN
            let error = if error.is_finite() { error } else { f64::INFINITY };
            if error > self.max_abs {
                (self.max_abs, self.worst) = (error, position);
            }
            self.abs += error;
            self.square += error * error;
            self.aa += a * a;
            self.bb += b * b;
            self.ab += a * b;
        }
    }

    fn and(self, other: &Sums) -> Sums {
        let (max_abs, worst) =
            if other.max_abs > self.max_abs { (other.max_abs, other.worst) } else { (self.max_abs, self.worst) };
        Sums {
            n: self.n + other.n,
            max_abs,
            worst,
            abs: self.abs + other.abs,
            square: self.square + other.square,
            aa: self.aa + other.aa,
            bb: self.bb + other.bb,
            ab: self.ab + other.ab,
        }
    }

    fn errors(&self) -> Errors {
        let norms = (self.aa * self.bb).sqrt();
        let (relative_l2, cosine) = if !self.max_abs.is_finite() {
            (f64::INFINITY, 0.0)
        } else if self.square == 0.0 {
            (0.0, 1.0)
        } else if norms == 0.0 {
            ((self.square / self.aa).sqrt(), 0.0)
        } else {
            ((self.square / self.aa).sqrt(), self.ab / norms)
        };
        let gain = match () {
            () if !self.max_abs.is_finite() => 0.0,
            () if self.square == 0.0 || self.aa == 0.0 => 1.0,
            () => self.ab / self.aa,
        };
        let mean_abs = self.abs / self.n as f64;
        Errors { max_abs: self.max_abs, mean_abs, relative_l2, cosine, gain, worst: self.worst }
    }
}
