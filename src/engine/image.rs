//! A state file's bytes in memory: read by several threads, in memory that is kept.

use std::fs::File;
use std::io::{self, BufRead, ErrorKind, Read, Write};
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};

use crate::state::on_threads;

/// What a thread reads at a time.
pub(super) const READ_SIZE: usize = 256 * 1024;

/// What all threads together read before it is looked at.
const WINDOW: usize = 16 << 20;

/// Memory that is taken at once, whatever the context.
const FIRST_SIZE: usize = 64 << 20;

/// Memory for a file that is kept from one restore to the next. First use of fresh memory costs as much as reading a file
/// into it; larger files pay that each time.
const KEPT_SIZE: usize = 256 << 20;

/// A file's bytes: the first `len` of `memory`.
pub(super) struct Image {
    memory: Vec<u8>,
    len: usize,
}

impl Image {
    pub fn bytes(&self) -> &[u8] {
        &self.memory[..self.len]
    }

    /// Makes room for the first `n` bytes, and then for twice as many as there was.
    fn reserve(&mut self, n: usize) -> io::Result<()> {
        if n <= self.memory.len() {
            return Ok(());
        }
        let size = (2 * self.memory.len()).min(self.len).max(n);
        let more = size - self.memory.len();
        self.memory.try_reserve_exact(more).map_err(|_| io::Error::from(ErrorKind::OutOfMemory))?;
        self.memory.resize(size, 0);
        Ok(())
    }
}

/// Memory for the next file.
#[derive(Default)]
pub(super) struct ImageMemory(Vec<u8>);

impl ImageMemory {
    /// Memory for a file of `len` bytes: what is there, or new, at first for no more than `n_expected`. More comes as more is
    /// read and found good, so that a file that says to be large reserves nothing.
    pub fn take(&mut self, len: u64, n_expected: u64) -> io::Result<Image> {
        let len = usize::try_from(len).map_err(|_| io::Error::from(ErrorKind::OutOfMemory))?;
        let mut memory = std::mem::take(&mut self.0);
        let first = len.min(usize::try_from(n_expected).unwrap_or(FIRST_SIZE).max(FIRST_SIZE));
        if memory.len() < first {
            drop(memory);
            // Asked for first in the way that may fail, and given back at once.
            let asked = Vec::<u8>::new().try_reserve_exact(first);
            asked.map_err(|_| io::Error::from(ErrorKind::OutOfMemory))?;
            // All zeros by the kernel's doing, which touches no page.
            memory = vec![0; first];
        }
        Ok(Image { memory, len })
    }

    pub fn keep(&mut self, image: Image) {
        if image.memory.len() <= KEPT_SIZE && image.memory.len() > self.0.len() {
            self.0 = image.memory;
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
            self.image.reserve(end)?;
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

/// A file that is rewritten as it is read. Grows with what was read and found good; without room it is an error.
#[derive(Default)]
pub(super) struct Converted(Vec<u8>);

impl Converted {
    pub fn into_image(self) -> Image {
        let len = self.0.len();
        Image { memory: self.0, len }
    }
}

impl Write for Converted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_reserve(bytes.len()).map_err(|_| io::Error::from(ErrorKind::OutOfMemory))?;
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
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
            let image = ImageMemory::default().take(bytes.len() as u64, 0).unwrap();
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
        let image = ImageMemory::default().take(5 * READ_SIZE as u64, 0).unwrap();
        let mut reader = ImageReader::new(file_of(&bytes), image, 3);
        let mut read = Vec::new();
        reader.read_to_end(&mut read).unwrap();
        assert!(read == bytes);
    }

    #[test]
    fn what_cannot_be_read_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let image = ImageMemory::default().take(100, 0).unwrap();
        let mut reader = ImageReader::new(File::open(folder.path()).unwrap(), image, 2);
        assert_eq!(reader.fill_buf().unwrap_err().kind(), ErrorKind::IsADirectory);
    }

    #[test]
    fn memory_is_kept_and_grows_with_what_is_read() {
        let mut memory = ImageMemory::default();
        let image = memory.take(1 << 40, 0).unwrap();
        assert_eq!(image.memory.len(), FIRST_SIZE);
        let mut image = memory.take(3 * FIRST_SIZE as u64, 0).unwrap();
        image.reserve(FIRST_SIZE + 1).unwrap();
        assert_eq!(image.memory.len(), 2 * FIRST_SIZE);
        memory.keep(image);
        assert_eq!(memory.take(10, 0).unwrap().memory.len(), 2 * FIRST_SIZE);
        // More than there is, even if it could be expected, is an error.
        let refused = ImageMemory::default().take(1 << 60, 1 << 60).err().map(|error| error.kind());
        assert_eq!(refused, Some(ErrorKind::OutOfMemory));
    }
}
