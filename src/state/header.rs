//! Magic, version and the token area.

use std::io::BufRead;

use super::error::StateError;
use super::input::Input;

/// `LLAMA_STATE_SEQ_MAGIC`, "qsgg" on disk (`llama.h`).
pub const MAGIC: u32 = 0x6767_7371;

/// Oldest and newest `LLAMA_STATE_SEQ_VERSION` whose layout this module knows. Which one the linked llama.cpp writes is
/// never a constant here: see [`ModelFacts::native`](super::ModelFacts::native).
pub const VERSION_MIN: u32 = 2;
/// See [`VERSION_MIN`].
pub const VERSION_MAX: u32 = 4;
/// From this version on an attention section holds `n_rot_k` and `n_rot_v`.
pub(super) const VERSION_ROTATION: u32 = 4;
/// From this version on an M-RoPE cell holds `x, y, tok`; before, `x, y` or nothing.
pub(super) const VERSION_CELL_TOKEN: u32 = 3;

/// More ids than any context has; a file that claims more is refused unread.
const MAX_IDS: u32 = 1 << 24;

/// `LLAMA_TOKEN_NULL`, which no token has: llama-server marks its packed token area with it.
const TOKEN_NULL: i32 = -1;
/// `SERVER_TOKENS_STATE_VERSION` of llama-server b11434 (`server-common.cpp`).
const PACKED_VERSION: i32 = 1;
/// Where the token area begins: after magic, version and word count.
const AREA_OFFSET: u64 = 12;
/// Words of a packed area that are not ids: marker, version, id count, media count.
const PACKED_WORDS: usize = 4;

/// What stands before the memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// State version of the llama.cpp that wrote the file; any number.
    pub version: u32,
    /// The token ids.
    pub ids: Vec<i32>,
    /// The ids stood in llama-server's packed form.
    pub packed: bool,
    /// Words in the token area: `ids.len()`, 4 more when packed. What `llama_state_seq_load_file` needs as capacity.
    pub n_area: u32,
    /// Where the memory begins.
    pub body_offset: u64,
}

impl Header {
    /// Where the id with this index stands.
    pub fn id_offset(&self, index: usize) -> u64 {
        let words = if self.packed { 3 } else { 0 };
        AREA_OFFSET + 4 * (words + index as u64)
    }
}

/// Reads the header of a file of `len` bytes.
///
/// The token area is a plain list of ids, or what llama-server's `server_tokens::serialize` writes for a text prompt:
/// `-1, 1, n, id[n], 0`, where the 0 counts media chunks; with media it is refused.
pub fn read_header(reader: &mut impl BufRead, len: u64) -> Result<Header, StateError> {
    read_from(&mut Input::new(reader, len))
}

/// Magic and version of the copy that `input` makes; those of the file, read next, are left out of it.
pub(super) fn begin_copy<R: BufRead>(input: &mut Input<R>, version: u32) -> Result<(), StateError> {
    input.insert(&MAGIC.to_le_bytes())?;
    input.insert(&version.to_le_bytes())
}

/// As [`read_header`]; see [`begin_copy`].
pub(super) fn read_from<R: BufRead>(input: &mut Input<R>) -> Result<Header, StateError> {
    let found = u32::from_le_bytes(input.array_uncopied("magic")?);
    if found != MAGIC {
        return Err(StateError::Magic { found });
    }
    let version = u32::from_le_bytes(input.array_uncopied("version")?);
    let offset = input.offset();
    let n_area = input.u32("token count")?;
    input.need(u64::from(n_area) * 4, "token ids")?;
    if n_area > MAX_IDS {
        return Err(StateError::TooManyIds { offset, found: n_area, limit: MAX_IDS });
    }
    // grows with what was read: the file's length may be a lie too
    let mut area = Vec::new();
    for _ in 0..n_area {
        area.push(input.i32("token ids")?);
    }
    let packed = area.first() == Some(&TOKEN_NULL);
    let ids = if packed { unpack(&area)? } else { area };
    Ok(Header { version, ids, packed, n_area, body_offset: input.offset() })
}

/// The ids of a packed token area.
fn unpack(area: &[i32]) -> Result<Vec<i32>, StateError> {
    let wrong = |index: usize, what, found, expected| {
        Err(StateError::PackedTokens { offset: AREA_OFFSET + 4 * index as u64, what, found, expected })
    };
    if area.len() < PACKED_WORDS {
        return wrong(0, "the number of words", area.len() as i32, PACKED_WORDS as i64);
    }
    if area[1] != PACKED_VERSION {
        return wrong(1, "its version", area[1], PACKED_VERSION.into());
    }
    let ids = &area[3..area.len() - 1];
    if usize::try_from(area[2]) != Ok(ids.len()) {
        return wrong(2, "the id count", area[2], ids.len() as i64);
    }
    let n_media = area[area.len() - 1];
    if n_media != 0 {
        return wrong(area.len() - 1, "the media count", n_media, 0);
    }
    Ok(ids.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(words: &[i32]) -> Result<Header, StateError> {
        let mut file = MAGIC.to_le_bytes().to_vec();
        file.extend(4u32.to_le_bytes());
        file.extend((words.len() as u32).to_le_bytes());
        words.iter().for_each(|w| file.extend(w.to_le_bytes()));
        read_header(&mut &file[..], file.len() as u64)
    }

    #[test]
    fn plain_and_packed() {
        let plain = header(&[5, 6, 7]).unwrap();
        assert_eq!((plain.ids, plain.packed, plain.n_area, plain.body_offset), (vec![5, 6, 7], false, 3, 24));
        let packed = header(&[-1, 1, 3, 5, 6, 7, 0]).unwrap();
        assert_eq!((packed.ids, packed.packed, packed.n_area, packed.body_offset), (vec![5, 6, 7], true, 7, 40));
        assert!(header(&[]).unwrap().ids.is_empty());
        assert!(header(&[-1, 1, 0, 0]).unwrap().ids.is_empty());
    }

    #[test]
    fn packed_is_strict() {
        for (words, at) in [
            (&[-1][..], 12),
            (&[-1, 1, 0], 12),
            (&[-1, 2, 1, 5, 0], 16),
            (&[-1, 1, 2, 5, 0], 20),
            (&[-1, 1, -1, 5, 0], 20),
            (&[-1, 1, 1, 5, 6, 0], 20),
            (&[-1, 1, 1, 5, 1], 28),
        ] {
            let error = header(words).unwrap_err();
            assert!(matches!(error, StateError::PackedTokens { offset, .. } if offset == at), "{words:?}: {error}");
        }
    }

    #[test]
    fn a_claimed_count_is_not_allocated() {
        let mut file = MAGIC.to_le_bytes().to_vec();
        file.extend(4u32.to_le_bytes());
        file.extend(u32::MAX.to_le_bytes());
        let error = read_header(&mut &file[..], file.len() as u64).unwrap_err();
        assert!(matches!(error, StateError::Truncated { offset: 12, .. }), "{error}");
        // the length may lie too (a sparse file): the limit holds
        let error = read_header(&mut &file[..], 1 << 40).unwrap_err();
        assert!(matches!(error, StateError::TooManyIds { .. }), "{error}");
    }
}
