//! Passes on what llama-sys found out: run-time library paths of a shared llama.cpp, and this tree's own revision.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=.git/HEAD");
    // A tarball without git builds as well; the version then has no revision.
    let git = Command::new("git").args(["rev-parse", "--short=9", "HEAD"]).output().ok();
    let revision =
        git.filter(|output| output.status.success()).and_then(|output| String::from_utf8(output.stdout).ok());
    println!("cargo::rustc-env=ONEBIT_REVISION={}", revision.as_deref().unwrap_or_default().trim());

    if let Some(dirs) = std::env::var_os("DEP_ONEBIT_LLAMA_LIBDIRS") {
        for dir in std::env::split_paths(&dirs) {
            println!("cargo::rustc-link-arg=-Wl,-rpath,{}", dir.display());
        }
    }
}
