//! One sequence's state, to a file and from the bytes of one.

use std::ffi::c_void;
use std::path::Path;
use std::ptr;

use super::callback::no_unwind;
use super::error::check;
use super::log;
use super::strings::c_path;
use super::{Context, Error, SeqId, Token};

/// Brings the bytes whose place is at this address in a part of a state; false when they cannot be had or are not good. Several
/// threads call it.
pub type ReadRows<'a> = dyn Fn(usize, &mut [u8]) -> bool + Sync + 'a;

/// Bytes that `llama_state_seq_get_data` puts in front of the memory: a mark of its own, and the sequence.
const DATA_PREFIX: usize = 8;

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

    /// Restores an empty sequence from a file that this process itself has written (`llama_state_seq_load_file`). llama.cpp
    /// trusts it: a file from anywhere else goes through [`load_state`](Self::load_state) after its check. Returns the ids.
    pub fn load_state_file(&mut self, seq: SeqId, path: &Path, capacity: usize) -> Result<Vec<Token>, Error> {
        let path = c_path(path)?;
        let mut tokens = vec![Token(0); capacity];
        let (mut n_tokens, mut n_bytes) = (0, 0);
        // SAFETY: the path outlives the call, the buffer is as long as is told; Token is a transparent i32.
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

    /// Restores an empty sequence from the memory of a state, which is what a file holds behind its ids. It may lie in several
    /// parts, of which no field goes across two. It must have been proven well-formed before: llama.cpp trusts much
    /// of it.
    ///
    /// The bytes, not the file: nobody else can change them between their check and their use. Of the rows only the place is
    /// looked at where `rows` brings them. `n_threads` bring rows.
    ///
    /// # Errors
    ///
    /// [`Error::Failed`] or [`Error::Invalid`] with llama.cpp's own message; the sequence is to be cleared then. Rows that were
    /// brought are zeros.
    pub fn load_state(
        &mut self,
        seq: SeqId,
        parts: &[&[u8]],
        rows: Option<&ReadRows<'_>>,
        n_threads: usize,
    ) -> Result<(), Error> {
        let raw: Vec<_> =
            parts.iter().map(|part| llama_sys::onebit_part { data: part.as_ptr(), size: part.len() }).collect();
        let data = rows.as_ref().map_or(ptr::null_mut(), |rows| ptr::from_ref(rows).cast_mut().cast());
        let reader = llama_sys::onebit_row_reader { read: rows.map(|_| on_rows as _), data };
        // SAFETY: the context is alive, the parts for the lengths that are told, and `rows` for the call, which is the only
        // one to use it; it is Sync.
        check(|err| unsafe {
            llama_sys::onebit_state_load(self.as_ptr(), seq.0, raw.as_ptr(), raw.len(), reader, n_threads, err)
        })
    }

    /// The part of a sequence's memory that cannot step back: running states, and windows of attention
    /// (`LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY`). The rest is the attention's cells, which stay where they are.
    pub fn partial_state(&mut self, seq: SeqId) -> Result<Vec<u8>, Error> {
        let flags = llama_sys::LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY;
        // SAFETY: the context is alive. Standard exceptions are caught inside.
        let size = unsafe { llama_sys::llama_state_seq_get_size_ext(self.as_ptr(), seq.0, flags) };
        let mut data = Vec::new();
        data.try_reserve_exact(size).map_err(|_| Error::Failed(format!("no memory for a state of {size} bytes")))?;
        data.resize(size, 0);
        // SAFETY: the context is alive, and the buffer as long as is told. Standard exceptions are caught inside.
        let n_written = unsafe {
            llama_sys::llama_state_seq_get_data_ext(self.as_ptr(), data.as_mut_ptr(), data.len(), seq.0, flags)
        };
        // 0 is what an exception makes of both.
        if n_written == size && size > 0 { Ok(data) } else { Err(Error::Failed("llama.cpp gave no state".to_owned())) }
    }

    /// Puts back what [`partial_state`](Self::partial_state) gave for this sequence of this context. What the sequence holds of
    /// later positions elsewhere is the caller's to remove.
    pub fn restore_partial(&mut self, seq: SeqId, data: &[u8]) -> Result<(), Error> {
        let flags = llama_sys::LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY;
        // SAFETY: the context is alive, and the slice for the length that is told. Standard exceptions are caught inside.
        let (n_read, logged) = log::capture(|| unsafe {
            llama_sys::llama_state_seq_set_data_ext(self.as_ptr(), data.as_ptr(), data.len(), seq.0, flags)
        });
        if n_read == data.len() { Ok(()) } else { Err(Error::Failed(logged)) }
    }

    /// Bytes that a sequence's memory takes in a state file, the header and the ids not counted.
    pub fn state_size(&mut self, seq: SeqId) -> u64 {
        // SAFETY: the context is alive.
        unsafe { llama_sys::llama_state_seq_get_size(self.as_ptr(), seq.0) as u64 }
    }

    /// The bytes of the file that [`save_state`](Self::save_state) would write.
    ///
    /// What `llama_state_seq_get_data` gives is the same memory behind eight bytes of its own, which the end of the header
    /// takes the place of.
    pub fn state_bytes(&mut self, seq: SeqId, tokens: &[Token]) -> Result<Vec<u8>, Error> {
        let n_tokens = u32::try_from(tokens.len()).map_err(|_| Error::Invalid("too many tokens".to_owned()))?;
        let mut header: Vec<u8> = Vec::with_capacity(12 + 4 * tokens.len());
        for word in [llama_sys::LLAMA_STATE_SEQ_MAGIC, super::state_version(), n_tokens] {
            header.extend(word.to_le_bytes());
        }
        tokens.iter().for_each(|token| header.extend(token.0.to_le_bytes()));

        let size = usize::try_from(self.state_size(seq)).unwrap_or(0);
        let start = header.len() - DATA_PREFIX;
        let mut bytes = Vec::new();
        let no_memory = |_| Error::Failed(format!("no memory for a state of {size} bytes"));
        bytes.try_reserve_exact(start + size).map_err(no_memory)?;
        bytes.resize(start + size, 0);
        let data = &mut bytes[start..];
        // SAFETY: the context is alive, and the buffer as long as is told. Standard exceptions are caught inside.
        let (n_written, logged) = log::capture(|| unsafe {
            llama_sys::llama_state_seq_get_data(self.as_ptr(), data.as_mut_ptr(), data.len(), seq.0)
        });
        if n_written != size || size < DATA_PREFIX {
            return Err(Error::Failed(format!("llama.cpp gave {n_written} bytes of {size}: {logged}")));
        }
        bytes[..header.len()].copy_from_slice(&header);
        Ok(bytes)
    }
}

/// The shim's row reader; `data` is a reference to a [`ReadRows`].
extern "C" fn on_rows(data: *mut c_void, from: *const u8, to: *mut u8, size: usize) -> bool {
    // SAFETY: load_state passes a pointer to the reference that it was given, which outlives the call that uses it.
    let rows = unsafe { *data.cast::<&ReadRows<'_>>() };
    // SAFETY: the shim passes bytes of a tensor or a buffer, which nobody else looks at meanwhile; both were written to before.
    let to = unsafe { std::slice::from_raw_parts_mut(to, size) };
    no_unwind(|| rows(from.addr(), to))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::super::{Batch, ContextParams, KvType, Model, ModelParams};
    use super::*;
    use crate::testing::TinyModel;

    const N: usize = 100;

    /// Two sequences in one pool of 256 cells, each with every second one of the first 200; and the first one's state. The
    /// first is empty then, and has place only between the cells of the second.
    fn context(tiny: &TinyModel, ty: KvType) -> (Context, Vec<u8>) {
        let file = tempfile::NamedTempFile::new().unwrap();
        tiny.write(file.path()).unwrap();
        let model = Model::load(file.path(), &ModelParams::default(), &mut |_| true).unwrap();
        let params = ContextParams {
            n_ctx: 256,
            n_batch: 64,
            n_ubatch: 64,
            n_seq: 2,
            unified: true,
            n_threads: 2,
            n_threads_batch: 2,
            flash_attention: Some(true),
            type_k: ty,
            type_v: ty,
            embeddings: None,
        };
        let mut context = Context::new(Arc::new(model), &params).unwrap();
        let mut batch = Batch::new();
        for (at, token) in tokens().into_iter().enumerate() {
            batch.clear();
            for seq in [0, 1] {
                batch.push(Token(token.0 + seq), i32::try_from(at).unwrap(), SeqId(seq), true);
            }
            context.decode(&mut batch, Vec::new()).unwrap();
        }
        let state = context.state_bytes(SeqId(0), &tokens()).unwrap();
        context.clear_seq(SeqId(0));
        (context, state)
    }

    fn tokens() -> Vec<Token> {
        (0..N).map(|at| Token(3 + i32::try_from(at * 31 % 200).unwrap())).collect()
    }

    /// What stands in the file behind the ids.
    fn memory(state: &[u8]) -> &[u8] {
        &state[12 + 4 * N..]
    }

    fn each(mut check: impl FnMut(&str, Context, Vec<u8>)) {
        // Heads of 64, which a quantized type has whole blocks of.
        let wide = TinyModel::llama().with_heads(1, 1);
        for (tiny, ty) in [(&wide, KvType::F16), (&wide, KvType::Q8_0), (&TinyModel::gemma3(), KvType::F16)] {
            let (context, state) = context(tiny, ty);
            check(&format!("{:?}, {ty:?}", tiny.architecture), context, state);
        }
        let (context, state) = context(&TinyModel::mamba(), KvType::F16);
        check("mamba", context, state);
    }

    #[test]
    fn rows_come_from_a_reader() {
        each(|what, mut context, state| {
            let mut fields = memory(&state).to_vec();
            let start = fields.as_ptr().addr();
            let brought = std::sync::Mutex::new(vec![false; fields.len()]);
            let read = |from: usize, to: &mut [u8]| {
                let range = from - start..from - start + to.len();
                to.copy_from_slice(&memory(&state)[range.clone()]);
                brought.lock().unwrap()[range].fill(true);
                true
            };
            context.load_state(SeqId(0), &[&fields], Some(&read), 3).unwrap();
            assert_eq!(context.state_bytes(SeqId(0), &tokens()).unwrap(), state, "{what}");
            // Again, and from where the rows have their place nothing is taken.
            for (field, _) in fields.iter_mut().zip(&*brought.lock().unwrap()).filter(|(_, brought)| **brought) {
                *field = 0xff;
            }
            context.clear_seq(SeqId(0));
            context.load_state(SeqId(0), &[&fields], Some(&read), 1).unwrap();
            assert_eq!(context.state_bytes(SeqId(0), &tokens()).unwrap(), state, "{what}");
        });
    }

    #[test]
    fn rows_of_a_reader_that_refuses_some_are_zeros() {
        each(|what, mut context, state| {
            let (n_read, n_refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let read = |_, to: &mut [u8]| {
                to.fill(0x55);
                n_read.fetch_add(to.len(), Relaxed);
                n_refused.fetch_add(1, Relaxed) != 1
            };
            let error = context.load_state(SeqId(0), &[memory(&state)], Some(&read), 3).unwrap_err();
            assert_eq!(error, Error::Invalid("the rows of the state were not read".to_owned()), "{what}");
            let left = context.state_bytes(SeqId(0), &tokens()).unwrap();
            let n_zeros = left.iter().filter(|byte| **byte == 0).count();
            assert!(n_zeros >= n_read.into_inner() && left.len() == state.len(), "{what}: {n_zeros} zeros");
            assert_eq!(left.windows(4).filter(|bytes| *bytes == [0x55; 4]).count(), 0, "{what}");
        });
    }
}
