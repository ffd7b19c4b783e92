//! The cells of a window in the order of their positions.

use super::header::{self, VERSION_ROTATION};
use super::layout::{Layout, SectionKind, SectionLayout};

/// Puts the cells of windows in order, in a state that the engine's own context saved, of stream `own` of `n_streams`.
///
/// llama.cpp writes cells by index. A window that was loaded when its ring had gone round, and then continued, is not in one
/// piece any more: first the cells that were loaded, in their file's order, then the new ones. What is no state of the layout
/// stays as it is.
pub fn sort_windows(state: &mut [u8], layout: &Layout, n_streams: u32, own: u32) {
    let Ok(header) = header::read_header(&mut &*state, state.len() as u64) else { return };
    let Ok(mut at) = usize::try_from(header.body_offset) else { return };
    for section in layout.sections.iter().filter(|section| section.kind != SectionKind::Recurrent) {
        at += 4 + 4 * own as usize;
        let Some(end) = sort_section(state, at, section, layout.native) else { return };
        at = end + 4 * n_streams.saturating_sub(own + 1) as usize;
    }
}

/// `at` is where the cell count stands. Gives the end of the section's last tensor.
fn sort_section(state: &mut [u8], mut at: usize, section: &SectionLayout, native: u32) -> Option<usize> {
    let n_cells = word(state, at)? as usize;
    let cell_bytes = section.cell_bytes() as usize;
    at += 4;
    let mut order: Vec<usize> = (0..n_cells).filter(|cell| at + cell * cell_bytes < state.len()).collect();
    order.sort_by_key(|cell| word(state, at + cell * cell_bytes).unwrap_or(u32::MAX));
    let needs_sort = section.kind == SectionKind::Window && !order.is_sorted();
    let mut next = |at: &mut usize, unit: usize| {
        let bytes = state.get_mut(*at..)?.get_mut(..unit.checked_mul(n_cells)?)?;
        if needs_sort {
            permute(bytes, unit, &order);
        }
        *at += bytes.len();
        Some(())
    };
    next(&mut at, cell_bytes)?;
    // the transposition flag, the layer count, and the rotations
    at += if native >= VERSION_ROTATION { 16 } else { 8 };
    for block in &section.blocks {
        // type and row size
        at += 12;
        next(&mut at, usize::try_from(block.row.bytes).ok()?)?;
    }
    Some(at)
}

fn word(state: &[u8], at: usize) -> Option<u32> {
    state.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

/// `order` says which of the old units comes at each place.
fn permute(bytes: &mut [u8], unit: usize, order: &[usize]) {
    if unit == 0 {
        return;
    }
    let old = bytes.to_vec();
    let units = bytes.chunks_exact_mut(unit).zip(order);
    units.for_each(|(new, from)| new.copy_from_slice(&old[from * unit..(from + 1) * unit]));
}
