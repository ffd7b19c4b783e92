//! A proven file's rows, straight into the tensors of the KV cache.

use std::fs::File;
use std::sync::{Mutex, PoisonError};

use crate::state::{Checked, StateError};

use super::image::{Image, read_piece};

/// Reads rows when llama.cpp has a place for them, each where it stays. They are looked at there, so a copy less is made; what was
/// read is what is looked at and used.
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
