//! A sequence's state, as a file is: of one stream, whatever the context has.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use crate::llama::{Context, SeqId, Token};
use crate::state::{Layout, single_stream};

/// Writes the sequence's state to a file. Returns bytes written.
pub(super) fn save(
    context: &mut Context,
    seq: SeqId,
    tokens: &[Token],
    layout: &Result<Layout, String>,
    path: &Path,
) -> Result<u64, String> {
    if context.n_streams() == 1 {
        return context.save_state(seq, tokens, path).map_err(|err| err.to_string());
    }
    let state = context.state_bytes(seq, tokens).map_err(|err| err.to_string())?;
    let mut file = BufWriter::new(File::create(path).map_err(|err| err.to_string())?);
    let n_bytes = rewrite(context, seq, &state, layout, &mut file)?;
    file.flush().map_err(|err| err.to_string())?;
    Ok(n_bytes)
}

/// The bytes that [`save`] writes.
pub(super) fn bytes(
    context: &mut Context,
    seq: SeqId,
    tokens: &[Token],
    layout: &Result<Layout, String>,
) -> Result<Vec<u8>, String> {
    let state = context.state_bytes(seq, tokens).map_err(|err| err.to_string())?;
    if context.n_streams() == 1 {
        return Ok(state);
    }
    let mut file = Vec::new();
    file.try_reserve_exact(state.len()).map_err(|_| format!("no memory for a state of {} bytes", state.len()))?;
    rewrite(context, seq, &state, layout, &mut file)?;
    Ok(file)
}

fn rewrite(
    context: &Context,
    seq: SeqId,
    state: &[u8],
    layout: &Result<Layout, String>,
    writer: &mut impl Write,
) -> Result<u64, String> {
    let layout = layout.as_ref().map_err(Clone::clone)?;
    let own = u32::try_from(seq.0).map_err(|_| "no such sequence".to_owned())?;
    single_stream(state, layout, context.n_streams(), own, writer).map_err(|err| err.to_string())
}
