//! Text across the border.

use std::ffi::{CStr, CString, c_char};
use std::path::Path;

use super::Error;

/// Takes a string that the shim allocated. `None` for NULL. Invalid UTF-8 is replaced.
pub(super) fn take_string(text: *mut c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: the shim hands out NUL-terminated strings (onebit_copy), and this is their only owner.
    let copy = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
    // SAFETY: allocated by the shim with malloc, freed once, not used after.
    unsafe { llama_sys::onebit_string_free(text) };
    Some(copy)
}

/// Copies a string that C keeps. `None` for NULL. Invalid UTF-8 is replaced.
///
/// # Safety
///
/// `text` is NULL or points to a NUL-terminated string that stays valid during the call.
pub(super) unsafe fn copy_str(text: *const c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

pub(super) fn c_string(text: impl Into<Vec<u8>>) -> Result<CString, Error> {
    CString::new(text).map_err(|_| Error::Nul)
}

pub(super) fn c_path(path: &Path) -> Result<CString, Error> {
    c_string(path.as_os_str().as_encoded_bytes())
}

/// Calls a llama.h function of the `snprintf` kind: it writes up to the buffer's size and returns the length it needed.
pub(super) fn read_buffer(mut call: impl FnMut(*mut c_char, usize) -> i32) -> Option<String> {
    let mut buffer = vec![0u8; 256];
    loop {
        let needed = usize::try_from(call(buffer.as_mut_ptr().cast(), buffer.len())).ok()?;
        if needed < buffer.len() {
            buffer.truncate(needed);
            return Some(String::from_utf8_lossy(&buffer).into_owned());
        }
        buffer.resize(needed + 1, 0);
    }
}
