//! One sequence's state, to and from a file.

use std::path::Path;

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
}

impl Context {
    /// A state file's bytes, in memory: what [`save_state`](Self::save_state) would write. For short sequences.
    pub fn state_sample(&mut self, seq: SeqId, tokens: &[Token]) -> Result<Vec<u8>, Error> {
        let mut file = Vec::new();
        for word in [llama_sys::LLAMA_STATE_SEQ_MAGIC, llama_sys::LLAMA_STATE_SEQ_VERSION] {
            file.extend_from_slice(&word.to_le_bytes());
        }
        let n_tokens = u32::try_from(tokens.len()).map_err(|_| Error::Invalid("too many tokens".to_owned()))?;
        file.extend_from_slice(&n_tokens.to_le_bytes());
        tokens.iter().for_each(|token| file.extend_from_slice(&token.0.to_le_bytes()));
        let start = file.len();
        // SAFETY: the context is alive; the buffer has the size that llama.cpp asked for.
        let written = unsafe {
            let size = llama_sys::llama_state_seq_get_size(self.as_ptr(), seq.0);
            file.resize(start + size, 0);
            llama_sys::llama_state_seq_get_data(self.as_ptr(), file[start..].as_mut_ptr(), size, seq.0)
        };
        if start + written != file.len() {
            return Err(Error::Failed("llama.cpp could not save the sequence state".to_owned()));
        }
        Ok(file)
    }
}
