use std::io::{self, BufRead, ErrorKind, Seek, SeekFrom, Write};

use super::error::StateError;
use super::ggml_type::MAX_BLOCK_BYTES;

/// A reader that knows where it is and how much the file holds; optionally everything read is also written to a copy.
///
/// No read goes past `len`, so a file that grows meanwhile is not followed; one that shrinks ends as `Truncated`.
pub(super) struct Input<'a, R> {
    reader: &'a mut R,
    offset: u64,
    len: u64,
    copy: Option<&'a mut dyn Write>,
    written: u64,
}

impl<'a, R: BufRead> Input<'a, R> {
    /// `reader` stands at the start of the file, which holds `len` bytes.
    pub fn new(reader: &'a mut R, len: u64) -> Self {
        Input { reader, offset: 0, len, copy: None, written: 0 }
    }

    /// As [`Input::new`], with a copy of every byte read going to `writer`.
    pub fn copying(reader: &'a mut R, len: u64, writer: &'a mut dyn Write) -> Self {
        Input { reader, offset: 0, len, copy: Some(writer), written: 0 }
    }

    pub fn offset(&self) -> u64 {
        self.offset
    }

    pub fn left(&self) -> u64 {
        self.len - self.offset
    }

    /// Bytes of the copy; where there is none, of the file.
    pub fn written(&self) -> u64 {
        if self.copy.is_some() { self.written } else { self.offset }
    }

    pub fn u32(&mut self, what: &'static str) -> Result<u32, StateError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub fn i32(&mut self, what: &'static str) -> Result<i32, StateError> {
        Ok(i32::from_le_bytes(self.array(what)?))
    }

    pub fn u64(&mut self, what: &'static str) -> Result<u64, StateError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    pub fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], StateError> {
        let bytes = self.array_uncopied(what)?;
        self.insert(&bytes)?;
        Ok(bytes)
    }

    /// Reads without copying: for a field that the copy leaves out or has otherwise.
    pub fn array_uncopied<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], StateError> {
        self.need(N as u64, what)?;
        let mut bytes = [0; N];
        self.reader.read_exact(&mut bytes).map_err(|source| self.read_error(source, what, N as u64))?;
        self.offset += N as u64;
        Ok(bytes)
    }

    /// Writes bytes that are not in the file to the copy, if there is one.
    pub fn insert(&mut self, bytes: &[u8]) -> Result<(), StateError> {
        if let Some(writer) = &mut self.copy {
            writer.write_all(bytes).map_err(|source| StateError::Write { source })?;
            self.written += bytes.len() as u64;
        }
        Ok(())
    }

    /// Flushes the copy.
    pub fn flush(&mut self) -> Result<(), StateError> {
        match &mut self.copy {
            Some(writer) => writer.flush().map_err(|source| StateError::Write { source }),
            None => Ok(()),
        }
    }

    /// Gives the next `n` bytes to `visit` as slices with their offsets; each is a whole number of `unit`s.
    ///
    /// `n` is a multiple of `unit`, and `unit` at most [`MAX_BLOCK_BYTES`]. The slices are the reader's own buffer, so
    /// a `&[u8]` is seen in one piece; only a unit that straddles two buffers is gathered.
    pub fn units(
        &mut self,
        n: u64,
        unit: usize,
        what: &'static str,
        mut visit: impl FnMut(u64, &[u8]) -> Result<(), StateError>,
    ) -> Result<(), StateError> {
        debug_assert!((1..=MAX_BLOCK_BYTES).contains(&unit) && n.is_multiple_of(unit as u64));
        self.need(n, what)?;
        let end = self.offset + n;
        while self.offset < end {
            let left = end - self.offset;
            let buffered = match self.reader.fill_buf() {
                Ok(buffer) => buffer,
                Err(source) if source.kind() == ErrorKind::Interrupted => continue,
                Err(source) => return Err(self.read_error(source, what, left)),
            };
            let whole = (buffered.len() as u64).min(left) as usize / unit * unit;
            if whole > 0 {
                visit(self.offset, &buffered[..whole])?;
                if let Some(writer) = &mut self.copy {
                    writer.write_all(&buffered[..whole]).map_err(|source| StateError::Write { source })?;
                    self.written += whole as u64;
                }
                self.reader.consume(whole);
                self.offset += whole as u64;
            } else {
                let mut gathered = [0; MAX_BLOCK_BYTES];
                let gathered = &mut gathered[..unit];
                self.reader.read_exact(gathered).map_err(|source| self.read_error(source, what, left))?;
                visit(self.offset, gathered)?;
                self.insert(gathered)?;
                self.offset += unit as u64;
            }
        }
        Ok(())
    }

    /// Reads past `n` bytes (and copies them).
    pub fn skip(&mut self, n: u64, what: &'static str) -> Result<(), StateError> {
        self.units(n, 1, what, |_, _| Ok(()))
    }

    /// Refuses what would go past the end of the file.
    pub fn need(&self, needed: u64, what: &'static str) -> Result<(), StateError> {
        if needed > self.left() {
            return Err(StateError::Truncated { offset: self.offset, what, needed, left: self.left() });
        }
        Ok(())
    }

    fn read_error(&self, source: io::Error, what: &'static str, needed: u64) -> StateError {
        match source.kind() {
            // shorter than its length said: it was cut while being read
            ErrorKind::UnexpectedEof => StateError::Truncated { offset: self.offset, what, needed, left: 0 },
            _ => StateError::Read { offset: self.offset, source },
        }
    }
}

impl<R: BufRead + Seek> Input<'_, R> {
    /// Passes over `n` bytes without reading them.
    pub fn jump(&mut self, n: u64, what: &'static str) -> Result<(), StateError> {
        self.need(n, what)?;
        self.go_to(self.offset + n)
    }

    /// Stands at `offset`, which is inside the file.
    pub fn go_to(&mut self, offset: u64) -> Result<(), StateError> {
        let target = offset.min(self.len);
        // relative, because a BufReader keeps its buffer then
        let step = i64::try_from(i128::from(target) - i128::from(self.offset));
        let moved = match step {
            Ok(0) => Ok(()),
            Ok(step) => self.reader.seek_relative(step),
            Err(_) => self.reader.seek(SeekFrom::Start(target)).map(drop),
        };
        moved.map_err(|source| StateError::Read { offset: self.offset, source })?;
        self.offset = target;
        Ok(())
    }

    pub fn read_exact(&mut self, bytes: &mut [u8], what: &'static str) -> Result<(), StateError> {
        self.need(bytes.len() as u64, what)?;
        let needed = bytes.len() as u64;
        self.reader.read_exact(bytes).map_err(|source| self.read_error(source, what, needed))?;
        self.offset += needed;
        Ok(())
    }
}
