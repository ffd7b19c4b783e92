//! GGUF files: where their parts lie, and writing small ones (models for tests and experiments) with llama.cpp's own writer.

use std::ffi::CString;
use std::path::Path;
use std::ptr::NonNull;

use super::Error;
use super::strings::{c_path, c_string};

/// Where the parts of a GGUF file lie, in bytes from its start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outline {
    /// The first byte after metadata and tensor table: the weights begin here.
    pub data: u64,
    /// The first byte of each tensor's weights.
    pub tensors: Vec<u64>,
}

/// Reads metadata and tensor table, no weights.
pub fn outline(path: &Path) -> Result<Outline, Error> {
    let gguf = described(path)?;
    // SAFETY: the file's description is alive, and the indices are below its count.
    unsafe {
        let data = llama_sys::gguf_get_data_offset(gguf.gguf.as_ptr()) as u64;
        let n_tensors = llama_sys::gguf_get_n_tensors(gguf.gguf.as_ptr());
        let offset = |index| data + llama_sys::gguf_get_tensor_offset(gguf.gguf.as_ptr(), index) as u64;
        Ok(Outline { data, tensors: (0..n_tensors).map(offset).collect() })
    }
}

/// A file's description, without its tensors' data; in an owner that frees it.
fn described(path: &Path) -> Result<Writer, Error> {
    let path_text = c_path(path)?;
    let params = llama_sys::gguf_init_params { no_alloc: true, ctx: std::ptr::null_mut() };
    // SAFETY: the path outlives the call; without `ctx` no tensors are made.
    let gguf = NonNull::new(unsafe { llama_sys::gguf_init_from_file(path_text.as_ptr(), params) });
    let gguf = gguf.ok_or_else(|| Error::Failed(format!("cannot read {}", path.display())))?;
    Ok(Writer { gguf, tensors: Vec::new() })
}

/// Whether a file has a tensor of this name.
pub fn has_tensor(path: &Path, name: &str) -> Result<bool, Error> {
    let (gguf, name) = (described(path)?, c_string(name)?);
    // SAFETY: the file's description is alive, and the name is NUL-terminated.
    Ok(unsafe { llama_sys::gguf_find_tensor(gguf.gguf.as_ptr(), name.as_ptr()) } >= 0)
}

/// A GGUF file in the making: metadata and f32 tensors, all in memory until [`Writer::write`].
pub struct Writer {
    gguf: NonNull<llama_sys::gguf_context>,
    tensors: Vec<Tensor>,
}

struct Tensor {
    name: CString,
    shape: Vec<i64>,
    data: Vec<f32>,
}

impl Drop for Writer {
    fn drop(&mut self) {
        // SAFETY: the only owner.
        unsafe { llama_sys::gguf_free(self.gguf.as_ptr()) };
    }
}

impl Writer {
    /// An empty file.
    pub fn new() -> Result<Self, Error> {
        // SAFETY: no preconditions.
        let gguf = NonNull::new(unsafe { llama_sys::gguf_init_empty() });
        Ok(Self { gguf: gguf.ok_or_else(|| Error::Failed("out of memory".to_owned()))?, tensors: Vec::new() })
    }

    /// Sets a text.
    pub fn text(&mut self, key: &str, value: &str) -> Result<&mut Self, Error> {
        let (key, value) = (c_string(key)?, c_string(value)?);
        // SAFETY: gguf copies both strings.
        unsafe { llama_sys::gguf_set_val_str(self.gguf.as_ptr(), key.as_ptr(), value.as_ptr()) };
        Ok(self)
    }

    /// Sets a u32.
    pub fn number(&mut self, key: &str, value: u32) -> Result<&mut Self, Error> {
        let key = c_string(key)?;
        // SAFETY: gguf copies the key.
        unsafe { llama_sys::gguf_set_val_u32(self.gguf.as_ptr(), key.as_ptr(), value) };
        Ok(self)
    }

    /// Sets an f32.
    pub fn float(&mut self, key: &str, value: f32) -> Result<&mut Self, Error> {
        let key = c_string(key)?;
        // SAFETY: gguf copies the key.
        unsafe { llama_sys::gguf_set_val_f32(self.gguf.as_ptr(), key.as_ptr(), value) };
        Ok(self)
    }

    /// Sets a bool.
    pub fn flag(&mut self, key: &str, value: bool) -> Result<&mut Self, Error> {
        let key = c_string(key)?;
        // SAFETY: gguf copies the key.
        unsafe { llama_sys::gguf_set_val_bool(self.gguf.as_ptr(), key.as_ptr(), value) };
        Ok(self)
    }

    /// Sets a list of texts.
    pub fn texts(&mut self, key: &str, values: &[String]) -> Result<&mut Self, Error> {
        let key = c_string(key)?;
        let values = values.iter().map(|value| c_string(value.as_str())).collect::<Result<Vec<_>, _>>()?;
        let mut pointers: Vec<_> = values.iter().map(|value| value.as_ptr()).collect();
        // SAFETY: gguf copies key and strings; the count is the list's.
        unsafe { llama_sys::gguf_set_arr_str(self.gguf.as_ptr(), key.as_ptr(), pointers.as_mut_ptr(), pointers.len()) };
        Ok(self)
    }

    /// Sets a list of f32.
    pub fn floats(&mut self, key: &str, values: &[f32]) -> Result<&mut Self, Error> {
        self.array(key, llama_sys::GGUF_TYPE_FLOAT32, values)
    }

    /// Sets a list of i32.
    pub fn integers(&mut self, key: &str, values: &[i32]) -> Result<&mut Self, Error> {
        self.array(key, llama_sys::GGUF_TYPE_INT32, values)
    }

    fn array<T: Copy>(&mut self, key: &str, kind: llama_sys::gguf_type, values: &[T]) -> Result<&mut Self, Error> {
        let key = c_string(key)?;
        // SAFETY: `kind` is the type of T at both call sites; gguf copies the values.
        unsafe {
            llama_sys::gguf_set_arr_data(self.gguf.as_ptr(), key.as_ptr(), kind, values.as_ptr().cast(), values.len());
        }
        Ok(self)
    }

    /// Adds an f32 tensor. `shape` counts from the fastest-changing dimension, as ggml does: a matrix that maps n inputs
    /// to m outputs is `[n, m]`.
    pub fn tensor(&mut self, name: &str, shape: &[usize], data: Vec<f32>) -> Result<&mut Self, Error> {
        let elements: usize = shape.iter().product();
        if shape.is_empty() || shape.len() > 4 || elements != data.len() {
            return Err(Error::Invalid(format!("tensor {name}: shape {shape:?} does not hold {} values", data.len())));
        }
        let shape = shape.iter().map(|&n| i64::try_from(n).unwrap_or(i64::MAX)).collect();
        self.tensors.push(Tensor { name: c_string(name)?, shape, data });
        Ok(self)
    }

    /// Writes the file.
    pub fn write(self, path: &Path) -> Result<(), Error> {
        let path_text = c_path(path)?;
        // SAFETY: a ggml context without data memory (no_alloc) for the tensors' headers only; it is freed below, after
        // gguf has copied headers and written the data, which `self.tensors` owns until then.
        let written = unsafe {
            let ggml = llama_sys::ggml_init(llama_sys::ggml_init_params {
                mem_size: llama_sys::ggml_tensor_overhead() * (self.tensors.len() + 1),
                mem_buffer: std::ptr::null_mut(),
                no_alloc: true,
            });
            if ggml.is_null() {
                return Err(Error::Failed("out of memory".to_owned()));
            }
            for tensor in &self.tensors {
                let n_dims = i32::try_from(tensor.shape.len()).unwrap_or(4);
                let header = llama_sys::ggml_new_tensor(ggml, llama_sys::GGML_TYPE_F32, n_dims, tensor.shape.as_ptr());
                llama_sys::ggml_set_name(header, tensor.name.as_ptr());
                (*header).data = tensor.data.as_ptr().cast_mut().cast();
                llama_sys::gguf_add_tensor(self.gguf.as_ptr(), header);
            }
            let written = llama_sys::gguf_write_to_file(self.gguf.as_ptr(), path_text.as_ptr(), false);
            llama_sys::ggml_free(ggml);
            written
        };
        if written { Ok(()) } else { Err(Error::Failed(format!("cannot write {}", path.display()))) }
    }
}
