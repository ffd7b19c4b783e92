//! Passes on what llama-sys found out: run-time library paths of a shared llama.cpp, and this tree's own revision.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // A tarball without git builds as well; the version then has no revision. HEAD's log grows with each commit, and in a
    // worktree it lies elsewhere. (Cargo takes a watched path that does not exist for one that has changed.)
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]).filter(|path| std::path::Path::new(path).exists())
    {
        println!("cargo::rerun-if-changed={log}");
    }
    let revision = git(&["rev-parse", "--short=9", "HEAD"]).unwrap_or_default();
    println!("cargo::rustc-env=ONEBIT_REVISION={revision}");

    if let Some(dirs) = std::env::var_os("DEP_ONEBIT_LLAMA_LIBDIRS") {
        for dir in std::env::split_paths(&dirs) {
            println!("cargo::rustc-link-arg=-Wl,-rpath,{}", dir.display());
        }
    }
}

fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
