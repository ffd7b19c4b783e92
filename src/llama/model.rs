//! A loaded GGUF model.

use std::path::Path;
use std::ptr::NonNull;

use super::callback::{Progress, on_progress};
use super::error::check;
use super::strings::{c_path, c_string, copy_str, read_buffer};
use super::{Backend, ContextParams, Device, Error, Vocab};

/// How to load a model.
#[derive(Clone, Debug, Default)]
pub struct ModelParams {
    /// Devices that get layers; empty means the CPU only.
    pub devices: Vec<Device>,
    /// Layers on those devices; `None` means all.
    pub n_gpu_layers: Option<u32>,
    /// Load only the vocabulary and the metadata.
    pub vocab_only: bool,
}

/// Host memory that a model and a context would take, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct MemoryNeed {
    /// Weights; when they are memory-mapped, this is page cache.
    pub model: u64,
    /// The KV cache.
    pub context: u64,
    /// Scratch space of one pass.
    pub compute: u64,
}

/// A model: weights, vocabulary, metadata. Read-only after loading.
#[derive(Debug)]
pub struct Model {
    ptr: NonNull<llama_sys::llama_model>,
}

// SAFETY: after loading, llama.cpp only reads a model; it documents its model and vocabulary getters and tokenization as
// thread-safe, and contexts on several threads may share one.
unsafe impl Send for Model {}
// SAFETY: as above.
unsafe impl Sync for Model {}

impl Drop for Model {
    fn drop(&mut self) {
        // SAFETY: this is the only owner; contexts hold an Arc of the Model, so none is left.
        unsafe { llama_sys::llama_model_free(self.ptr.as_ptr()) };
    }
}

impl Model {
    /// Loads a GGUF file. `progress` gets 0.0 to 1.0 and stops the load by returning false.
    ///
    /// # Errors
    ///
    /// [`Error::Failed`] with llama.cpp's own message.
    pub fn load(path: &Path, params: &ModelParams, progress: &mut dyn FnMut(f32) -> bool) -> Result<Self, Error> {
        Backend::init();
        let c_path = c_path(path)?;
        let mut devices = raw_devices(params);
        let mut progress = Progress { report: progress, cancelled: false };
        let mut raw = raw_params(params, &mut devices);
        raw.progress_callback = Some(on_progress);
        raw.progress_callback_user_data = (&raw mut progress).cast();
        let mut ptr = std::ptr::null_mut();
        // SAFETY: path, device list and progress outlive the call; llama.cpp keeps none of them.
        let loaded = check(|err| unsafe { llama_sys::onebit_model_load(c_path.as_ptr(), raw, &raw mut ptr, err) });
        match (loaded, NonNull::new(ptr)) {
            (Ok(()), Some(ptr)) => Ok(Self { ptr }),
            (Err(_), _) if progress.cancelled => Err(Error::Failed("cancelled".to_owned())),
            (Err(err), _) => Err(err),
            (Ok(()), None) => Err(Error::Failed("llama.cpp returned no model".to_owned())),
        }
    }

    /// What [`Model::load`] and a context would take of the host's memory, found by a dry run that allocates nothing.
    pub fn memory_need(path: &Path, params: &ModelParams, context: &ContextParams) -> Result<MemoryNeed, Error> {
        Backend::init();
        let c_path = c_path(path)?;
        let mut devices = raw_devices(params);
        let raw = raw_params(params, &mut devices);
        let (mut model, mut kv, mut compute) = (0, 0, 0);
        // SAFETY: everything passed outlives the call.
        check(|err| unsafe {
            llama_sys::onebit_memory_need(
                c_path.as_ptr(),
                raw,
                context.to_raw(),
                &raw mut model,
                &raw mut kv,
                &raw mut compute,
                err,
            )
        })?;
        Ok(MemoryNeed { model: model as u64, context: kv as u64, compute: compute as u64 })
    }

    pub(super) fn as_ptr(&self) -> *mut llama_sys::llama_model {
        self.ptr.as_ptr()
    }

    /// The vocabulary.
    pub fn vocab(&self) -> Vocab<'_> {
        // SAFETY: the model is alive and owns the vocabulary; the lifetime ties the two.
        unsafe { Vocab::from_raw(llama_sys::llama_model_get_vocab(self.as_ptr())) }
    }

    /// llama.cpp's one-line description, such as `llama ?B Q4_1`.
    pub fn description(&self) -> String {
        // SAFETY: writes at most `len` bytes into the buffer.
        read_buffer(|buffer, len| unsafe { llama_sys::llama_model_desc(self.as_ptr(), buffer, len) })
            .unwrap_or_default()
    }

    /// A metadata value as text, such as `general.architecture`.
    pub fn metadata(&self, key: &str) -> Option<String> {
        let key = c_string(key).ok()?;
        // SAFETY: writes at most `len` bytes into the buffer; the key is NUL-terminated.
        read_buffer(|buffer, len| unsafe {
            llama_sys::llama_model_meta_val_str(self.as_ptr(), key.as_ptr(), buffer, len)
        })
    }

    /// File type, such as `Q4_K - Medium`.
    pub fn file_type(&self) -> String {
        // SAFETY: the model is alive; the name is a static string.
        unsafe { copy_str(llama_sys::llama_ftype_name(llama_sys::llama_model_ftype(self.as_ptr()))) }
            .unwrap_or_default()
    }

    /// The chat template in the metadata.
    pub fn chat_template(&self) -> Option<String> {
        // SAFETY: the model is alive and owns the string; NULL for the name means the default template.
        unsafe { copy_str(llama_sys::llama_model_chat_template(self.as_ptr(), std::ptr::null())) }
    }

    /// Context length the model was trained with.
    pub fn n_ctx_train(&self) -> u32 {
        // SAFETY: the model is alive.
        unsigned(unsafe { llama_sys::llama_model_n_ctx_train(self.as_ptr()) })
    }

    /// Width of the embeddings that the model puts out.
    pub fn n_embd_out(&self) -> u32 {
        // SAFETY: the model is alive.
        u32::try_from(unsafe { llama_sys::llama_model_n_embd_out(self.as_ptr()) }).unwrap_or(0)
    }

    /// Width of an embedding.
    pub fn n_embd(&self) -> u32 {
        // SAFETY: the model is alive.
        unsigned(unsafe { llama_sys::llama_model_n_embd(self.as_ptr()) })
    }

    /// Number of layers.
    pub fn n_layer(&self) -> u32 {
        // SAFETY: the model is alive.
        unsigned(unsafe { llama_sys::llama_model_n_layer(self.as_ptr()) })
    }

    /// Sliding-window size in tokens; 0 for none.
    pub fn n_swa(&self) -> u32 {
        // SAFETY: the model is alive.
        unsigned(unsafe { llama_sys::llama_model_n_swa(self.as_ptr()) })
    }

    /// Number of parameters.
    pub fn n_params(&self) -> u64 {
        // SAFETY: the model is alive.
        unsafe { llama_sys::llama_model_n_params(self.as_ptr()) }
    }

    /// Size of all tensors in bytes.
    pub fn n_bytes(&self) -> u64 {
        // SAFETY: the model is alive.
        unsafe { llama_sys::llama_model_size(self.as_ptr()) }
    }

    /// Whether the memory is one running state instead of (recurrent), or beside (hybrid), a cell for each token.
    pub fn has_recurrent_state(&self) -> bool {
        self.is_recurrent() || self.is_hybrid()
    }

    /// Purely recurrent, such as Mamba.
    pub fn is_recurrent(&self) -> bool {
        // SAFETY: the model is alive.
        unsafe { llama_sys::llama_model_is_recurrent(self.as_ptr()) }
    }

    /// Attention and recurrent layers, such as Jamba.
    pub fn is_hybrid(&self) -> bool {
        // SAFETY: the model is alive.
        unsafe { llama_sys::llama_model_is_hybrid(self.as_ptr()) }
    }

    /// Positions are kept for each dimension of an image (M-RoPE), so a cell has an extension in a state file.
    pub fn has_mrope(&self) -> bool {
        // SAFETY: the model is alive.
        let rope = unsafe { llama_sys::llama_model_rope_type(self.as_ptr()) };
        matches!(rope, llama_sys::LLAMA_ROPE_TYPE_MROPE | llama_sys::LLAMA_ROPE_TYPE_IMROPE)
    }

    /// Whether text can be generated with it (not so for encoders).
    pub fn has_decoder(&self) -> bool {
        // SAFETY: the model is alive.
        unsafe {
            llama_sys::llama_model_has_decoder(self.as_ptr()) && !llama_sys::llama_model_has_encoder(self.as_ptr())
        }
    }
}

/// A NULL-terminated device list, as llama.h wants it. An empty one keeps llama.cpp from taking every device it finds.
fn raw_devices(params: &ModelParams) -> Vec<llama_sys::ggml_backend_dev_t> {
    let mut devices: Vec<_> = params.devices.iter().map(Device::as_raw).collect();
    devices.push(std::ptr::null_mut());
    devices
}

fn raw_params(params: &ModelParams, devices: &mut [llama_sys::ggml_backend_dev_t]) -> llama_sys::llama_model_params {
    // SAFETY: returns a plain struct.
    let mut raw = unsafe { llama_sys::llama_model_default_params() };
    raw.devices = devices.as_mut_ptr();
    raw.n_gpu_layers = params.n_gpu_layers.map_or(-1, |n| i32::try_from(n).unwrap_or(i32::MAX));
    raw.vocab_only = params.vocab_only;
    // A model's own multi-token-prediction head stays off: its layers would change what a state file holds.
    raw.load_mtp = false;
    raw
}

fn unsigned(value: i32) -> u32 {
    u32::try_from(value).unwrap_or(0)
}
