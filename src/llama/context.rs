//! A context: the KV cache and the computation of one model on one thread.

use std::ptr::NonNull;
use std::sync::Arc;

use super::callback::{AbortState, CancelFlag, on_abort};
use super::error::check;
use super::{Batch, DecodeError, Error, Model, SeqId};

/// Element type of the K or V cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum KvType {
    F32,
    F16,
    Bf16,
    Q8_0,
    Q4_0,
    Q4_1,
    Iq4Nl,
    Q5_0,
    Q5_1,
}

impl KvType {
    fn to_raw(self) -> llama_sys::ggml_type {
        match self {
            Self::F32 => llama_sys::GGML_TYPE_F32,
            Self::F16 => llama_sys::GGML_TYPE_F16,
            Self::Bf16 => llama_sys::GGML_TYPE_BF16,
            Self::Q8_0 => llama_sys::GGML_TYPE_Q8_0,
            Self::Q4_0 => llama_sys::GGML_TYPE_Q4_0,
            Self::Q4_1 => llama_sys::GGML_TYPE_Q4_1,
            Self::Iq4Nl => llama_sys::GGML_TYPE_IQ4_NL,
            Self::Q5_0 => llama_sys::GGML_TYPE_Q5_0,
            Self::Q5_1 => llama_sys::GGML_TYPE_Q5_1,
        }
    }
}

/// Settings of a context.
#[derive(Clone, Debug)]
pub struct ContextParams {
    /// Tokens in the KV cache, all sequences together.
    pub n_ctx: u32,
    /// One pool of cells for all sequences, any of which may take all of it. Otherwise each has `n_ctx / n_seq` of its own, over
    /// which alone its attention goes.
    pub unified: bool,
    /// Most tokens in one batch.
    pub n_batch: u32,
    /// Most tokens in one pass.
    pub n_ubatch: u32,
    /// Sequences.
    pub n_seq: u32,
    /// Threads for single tokens.
    pub n_threads: u32,
    /// Threads for prompts.
    pub n_threads_batch: u32,
    /// `Some` forces flash attention on or off; `None` lets llama.cpp find out.
    pub flash_attention: Option<bool>,
    /// Element type of K.
    pub type_k: KvType,
    /// Element type of V.
    pub type_v: KvType,
    /// `Some` lets the context compute embeddings, pooled so (`None` inside: as the model says).
    pub embeddings: Option<Option<PoolingType>>,
}

/// How the vectors of a sequence's tokens become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum PoolingType {
    None,
    Mean,
    Cls,
    Last,
}

impl ContextParams {
    pub(super) fn to_raw(&self) -> llama_sys::llama_context_params {
        // SAFETY: returns a plain struct.
        let mut raw = unsafe { llama_sys::llama_context_default_params() };
        raw.n_ctx = self.n_ctx;
        raw.n_batch = self.n_batch;
        raw.n_ubatch = self.n_ubatch;
        raw.n_seq_max = self.n_seq;
        raw.kv_unified = self.unified;
        // Layers with a window keep the window and a pass, not the whole context (llama.h's default, for its own tools' sake).
        raw.swa_full = false;
        raw.n_threads = i32::try_from(self.n_threads).unwrap_or(i32::MAX);
        raw.n_threads_batch = i32::try_from(self.n_threads_batch).unwrap_or(i32::MAX);
        raw.flash_attn_type = match self.flash_attention {
            None => llama_sys::LLAMA_FLASH_ATTN_TYPE_AUTO,
            Some(true) => llama_sys::LLAMA_FLASH_ATTN_TYPE_ENABLED,
            Some(false) => llama_sys::LLAMA_FLASH_ATTN_TYPE_DISABLED,
        };
        raw.type_k = self.type_k.to_raw();
        raw.type_v = self.type_v.to_raw();
        // Only the last token of each sequence needs logits; llama.cpp would reserve a row for each token of a batch.
        raw.n_outputs_max = self.n_seq;
        raw.n_outputs_max_per_seq = 1;
        if let Some(pooling) = self.embeddings {
            raw.n_outputs_max = self.n_batch;
            raw.n_outputs_max_per_seq = self.n_batch;
            raw.pooling_type = match pooling {
                None => llama_sys::LLAMA_POOLING_TYPE_UNSPECIFIED,
                Some(PoolingType::None) => llama_sys::LLAMA_POOLING_TYPE_NONE,
                Some(PoolingType::Mean) => llama_sys::LLAMA_POOLING_TYPE_MEAN,
                Some(PoolingType::Cls) => llama_sys::LLAMA_POOLING_TYPE_CLS,
                Some(PoolingType::Last) => llama_sys::LLAMA_POOLING_TYPE_LAST,
            };
        }
        raw.no_perf = true;
        raw
    }
}

/// A KV cache and the means to compute. Belongs to one thread at a time.
pub struct Context {
    ptr: NonNull<llama_sys::llama_context>,
    // Declared after `ptr` and freed after it (Drop below runs first): the abort callback points into it.
    abort: Box<AbortState>,
    model: Arc<Model>,
    n_streams: u32,
}

// SAFETY: a llama_context has no tie to the thread that made it; `&mut self` on every call that changes it, and the lack
// of Sync, keep it on one thread at a time.
unsafe impl Send for Context {}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: this is the only owner; model and abort state are still alive (fields are dropped after this body).
        unsafe { llama_sys::llama_free(self.ptr.as_ptr()) };
    }
}

impl Context {
    /// Makes a context on a model.
    ///
    /// # Errors
    ///
    /// [`Error::Failed`] with llama.cpp's own message (no memory, unsupported cache type, ...).
    pub fn new(model: Arc<Model>, params: &ContextParams) -> Result<Self, Error> {
        let abort = Box::new(AbortState::default());
        let mut raw = params.to_raw();
        raw.abort_callback = Some(on_abort);
        raw.abort_callback_data = (&raw const *abort).cast_mut().cast();
        let mut ptr = std::ptr::null_mut();
        // SAFETY: the model is alive (the Arc goes into the result) and the abort state's address is stable in its Box.
        check(|err| unsafe { llama_sys::onebit_context_init(model.as_ptr(), raw, &raw mut ptr, err) })?;
        let ptr = NonNull::new(ptr).ok_or_else(|| Error::Failed("llama.cpp returned no context".to_owned()))?;
        let n_streams = if params.unified { 1 } else { params.n_seq };
        Ok(Self { ptr, abort, model, n_streams })
    }

    pub(super) fn as_ptr(&self) -> *mut llama_sys::llama_context {
        self.ptr.as_ptr()
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// Tokens that the KV cache holds.
    pub fn n_ctx(&self) -> u32 {
        // SAFETY: the context is alive.
        unsafe { llama_sys::llama_n_ctx(self.as_ptr()) }
    }

    /// Tokens that one sequence can have.
    pub fn n_ctx_seq(&self) -> u32 {
        // SAFETY: the context is alive.
        unsafe { llama_sys::llama_n_ctx_seq(self.as_ptr()) }
    }

    /// Streams of the attention's caches: 1 when sequences share a pool of cells, else one for each. A state has a cell count for
    /// each stream, of which all but that of its own are 0.
    pub fn n_streams(&self) -> u32 {
        self.n_streams
    }

    /// Most tokens in one batch, as llama.cpp settled it.
    pub fn n_batch(&self) -> u32 {
        // SAFETY: the context is alive.
        unsafe { llama_sys::llama_n_batch(self.as_ptr()) }
    }

    /// Evaluates a batch. `waiting` are the flags of those who wait for it: when all are raised it is aborted between
    /// two graph nodes (on the CPU; other devices finish the batch).
    ///
    /// # Errors
    ///
    /// [`DecodeError`]; its variants say whether the memory may have changed.
    pub fn decode(&mut self, batch: &mut Batch, waiting: Vec<CancelFlag>) -> Result<(), Error> {
        *self.abort.waiting.lock() = waiting;
        let mut code = 0;
        // SAFETY: the batch's arrays live in `batch`, which is borrowed for the call; lengths agree by construction.
        let called = check(|err| unsafe { llama_sys::onebit_decode(self.as_ptr(), batch.lend(), &raw mut code, err) });
        self.abort.waiting.lock().clear();
        called?;
        DecodeError::from_code(code).map_or(Ok(()), |err| Err(err.into()))
    }

    /// Logits of the token at `index` of the last batch: `n_vocab` values, unnormalised log-probabilities.
    pub fn logits(&self, index: usize) -> Result<&[f32], Error> {
        let index = i32::try_from(index).map_err(|_| Error::Failed("batch index out of range".to_owned()))?;
        let n_vocab = self.model.vocab().n_tokens() as usize;
        // SAFETY: the context is alive; llama.cpp answers an index without output with NULL.
        let row = unsafe { llama_sys::llama_get_logits_ith(self.as_ptr(), index) };
        if row.is_null() {
            return Err(Error::Failed(format!("token {index} of the batch has no logits")));
        }
        // SAFETY: a row has n_vocab floats (llama.h, llama_get_logits_ith) and stays until the next decode, which needs
        // `&mut self`.
        Ok(unsafe { std::slice::from_raw_parts(row, n_vocab) })
    }

    /// Whether the next batches compute embeddings.
    pub fn set_embeddings(&mut self, on: bool) {
        // SAFETY: the context is alive.
        unsafe { llama_sys::llama_set_embeddings(self.as_ptr(), on) };
    }

    /// Whether a sequence has one vector, rather than one for each token.
    pub fn is_pooled(&self) -> bool {
        // SAFETY: the context is alive.
        unsafe { llama_sys::llama_pooling_type(self.as_ptr()) != llama_sys::LLAMA_POOLING_TYPE_NONE }
    }

    /// The vector of a sequence after the last batch: as many values as the model's embeddings have.
    pub fn pooled_embedding(&self, seq: SeqId) -> Result<&[f32], Error> {
        // SAFETY: the context is alive; llama.cpp answers a sequence without a vector with NULL.
        self.embedding(unsafe { llama_sys::llama_get_embeddings_seq(self.as_ptr(), seq.0) })
    }

    /// The vector of the token at `index` of the last batch.
    pub fn token_embedding(&self, index: usize) -> Result<&[f32], Error> {
        let index = i32::try_from(index).map_err(|_| Error::Failed("batch index out of range".to_owned()))?;
        // SAFETY: the context is alive; llama.cpp answers an index without output with NULL.
        self.embedding(unsafe { llama_sys::llama_get_embeddings_ith(self.as_ptr(), index) })
    }

    fn embedding(&self, row: *const f32) -> Result<&[f32], Error> {
        if row.is_null() {
            return Err(Error::Failed("llama.cpp has computed no embedding".to_owned()));
        }
        let n_embd = self.model.n_embd_out() as usize;
        // SAFETY: a row has n_embd_out floats (llama.h, llama_get_embeddings_seq and _ith, which both give rows of the
        // output buffer) and stays until the next decode, which needs `&mut self`.
        Ok(unsafe { std::slice::from_raw_parts(row, n_embd) })
    }

    /// Waits until the device has finished what was asked of it.
    pub fn synchronize(&mut self) {
        // SAFETY: the context is alive.
        unsafe { llama_sys::llama_synchronize(self.as_ptr()) };
    }
}
