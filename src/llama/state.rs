//! One sequence's state, to and from a file.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::path::Path;

use rustix::fs::MemfdFlags;

use super::error::check;
use super::strings::c_path;
use super::{Context, Error, SeqId, Token};

impl Context {
    /// Writes a sequence's state with the ids that it stands for (`llama_state_seq_save_file`). Returns bytes written.
    pub fn save_state(&mut self, seq: SeqId, tokens: &[Token], path: &Path) -> Result<u64, Error> {
        let path = c_path(path)?;
        let mut n_bytes = 0;
        // SAFETY: path and ids outlive the call; Token is a transparent i32.
        check(|err| unsafe {
            llama_sys::onebit_state_save_file(
                self.as_ptr(),
                path.as_ptr(),
                seq.0,
                tokens.as_ptr().cast(),
                tokens.len(),
                &raw mut n_bytes,
                err,
            )
        })?;
        Ok(n_bytes as u64)
    }

    /// Restores a sequence from a file (`llama_state_seq_load_file`) and returns the ids in it. `capacity` bounds their
    /// number. The file must have been proven well-formed before: llama.cpp trusts much of it.
    pub fn load_state(&mut self, seq: SeqId, path: &Path, capacity: usize) -> Result<Vec<Token>, Error> {
        let path = c_path(path)?;
        let mut tokens = vec![Token(0); capacity];
        let (mut n_tokens, mut n_bytes) = (0, 0);
        // SAFETY: path and buffer outlive the call; the capacity is the buffer's.
        check(|err| unsafe {
            llama_sys::onebit_state_load_file(
                self.as_ptr(),
                path.as_ptr(),
                seq.0,
                tokens.as_mut_ptr().cast(),
                tokens.len(),
                &raw mut n_tokens,
                &raw mut n_bytes,
                err,
            )
        })?;
        tokens.truncate(n_tokens);
        Ok(tokens)
    }

    /// Bytes that a sequence's memory takes in a state file, the header and the ids not counted.
    pub fn state_size(&mut self, seq: SeqId) -> u64 {
        // SAFETY: the context is alive.
        unsafe { llama_sys::llama_state_seq_get_size(self.as_ptr(), seq.0) as u64 }
    }

    /// The bytes of the file that [`save_state`](Self::save_state) would write, for short sequences. Goes through a memory
    /// file: what `llama_state_seq_get_data` gives begins differently.
    pub fn state_sample(&mut self, seq: SeqId, tokens: &[Token]) -> Result<Vec<u8>, Error> {
        let failed = |err: std::io::Error| Error::Failed(format!("memory file: {err}"));
        let memory =
            rustix::fs::memfd_create("onebit-sample", MemfdFlags::CLOEXEC).map_err(|err| failed(err.into()))?;
        let mut file = File::from(memory);
        self.save_state(seq, tokens, Path::new(&format!("/proc/self/fd/{}", file.as_raw_fd())))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(failed)?;
        Ok(bytes)
    }
}
