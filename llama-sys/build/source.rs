//! Where llama.cpp comes from: `ONEBIT_LLAMA_SRC`, else `vendor/llama.cpp`, else the pinned crates.io package.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::pins::Pins;
use crate::{Result, env, user_env};

/// A llama.cpp source tree.
pub struct Source {
    pub dir: PathBuf,
    pub origin: Origin,
    /// llama.cpp's build number where it is known; a checkout tells its own through git.
    pub build_number: Option<u32>,
}

pub enum Origin {
    Pin { package: String, version: String },
    Checkout { commit: Option<String> },
}

impl Source {
    /// One line for `onebit --version` and for logs; no path of this machine in it.
    pub fn describe(&self) -> String {
        match &self.origin {
            Origin::Pin { package, version } => format!("{package} {version}"),
            Origin::Checkout { commit: Some(commit) } => format!("checkout at {commit}"),
            Origin::Checkout { commit: None } => "checkout without git".to_owned(),
        }
    }
}

pub fn locate(manifest_dir: &Path, pins: &Pins) -> Result<Source> {
    if let Some(dir) = user_env("ONEBIT_LLAMA_SRC") {
        return checkout(PathBuf::from(dir), "ONEBIT_LLAMA_SRC", pins);
    }
    // The folder above is watched, because cargo takes a watched path that does not exist for one that has changed.
    let vendored = manifest_dir.join("../vendor/llama.cpp");
    println!("cargo::rerun-if-changed={}", manifest_dir.join("../vendor").display());
    if vendored.join("CMakeLists.txt").is_file() {
        return checkout(vendored, "vendor/llama.cpp", pins);
    }
    pinned(manifest_dir, pins)
}

fn checkout(dir: PathBuf, named_by: &str, pins: &Pins) -> Result<Source> {
    let dir = dir
        .canonicalize()
        .map_err(|err| format!("{named_by} names {}, which cannot be opened: {err}", dir.display()))?;
    if !dir.join("include/llama.h").is_file() {
        return Err(format!(
            "{named_by} names {}, which has no include/llama.h: it is not a llama.cpp tree",
            dir.display()
        ));
    }
    for part in ["CMakeLists.txt", "include", "src", "common", "ggml"] {
        println!("cargo::rerun-if-changed={}", dir.join(part).display());
    }
    let commit = git_head(&dir);
    if commit.as_deref() != Some(pins.hrx.commit.as_str()) {
        println!(
            "cargo::warning=llama.cpp at {named_by} is at commit {}; onebit is made for {} at {}",
            commit.as_deref().unwrap_or("unknown (no git checkout)"),
            pins.hrx.repository,
            pins.hrx.commit,
        );
    }
    Ok(Source { dir, origin: Origin::Checkout { commit }, build_number: None })
}

fn git_head(dir: &Path) -> Option<String> {
    if !dir.join(".git").exists() {
        return None;
    }
    let output = Command::new("git").arg("-C").arg(dir).args(["rev-parse", "HEAD"]).output().ok()?;
    let head = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !head.is_empty()).then_some(head)
}

/// Asks cargo for the pinned package: it downloads and verifies it on first use, and never compiles it.
fn pinned(manifest_dir: &Path, pins: &Pins) -> Result<Source> {
    let manifest = manifest_dir.join("../vendor/llama-pin/Cargo.toml");
    for file in ["Cargo.toml", "Cargo.lock"] {
        println!("cargo::rerun-if-changed={}", manifest.with_file_name(file).display());
    }
    let output = Command::new(env("CARGO")?)
        .args(["metadata", "--format-version", "1", "--locked", "--manifest-path"])
        .arg(&manifest)
        // Otherwise the inner cargo would take the outer build's directory and flags for its own.
        .env_remove("CARGO_TARGET_DIR")
        .env_remove("RUSTFLAGS")
        .output()
        .map_err(|err| format!("cannot run cargo metadata for vendor/llama-pin: {err}"))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        let reason = stderr.lines().find(|line| line.starts_with("error")).unwrap_or("no reason given");
        return Err(format!(
            "cargo cannot fetch {} {}, whose llama.cpp tree this build needs ({reason}): \
             connect to crates.io, or set ONEBIT_LLAMA_SRC to a llama.cpp checkout",
            pins.cpu.package, pins.cpu.version
        ));
    }
    let manifest_path = find_package(&output.stdout, pins)?;
    let dir = manifest_path.with_file_name("llama.cpp");
    if !dir.join("include/llama.h").is_file() {
        return Err(format!("{} has no include/llama.h: the package is not the pinned one", dir.display()));
    }
    let origin = Origin::Pin { package: pins.cpu.package.clone(), version: pins.cpu.version.clone() };
    Ok(Source { dir, origin, build_number: Some(pins.cpu.llama_build) })
}

fn find_package(metadata: &[u8], pins: &Pins) -> Result<PathBuf> {
    let metadata: serde_json::Value =
        serde_json::from_slice(metadata).map_err(|err| format!("cargo metadata printed no JSON: {err}"))?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    packages
        .filter(|package| package["name"] == pins.cpu.package && package["version"] == pins.cpu.version)
        .find_map(|package| package["manifest_path"].as_str())
        .map(PathBuf::from)
        .ok_or_else(|| {
            format!(
                "vendor/llama-pin does not name {} {}, which vendor/PINS.toml asks for: bring the two in step",
                pins.cpu.package, pins.cpu.version
            )
        })
}
