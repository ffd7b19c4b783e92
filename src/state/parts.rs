//! A file's memory as a context wants it.

use std::borrow::Cow;
use std::ops::Range;

use super::check::Checked;
use super::layout::{Layout, SectionKind, SectionLayout};
use super::walk::{Block, Cells, Span};

impl Checked {
    /// What llama.cpp's loader is to read, in slices of `file`, the one that was checked (or its copy). Two things differ
    /// from it: a context of `n_streams` streams wants a cell count for each, of which the others' are 0; and of a window no
    /// more than the window is given, because the context's own cache has room for little more.
    ///
    /// `None` when it is not that file.
    pub fn parts<'a>(&self, file: &'a [u8], layout: &Layout, n_streams: u32) -> Option<Vec<Cow<'a, [u8]>>> {
        let mut parts = Vec::new();
        for (span, section) in self.sections.iter().zip(&layout.sections) {
            if span.kind == SectionKind::Recurrent {
                parts.push(slice(file, span.bytes.start, span.bytes.end)?.into());
                continue;
            }
            parts.push(n_streams.to_le_bytes().to_vec().into());
            let blocks = self.blocks.iter().filter(|block| block.id.section == span.kind);
            attention(&mut parts, file, layout, (span, section), blocks)?;
            parts.push(vec![0; 4 * n_streams.saturating_sub(1) as usize].into());
        }
        Some(parts)
    }
}

fn attention<'a, 'b>(
    parts: &mut Vec<Cow<'a, [u8]>>,
    file: &'a [u8],
    layout: &Layout,
    (span, section): (&Span, &SectionLayout),
    blocks: impl Iterator<Item = &'b Block>,
) -> Option<()> {
    let cells = span.cells;
    let first = match span.kind {
        SectionKind::Window => layout.window_start(cells.start + cells.count),
        _ => 0,
    };
    let kept = kept(cells, first);
    let n_kept: u32 = kept.iter().map(|run| run.end - run.start).sum();
    parts.push(n_kept.to_le_bytes().to_vec().into());
    let cell_bytes = section.cell_bytes().into();
    // behind the stream count and the cell count
    let mut at = span.bytes.start + 8;
    let rows = |at: u64, bytes: u64| {
        let run =
            move |run: &Range<u32>| slice(file, at + bytes * u64::from(run.start), at + bytes * u64::from(run.end));
        kept.iter().map(run).map(|rows| rows.map(Cow::from)).collect::<Option<Vec<_>>>()
    };
    parts.extend(rows(at, cell_bytes)?);
    at += cell_bytes * u64::from(cells.count);
    for block in blocks {
        parts.push(slice(file, at, block.offset)?.into());
        parts.extend(rows(block.offset, block.row.bytes)?);
        at = block.offset + block.bytes();
    }
    parts.push(slice(file, at, span.bytes.end)?.into());
    Some(())
}

/// The cells that hold positions from `first` on: one run of them, or two where they go round.
fn kept(cells: Cells, first: u32) -> Vec<Range<u32>> {
    let mut runs: Vec<Range<u32>> = Vec::new();
    for index in (0..cells.count).filter(|&index| cells.position(index) >= first) {
        match runs.last_mut() {
            Some(run) if run.end == index => run.end += 1,
            _ => runs.push(index..index + 1),
        }
    }
    runs
}

fn slice(file: &[u8], start: u64, end: u64) -> Option<&[u8]> {
    file.get(usize::try_from(start).ok()?..usize::try_from(end).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_cells_are_kept() {
        let runs = |of: u32, first| {
            let runs = kept(Cells { start: 8, count: 6, first: of }, first);
            runs.into_iter().map(|run| (run.start, run.end)).collect::<Vec<_>>()
        };
        assert_eq!(runs(8, 0), [(0, 6)]);
        assert_eq!(runs(8, 11), [(3, 6)]);
        // 12, 13, 8, 9, 10, 11
        assert_eq!(runs(12, 11), [(0, 2), (5, 6)]);
        assert_eq!(runs(12, 8), [(0, 6)]);
        assert_eq!(runs(8, 99), []);
    }
}
