//! The tools that a build needs beside Rust, looked for before anything is compiled.

use std::process::{Command, Stdio};

use crate::{Result, user_env};

/// Names every missing tool at once, with the one command that installs them.
pub fn require_all() -> Result<()> {
    user_env("LIBCLANG_PATH");
    user_env("CMAKE");
    let mut missing = Vec::new();
    let cmake = std::env::var("CMAKE").unwrap_or_else(|_| "cmake".to_owned());
    if !runs(&cmake) {
        missing.push(("cmake", "cmake"));
    }
    if !has_cxx() {
        missing.push(("a C++ compiler", "g++"));
    }
    if clang_sys::load().is_err() {
        missing.push(("libclang (bindgen reads llama.h with it)", "libclang-dev"));
    }
    if missing.is_empty() {
        return Ok(());
    }
    let what: Vec<_> = missing.iter().map(|(what, _)| *what).collect();
    let packages: Vec<_> = missing.iter().map(|(_, package)| *package).collect();
    Err(format!(
        "llama.cpp cannot be built without {}: install with `apt-get install {}` (or your system's equivalent)",
        what.join(" and "),
        packages.join(" ")
    ))
}

fn has_cxx() -> bool {
    let compiler = cc::Build::new().cpp(true).cargo_metadata(false).try_get_compiler();
    compiler.is_ok_and(|tool| tool.path().to_str().is_some_and(runs))
}

fn runs(program: &str) -> bool {
    let status = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}
