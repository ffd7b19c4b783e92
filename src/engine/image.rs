//! A state file's bytes in memory: read by several threads, in memory that is kept.

use std::fs::File;
use std::io::{self, BufRead, ErrorKind, Read, Write};
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};

use memmap2::MmapMut;

use crate::state::on_threads;

/// What a thread reads at a time.
pub(super) const READ_SIZE: usize = 256 * 1024;

/// What all threads together read before it is looked at.
const WINDOW: usize = 16 << 20;

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
    /// Memory for a file of `len` bytes: what is there, or a mapping of its own, which cannot be had for any length but takes
    /// memory only where it is written to. So a file that says to be large costs what is read of it and found good.
    pub fn take(&mut self, len: u64) -> io::Result<Image> {
        let len = usize::try_from(len).map_err(|_| io::Error::from(ErrorKind::OutOfMemory))?;
        let memory = match self.0.take() {
            Some(memory) if memory.len() >= len => memory,
            _ => MmapMut::map_anon(len)?,
        };
        Ok(Image { memory, len })
    }

    pub fn keep(&mut self, image: Image) {
        let n_kept = self.0.as_ref().map_or(0, |memory| memory.len());
        if (n_kept..=KEPT_SIZE).contains(&image.memory.len()) {
            self.0 = Some(image.memory);
        }
    }
}

/// Reads a file straight into its image, and shows what was read there.
pub(super) struct ImageReader {
    file: File,
    image: Image,
    n_threads: usize,
    n_read: usize,
    n_consumed: usize,
}

impl ImageReader {
    /// `file` is read from its start.
    pub fn new(file: File, image: Image, n_threads: usize) -> Self {
        Self { file, image, n_threads, n_read: 0, n_consumed: 0 }
    }

    pub fn into_image(self) -> Image {
        self.image
    }
}

impl BufRead for ImageReader {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.n_consumed == self.n_read {
            let end = (self.n_read + WINDOW).min(self.image.len);
            let window = &mut self.image.memory[self.n_read..end];
            self.n_read += read_window(&self.file, window, self.n_read as u64, self.n_threads)?;
        }
        Ok(&self.image.memory[self.n_consumed..self.n_read])
    }

    fn consume(&mut self, n: usize) {
        self.n_consumed = (self.n_consumed + n).min(self.n_read);
    }
}

impl Read for ImageReader {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let n = self.fill_buf()?.read(bytes)?;
        self.consume(n);
        Ok(n)
    }
}

/// Reads what stands at `offset` of the file. Returns how many bytes of the window were read, from its start on; 0 at the
/// file's end.
fn read_window(file: &File, window: &mut [u8], offset: u64, n_threads: usize) -> io::Result<usize> {
    let n_pieces = window.len().div_ceil(READ_SIZE);
    let whole = window.len();
    let pieces = Mutex::new(window.chunks_mut(READ_SIZE).enumerate());
    // Where reading came to an end, and why.
    let end = Mutex::new((whole, None));
    on_threads(n_threads.min(n_pieces), || {
        loop {
            let next = pieces.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((index, piece)) = next else { return };
            let start = index * READ_SIZE;
            let (n_read, error) = read_piece(file, piece, offset + start as u64);
            if n_read < piece.len() {
                let mut end = end.lock().unwrap_or_else(PoisonError::into_inner);
                if start + n_read < end.0 {
                    *end = (start + n_read, error);
                }
            }
        }
    });
    match end.into_inner().unwrap_or_else(PoisonError::into_inner) {
        (0, Some(error)) => Err(error),
        // An error behind what was read shows again when the next window begins there.
        (n_read, _) => Ok(n_read),
    }
}

fn read_piece(file: &File, piece: &mut [u8], offset: u64) -> (usize, Option<io::Error>) {
    let mut n_read = 0;
    while n_read < piece.len() {
        match file.read_at(&mut piece[n_read..], offset + n_read as u64) {
            Ok(0) => break,
            Ok(n) => n_read += n,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return (n_read, Some(error)),
        }
    }
    (n_read, None)
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
    use std::io::Read;

    use super::*;

    fn file_of(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    #[test]
    fn many_threads_read_what_is_there() {
        let bytes: Vec<u8> = (0..WINDOW + 3 * READ_SIZE + 5).map(|i| (i * 7 + i / 251) as u8).collect();
        for n_threads in [1, 2, 5] {
            let image = ImageMemory::default().take(bytes.len() as u64).unwrap();
            let mut reader = ImageReader::new(file_of(&bytes), image, n_threads);
            let mut read = Vec::new();
            reader.read_to_end(&mut read).unwrap();
            assert!(read == bytes);
            assert!(reader.into_image().bytes() == bytes);
        }
    }

    #[test]
    fn a_file_that_got_shorter_ends_where_it_does() {
        let n = 2 * READ_SIZE + 9;
        let bytes: Vec<u8> = (0..n).map(|i| (i / 3) as u8).collect();
        let image = ImageMemory::default().take(5 * READ_SIZE as u64).unwrap();
        let mut reader = ImageReader::new(file_of(&bytes), image, 3);
        let mut read = Vec::new();
        reader.read_to_end(&mut read).unwrap();
        assert!(read == bytes);
    }

    #[test]
    fn what_cannot_be_read_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let image = ImageMemory::default().take(100).unwrap();
        let mut reader = ImageReader::new(File::open(folder.path()).unwrap(), image, 2);
        assert_eq!(reader.fill_buf().unwrap_err().kind(), ErrorKind::IsADirectory);
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
