//! From one state version to another, for the files whose meaning does not change.

use std::io::{BufRead, Write};

use super::check::check_version;
use super::error::StateError;
use super::header;
use super::input::Input;
use super::layout::Layout;
use super::walk::{Plan, Streams, walk};

/// Writes a file of `len` bytes again in state version `to`; gives the bytes written.
///
/// Files of versions 2 to 4 become files of version 3 or 4 where [`Layout::inconvertible`] has no objection. The
/// structure is checked on the way, whatever the ids and values; on an error what was written is to be thrown away.
/// For a file that has to be right as well see [`check_and_convert`](super::check_and_convert).
pub fn convert(
    reader: &mut impl BufRead,
    len: u64,
    layout: &Layout,
    to: u32,
    writer: &mut impl Write,
) -> Result<u64, StateError> {
    let mut input = Input::copying(reader, len, writer);
    header::begin_copy(&mut input, to)?;
    let header = header::read_from(&mut input)?;
    check_version(header.version, to, layout)?;
    let plan = Plan {
        layout,
        version: header.version,
        to,
        ids: &header.ids,
        n_states: None,
        n_ctx: u32::MAX,
        streams: Streams::ONE,
    };
    walk(&mut input, &plan, |input, block| input.skip(block.bytes(), "rows"))?;
    input.flush()?;
    Ok(input.written())
}

/// Writes a state that the engine's own context saved again as one of a single stream, which is what files are. `n_streams`
/// and `own` are the context's streams and which of them was saved; gives the bytes written.
pub fn single_stream(
    state: &[u8],
    layout: &Layout,
    n_streams: u32,
    own: u32,
    writer: &mut impl Write,
) -> Result<u64, StateError> {
    let mut reader = state;
    let mut input = Input::copying(&mut reader, state.len() as u64, writer);
    header::begin_copy(&mut input, layout.native)?;
    let header = header::read_from(&mut input)?;
    let count = n_streams.max(1);
    let streams = Streams { count, own: own.min(count - 1) };
    let (version, to) = (header.version, layout.native);
    check_version(version, to, layout)?;
    let plan = Plan { layout, version, to, ids: &header.ids, n_states: None, n_ctx: u32::MAX, streams };
    walk(&mut input, &plan, |input, block| input.skip(block.bytes(), "rows"))?;
    input.flush()?;
    Ok(input.written())
}
