//! A sequence's state, as a file is: of one stream, whatever the context has, its cells in order.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use crate::llama::{Context, SeqId, Token};
use crate::state::{Layout, SectionKind, single_stream, sort_windows};

/// Writes the sequence's state to a file. Returns bytes written.
pub(super) fn save(
    context: &mut Context,
    seq: SeqId,
    tokens: &[Token],
    layout: &Result<Layout, String>,
    path: &Path,
) -> Result<u64, String> {
    if context.n_streams() == 1 && !has_window(layout) {
        return context.save_state(seq, tokens, path).map_err(|err| err.to_string());
    }
    let file = File::create(path).map_err(|err| err.to_string())?;
    write(context, seq, tokens, layout, BufWriter::new(file))
}

/// The bytes that [`save`] writes.
pub(super) fn bytes(
    context: &mut Context,
    seq: SeqId,
    tokens: &[Token],
    layout: &Result<Layout, String>,
) -> Result<Vec<u8>, String> {
    if context.n_streams() == 1 && !has_window(layout) {
        return context.state_bytes(seq, tokens).map_err(|err| err.to_string());
    }
    let mut file = Vec::new();
    let size = usize::try_from(context.state_size(seq)).unwrap_or(usize::MAX);
    let size = size.saturating_add(4 * tokens.len());
    file.try_reserve_exact(size).map_err(|_| format!("no memory for a state of {size} bytes"))?;
    write(context, seq, tokens, layout, &mut file)?;
    Ok(file)
}

fn write(
    context: &mut Context,
    seq: SeqId,
    tokens: &[Token],
    layout: &Result<Layout, String>,
    mut writer: impl Write,
) -> Result<u64, String> {
    let layout = layout.as_ref().map_err(Clone::clone)?;
    let (own, n_streams) = (u32::try_from(seq.0).unwrap_or(0), context.n_streams());
    let own = own.min(n_streams - 1);
    let mut state = context.state_bytes(seq, tokens).map_err(|err| err.to_string())?;
    sort_windows(&mut state, layout, n_streams, own);
    let n_bytes = single_stream(&state, layout, n_streams, own, &mut writer).map_err(|err| err.to_string())?;
    writer.flush().map_err(|err| err.to_string())?;
    Ok(n_bytes)
}

fn has_window(layout: &Result<Layout, String>) -> bool {
    layout.as_ref().is_ok_and(|layout| layout.sections.iter().any(|section| section.kind == SectionKind::Window))
}
