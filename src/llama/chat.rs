//! Chat templates, answer parsing and schema conversion, from llama.cpp's `common` through the shim. JSON in, JSON out:
//! the shapes are in `llama-sys/shim/shim.h`.

use std::ptr::NonNull;
use std::sync::Arc;

use super::error::check;
use super::strings::{c_string, take_string};
use super::{Error, Model};

/// The chat templates of a model (or one given in their place).
pub struct ChatTemplates {
    ptr: NonNull<llama_sys::onebit_chat>,
    // The templates point into the model's vocabulary.
    _model: Arc<Model>,
}

// SAFETY: common's templates are only read after construction; llama-server applies one object on many threads at once.
unsafe impl Send for ChatTemplates {}
// SAFETY: as above.
unsafe impl Sync for ChatTemplates {}

impl Drop for ChatTemplates {
    fn drop(&mut self) {
        // SAFETY: the only owner.
        unsafe { llama_sys::onebit_chat_free(self.ptr.as_ptr()) };
    }
}

impl ChatTemplates {
    /// Reads the model's templates, or parses `template_override` (Jinja) instead.
    pub fn new(model: &Arc<Model>, template_override: Option<&str>) -> Result<Self, Error> {
        let source = c_string(template_override.unwrap_or_default())?;
        let mut ptr = std::ptr::null_mut();
        // SAFETY: the model is alive and kept so by the Arc; the source outlives the call.
        check(|err| unsafe { llama_sys::onebit_chat_new(model.as_ptr(), source.as_ptr(), &raw mut ptr, err) })?;
        let ptr = NonNull::new(ptr).ok_or_else(|| Error::Failed("no chat templates".to_owned()))?;
        Ok(Self { ptr, _model: model.clone() })
    }

    /// Source, capabilities: `onebit_chat_info` in shim.h.
    pub fn info(&self) -> Result<String, Error> {
        // SAFETY: the object is alive; the shim sets the string on success.
        string_from(|out, err| unsafe { llama_sys::onebit_chat_info(self.ptr.as_ptr(), out, err) })
    }

    /// Renders a request: `onebit_chat_apply` in shim.h. [`Error::Invalid`] carries the template's own exception.
    pub fn apply(&self, request: &str) -> Result<String, Error> {
        let request = c_string(request)?;
        // SAFETY: the object is alive; the request outlives the call.
        string_from(|out, err| unsafe { llama_sys::onebit_chat_apply(self.ptr.as_ptr(), request.as_ptr(), out, err) })
    }
}

/// Parses one answer into content, reasoning and tool calls, as it grows.
pub struct ChatParser {
    ptr: NonNull<llama_sys::onebit_chat_parser>,
}

// SAFETY: the parser has no tie to a thread and is reached through `&mut` only.
unsafe impl Send for ChatParser {}

impl Drop for ChatParser {
    fn drop(&mut self) {
        // SAFETY: the only owner.
        unsafe { llama_sys::onebit_chat_parser_free(self.ptr.as_ptr()) };
    }
}

impl ChatParser {
    /// A parser for the answer to a request that [`ChatTemplates::apply`] rendered into `params`.
    pub fn new(params: &str) -> Result<Self, Error> {
        let params = c_string(params)?;
        let mut ptr = std::ptr::null_mut();
        // SAFETY: the parameters outlive the call.
        check(|err| unsafe { llama_sys::onebit_chat_parser_new(params.as_ptr(), &raw mut ptr, err) })?;
        let ptr = NonNull::new(ptr).ok_or_else(|| Error::Failed("no chat parser".to_owned()))?;
        Ok(Self { ptr })
    }

    /// Parses the whole answer so far; the reply has what is new since the last call: `onebit_chat_parser_parse` in shim.h.
    pub fn parse(&mut self, answer: &str, is_partial: bool) -> Result<String, Error> {
        // SAFETY: the answer is passed with its length and outlives the call.
        string_from(|out, err| unsafe {
            llama_sys::onebit_chat_parser_parse(
                self.ptr.as_ptr(),
                answer.as_ptr().cast(),
                answer.len(),
                is_partial,
                out,
                err,
            )
        })
    }
}

/// Turns a JSON schema into a GBNF grammar. [`Error::Invalid`] says what cannot be turned.
pub fn schema_to_grammar(schema: &str) -> Result<String, Error> {
    let schema = c_string(schema)?;
    // SAFETY: the schema outlives the call.
    let gbnf = string_from(|out, err| unsafe { llama_sys::onebit_schema_to_grammar(schema.as_ptr(), out, err) })?;
    super::grammar_guard::check(&gbnf)?;
    Ok(gbnf)
}

fn string_from(
    call: impl FnOnce(*mut *mut std::ffi::c_char, *mut *mut std::ffi::c_char) -> llama_sys::onebit_status,
) -> Result<String, Error> {
    let mut text = std::ptr::null_mut();
    check(|err| call(&raw mut text, err))?;
    take_string(text).ok_or_else(|| Error::Failed("out of memory".to_owned()))
}
