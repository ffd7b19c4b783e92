//! llama.cpp's log lines go to `tracing` (target `llama.cpp`); error lines are also kept for the error that follows.

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_void};

use llama_sys::{
    GGML_LOG_LEVEL_CONT, GGML_LOG_LEVEL_DEBUG, GGML_LOG_LEVEL_ERROR, GGML_LOG_LEVEL_INFO, GGML_LOG_LEVEL_WARN,
    ggml_log_level,
};

use super::callback::no_unwind;

/// One thread's log state. llama.cpp logs on the thread that calls it, so a failed call's lines are found here.
#[derive(Default)]
struct ThreadLog {
    /// A line that has not ended yet, and its level.
    partial: String,
    level: ggml_log_level,
    /// Error lines since [`capture`] began.
    errors: Vec<String>,
    capturing: bool,
}

thread_local! {
    static LOG: RefCell<ThreadLog> = RefCell::default();
}

/// Routes llama.cpp's and ggml's log to `tracing`. Called once, by the backend.
pub(super) fn install() {
    // SAFETY: on_log has the signature of ggml_log_callback, needs no user data, and does not unwind.
    unsafe { llama_sys::llama_log_set(Some(on_log), std::ptr::null_mut()) };
}

extern "C" fn on_log(level: ggml_log_level, text: *const c_char, _user_data: *mut c_void) {
    no_unwind(|| {
        if text.is_null() {
            return;
        }
        // SAFETY: ggml passes a NUL-terminated string that is valid during the callback.
        let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
        // A log line written while this thread's log is borrowed (by a tracing layer that calls back) is dropped.
        LOG.with(|log| log.try_borrow_mut().map(|mut log| log.push(level, &text)).ok());
    });
}

impl ThreadLog {
    fn push(&mut self, level: ggml_log_level, text: &str) {
        if level != GGML_LOG_LEVEL_CONT {
            self.level = level;
        }
        self.partial.push_str(text);
        while let Some(end) = self.partial.find('\n') {
            let line: String = self.partial.drain(..=end).collect();
            self.line(line.trim_end());
        }
    }

    fn line(&mut self, line: &str) {
        if line.is_empty() {
            return;
        }
        match self.level {
            GGML_LOG_LEVEL_ERROR => {
                if self.capturing {
                    self.errors.push(without_function(line).to_owned());
                    tracing::debug!(target: "llama.cpp", "{line}");
                } else {
                    tracing::error!(target: "llama.cpp", "{line}");
                }
            }
            GGML_LOG_LEVEL_WARN => tracing::warn!(target: "llama.cpp", "{line}"),
            GGML_LOG_LEVEL_INFO => tracing::info!(target: "llama.cpp", "{line}"),
            GGML_LOG_LEVEL_DEBUG => tracing::debug!(target: "llama.cpp", "{line}"),
            _ => tracing::trace!(target: "llama.cpp", "{line}"),
        }
    }
}

/// llama.cpp writes `function_name: message`; only the message says something to a user.
fn without_function(line: &str) -> &str {
    match line.split_once(": ") {
        Some((name, rest)) if !name.contains(' ') && name.contains('_') && !rest.is_empty() => rest,
        _ => line,
    }
}

/// Runs a call and returns what llama.cpp logged as errors on this thread meanwhile, as one line: the first error is the
/// cause, the later ones repeat it on the way up, so the first two that differ are enough.
pub(super) fn capture<T>(call: impl FnOnce() -> T) -> (T, String) {
    LOG.with(|log| {
        let mut log = log.borrow_mut();
        log.errors.clear();
        log.capturing = true;
    });
    let result = call();
    let errors = LOG.with(|log| {
        let mut log = log.borrow_mut();
        log.capturing = false;
        std::mem::take(&mut log.errors)
    });
    (result, summarize(&errors))
}

fn summarize(errors: &[String]) -> String {
    let mut lines: Vec<&str> = Vec::new();
    for error in errors {
        let known = lines.iter().any(|line| line.contains(error.as_str()) || error.contains(*line));
        if !known && lines.len() < 2 {
            lines.push(error.as_str());
        }
    }
    lines.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn function_names_are_cut() {
        assert_eq!(without_function("llama_model_load: error loading model: x"), "error loading model: x");
        assert_eq!(without_function("no prefix here: x"), "no prefix here: x");
        assert_eq!(without_function("plain"), "plain");
    }

    #[test]
    fn lines_are_joined_across_calls_and_captured_by_level() {
        let ((), text) = capture(|| {
            LOG.with(|log| {
                let mut log = log.borrow_mut();
                log.push(GGML_LOG_LEVEL_ERROR, "a_b: half ");
                log.push(GGML_LOG_LEVEL_CONT, "line\n");
                log.push(GGML_LOG_LEVEL_INFO, "chatter\n");
                log.push(GGML_LOG_LEVEL_ERROR, "c_d: half line\n");
                log.push(GGML_LOG_LEVEL_ERROR, "e_f: second\n");
            });
        });
        assert_eq!(text, "half line; second");
    }
}
