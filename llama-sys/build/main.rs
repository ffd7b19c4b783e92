//! Builds llama.cpp and binds it: choose the source, compile it with cmake, compile the shim, generate bindings, link.
//! Each step is a module of its own; a step that fails ends the build with one sentence that says what to do.

mod bindings;
mod cmake;
mod licenses;
mod link;
mod pins;
mod source;
mod tools;

use std::path::PathBuf;

/// A sentence for the person at the terminal: what is wrong, and the way out.
type Result<T> = std::result::Result<T, String>;

fn main() {
    if let Err(message) = run() {
        // `cargo::error` prints the sentence as cargo's own error, without a backtrace around it.
        println!("cargo::error={}", message.replace('\n', " "));
        std::process::exit(1);
    }
}

fn run() -> Result<()> {
    let manifest_dir = PathBuf::from(env("CARGO_MANIFEST_DIR")?);
    let out_dir = PathBuf::from(env("OUT_DIR")?);
    for input in ["build", "shim"] {
        println!("cargo::rerun-if-changed={input}");
    }

    let pins = pins::read(&manifest_dir)?;
    let source = source::locate(&manifest_dir, &pins)?;
    tools::require_all()?;

    let features = cmake::Features::from_env();
    features.check(&source)?;
    let tree = cmake::build(&source, &features, &out_dir)?;
    bindings::generate(&manifest_dir, &source, &out_dir)?;
    link::compile_shim(&manifest_dir, &source, &tree)?;
    link::emit(&tree)?;
    licenses::collect(&source, &out_dir)?;

    println!("cargo::rustc-env=ONEBIT_LLAMA_SOURCE={}", source.describe());
    println!("cargo::metadata=source={}", source.describe());
    Ok(())
}

/// A variable that cargo sets for build scripts.
fn env(name: &str) -> Result<String> {
    std::env::var(name).map_err(|_| format!("{name} is not set: this build script is run by cargo"))
}

/// An environment variable of the user's, and a rebuild when it changes.
fn user_env(name: &str) -> Option<String> {
    println!("cargo::rerun-if-env-changed={name}");
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
