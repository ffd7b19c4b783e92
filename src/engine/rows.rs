//! A proven file's rows, straight into the tensors of the KV cache.

use std::fs::File;
use std::sync::{Mutex, PoisonError};

use crate::state::{Checked, StateError};

use super::image::{Image, read_piece};

/// Reads rows when llama.cpp has a place for them, each where it stays. They are looked at there, so a copy less is made;
/// what was read is what is looked at and used.
pub(super) struct RowsInFile<'a> {
    file: &'a File,
    /// The file's fields, with a gap for the rows; their addresses are what llama.cpp's loader names them by.
    image: &'a Image,
    checked: &'a Checked,
    scan: bool,
    /// The error of the first rows that have one, and where they are.
    first_error: Mutex<Option<(u64, StateError)>>,
}

impl<'a> RowsInFile<'a> {
    pub fn new(file: &'a File, image: &'a Image, checked: &'a Checked, scan: bool) -> Self {
        Self { file, image, checked, scan, first_error: Mutex::default() }
    }

    /// Reads the rows that have their place at `address` in the image.
    pub fn read(&self, address: usize, to: &mut [u8]) -> bool {
        let offset = address.checked_sub(self.image.bytes().as_ptr().addr());
        let Some(piece) = offset.and_then(|offset| self.checked.rows(offset as u64, to.len())) else { return false };
        let Err(error) = read_piece(self.file, &piece, self.scan, to) else { return true };
        let mut first = self.first_error.lock().unwrap_or_else(PoisonError::into_inner);
        if first.as_ref().is_none_or(|(before, _)| piece.offset < *before) {
            *first = Some((piece.offset, error));
        }
        false
    }

    /// What was wrong, if anything was.
    pub fn into_error(self) -> Option<StateError> {
        let first = self.first_error.into_inner().unwrap_or_else(PoisonError::into_inner);
        first.map(|(_, error)| error)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::state::{self, Expect, Layout, ModelFacts};

    const FILE: &[u8] = include_bytes!("../../tests/fixtures/tiny-llama-40.v4.state");

    fn checked() -> Checked {
        let layout = Layout::learn(FILE, &ModelFacts::attention(3, 4)).unwrap();
        let ids: Vec<i32> = (0..40).map(|i| (37 * i + 11) % 256).collect();
        let expect = Expect { ids: &ids, n_states: 40, n_ctx: 1024, scan: true };
        state::check(&mut &*FILE, FILE.len() as u64, &layout, &expect).unwrap()
    }

    /// Reads these many bytes at these offsets of `file`, whose fields are those of [`FILE`]: which could be read, and the error.
    fn read(file: &[u8], scan: bool, places: &[(u64, usize)]) -> (Vec<bool>, Option<StateError>) {
        let mut on_disk = tempfile::tempfile().unwrap();
        on_disk.write_all(file).unwrap();
        let (image, checked) = (Image::unread(FILE.len() as u64).unwrap(), checked());
        let rows = RowsInFile::new(&on_disk, &image, &checked, scan);
        let start = image.bytes().as_ptr().addr();
        let good = places.iter().map(|(offset, len)| {
            let mut bytes = vec![0xaa; *len];
            let is_good = rows.read(start + usize::try_from(*offset).unwrap(), &mut bytes);
            assert!(!is_good || file[usize::try_from(*offset).unwrap()..].starts_with(&bytes));
            is_good
        });
        (good.collect(), rows.into_error())
    }

    /// Where rows stand: the pieces of the file that have some.
    fn blocks() -> Vec<(u64, usize)> {
        let checked = checked();
        let pieces = checked.pieces(FILE.len() as u64);
        pieces.iter().filter(|piece| piece.has_rows()).map(|piece| (piece.offset, piece.len)).collect()
    }

    #[test]
    fn rows_and_parts_of_rows_are_read() {
        let blocks = blocks();
        let (offset, len) = blocks[1];
        let places = [blocks.clone(), vec![(offset + 2, len - 2), (offset, 2), (offset + len as u64 - 2, 2)]].concat();
        let (good, error) = read(FILE, true, &places);
        assert!(good.iter().all(|good| *good) && error.is_none(), "{good:?}, {error:?}");
    }

    #[test]
    fn what_is_no_row_is_not_read() {
        let (offset, len) = blocks()[0];
        let places = [(offset - 2, 4), (offset, len + 1), (offset + len as u64, 2), (FILE.len() as u64, 2), (0, 4)];
        let (good, error) = read(FILE, true, &places);
        assert!(good.iter().all(|good| !good) && error.is_none(), "{good:?}, {error:?}");
    }

    #[test]
    fn the_first_error_of_the_file_is_told() {
        let blocks = blocks();
        let [first, last] = [blocks[1], blocks[4]].map(|(offset, _)| offset as usize);
        let mut spoiled = FILE.to_vec();
        spoiled[first..first + 2].fill(0xff);
        spoiled[last..last + 2].fill(0xff);
        let backwards: Vec<_> = blocks.iter().rev().copied().collect();
        let (good, error) = read(&spoiled, true, &backwards);
        assert_eq!(good, [true, false, true, true, false, true]);
        let forwards = read(&spoiled, true, &blocks);
        assert_eq!(error.unwrap().to_string(), forwards.1.unwrap().to_string());
        assert!(read(&spoiled, false, &blocks).1.is_none(), "not looked at");
    }

    #[test]
    fn a_file_that_got_shorter_is_refused() {
        let blocks = blocks();
        let (offset, _) = blocks[5];
        let (good, error) = read(&FILE[..offset as usize + 10], true, &blocks);
        assert_eq!(good, [true, true, true, true, true, false]);
        assert!(matches!(error, Some(StateError::Truncated { offset: at, .. }) if at == offset), "{error:?}");
    }
}
