//! Run-time libraries that a backend loads by itself.

use std::path::Path;

/// Whether a shared library can be loaded; the linker's own words when it cannot.
pub fn probe_library(path: &Path) -> Result<(), String> {
    // SAFETY: loading runs the library's initialisers; it is the very library that the HRX backend loads right after, named
    // by the user or installed as that backend's run-time.
    let library = unsafe { libloading::Library::new(path) };
    library.map(drop).map_err(|err| err.to_string())
}

/// Sets a variable of this process's environment for C code that reads it. Call it at start-up, before other threads exist.
pub fn set_environment(name: &str, value: &Path) {
    // SAFETY: the command line calls this first thing in `main`, while the process has one thread.
    unsafe { std::env::set_var(name, value) };
}
