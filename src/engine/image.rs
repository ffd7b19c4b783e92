//! A state file's bytes in memory: all of them, read by several threads into memory that is kept, or only its fields.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::FileExt;

use memmap2::MmapMut;

use crate::state::{Piece, StateError, first_error};

/// Memory for a file that is kept from one restore to the next. First use of fresh memory costs as much as reading a file
/// into it; larger files pay that each time.
const KEPT_SIZE: usize = 256 << 20;

/// A file's bytes: the first `len` of `memory`.
pub(super) struct Image {
    memory: MmapMut,
    len: usize,
}

impl Image {
    pub fn bytes(&self) -> &[u8] {
        &self.memory[..self.len]
    }
}

/// Memory for the next file.
#[derive(Default)]
pub(super) struct ImageMemory(Option<MmapMut>);

impl ImageMemory {
    /// Memory for a file of `len` bytes: what is there, or a mapping of its own, which cannot be had for any length.
    pub fn take(&mut self, len: u64) -> io::Result<Image> {
        match self.0.take() {
            Some(memory) if memory.len() as u64 >= len => Ok(Image { memory, len: len as usize }),
            _ => Image::unread(len),
        }
    }

    pub fn keep(&mut self, image: Image) {
        let n_kept = self.0.as_ref().map_or(0, |memory| memory.len());
        if (n_kept..=KEPT_SIZE).contains(&image.memory.len()) {
            self.0 = Some(image.memory);
        }
    }
}

impl Image {
    /// A file of `len` bytes of which nothing is read yet. What is never read takes no memory.
    pub fn unread(len: u64) -> io::Result<Self> {
        let len = usize::try_from(len).map_err(|_| io::Error::from(ErrorKind::OutOfMemory))?;
        MmapMut::map_anon(len).map(|memory| Self { memory, len })
    }

    /// Reads these `pieces` of the file, one behind the other, on `n_threads` threads; with `scan` each row is looked at for
    /// NaN and infinity as long as it is in the CPU's cache.
    pub fn fill(
        &mut self,
        file: &File,
        pieces: Vec<Piece<'_>>,
        scan: bool,
        n_threads: usize,
    ) -> Result<(), StateError> {
        let n_threads = n_threads.min(pieces.len());
        let (mut at, mut rest) = (0, &mut self.memory[..self.len]);
        let pieces = pieces.into_iter().map(move |piece| {
            let n_between = usize::try_from(piece.offset - at).unwrap_or(usize::MAX);
            let (bytes, behind) = std::mem::take(&mut rest)[n_between..].split_at_mut(piece.len);
            (at, rest) = (piece.offset + piece.len as u64, behind);
            (piece, bytes)
        });
        first_error(n_threads, pieces, |(piece, bytes)| read_piece(file, &piece, scan, bytes))
    }
}

/// Reads a piece of the file, and looks at its rows.
pub(super) fn read_piece(file: &File, piece: &Piece<'_>, scan: bool, bytes: &mut [u8]) -> Result<(), StateError> {
    file.read_exact_at(bytes, piece.offset).map_err(|source| match source.kind() {
        // Cut since its length was asked.
        ErrorKind::UnexpectedEof => piece.missing(piece.offset),
        _ => StateError::Read { offset: piece.offset, source },
    })?;
    if scan { piece.scan(bytes) } else { Ok(()) }
}

/// What rewriting to another state version can add to a file: two fields in each of two sections.
const ADDED: u64 = 16;

/// The image of a file that is rewritten as it is read.
pub(super) struct Rewritten(Image);

impl Rewritten {
    /// For a file of `len` bytes.
    pub fn new(len: u64, memory: &mut ImageMemory) -> io::Result<Self> {
        let image = memory.take(len.saturating_add(ADDED))?;
        Ok(Self(Image { len: 0, ..image }))
    }

    pub fn into_image(self) -> Image {
        self.0
    }
}

impl Write for Rewritten {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = (&mut self.0.memory[self.0.len..]).write(bytes)?;
        self.0.len += n;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: usize = 1000;

    fn file_of(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    fn pieces(len: usize) -> Vec<Piece<'static>> {
        let starts = (0..len).step_by(SIZE);
        starts.map(|start| Piece::without_rows(start as u64, SIZE.min(len - start))).collect()
    }

    fn filled(file: &File, len: usize, n_threads: usize) -> Result<Image, StateError> {
        let mut image = ImageMemory::default().take(len as u64).unwrap();
        image.fill(file, pieces(len), true, n_threads).map(|()| image)
    }

    #[test]
    fn many_threads_read_what_is_there() {
        let bytes: Vec<u8> = (0..9 * SIZE + 5).map(|i| (i * 7 + i / 251) as u8).collect();
        for n_threads in [1, 2, 5, 100] {
            assert!(filled(&file_of(&bytes), bytes.len(), n_threads).unwrap().bytes() == bytes);
        }
    }

    #[test]
    fn a_file_that_got_shorter_is_refused() {
        let bytes = vec![7; 3 * SIZE + 9];
        for len in [bytes.len() + 1, 5 * SIZE] {
            let error = filled(&file_of(&bytes), len, 3).err().expect("refused");
            assert!(matches!(error, StateError::Truncated { offset: 3000, .. }), "{error}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let error = filled(&File::open(folder.path()).unwrap(), 100, 2).err().expect("refused");
        assert!(matches!(error, StateError::Read { offset: 0, .. }), "{error}");
    }

    #[test]
    fn memory_is_kept_and_may_be_refused() {
        let mut memory = ImageMemory::default();
        assert!(memory.take(1 << 60).is_err());
        let small = memory.take(10).unwrap();
        let image = memory.take(3 << 20).unwrap();
        memory.keep(image);
        memory.keep(small);
        let image = memory.take(10).unwrap();
        assert_eq!((image.memory.len(), image.bytes().len()), (3 << 20, 10));
    }

    #[test]
    fn what_is_rewritten_has_room_for_what_it_gains() {
        let mut rewritten = Rewritten::new(100, &mut ImageMemory::default()).unwrap();
        rewritten.write_all(&[7; 116]).unwrap();
        rewritten.write_all(&[7]).unwrap_err();
        assert_eq!(rewritten.into_image().bytes(), [7; 116]);
    }
}
