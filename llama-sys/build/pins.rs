//! `vendor/PINS.toml`: which llama.cpp trees this version of onebit is made for.

use std::path::Path;

use serde::Deserialize;

use crate::Result;

#[derive(Deserialize)]
pub struct Pins {
    pub cpu: CpuPin,
    pub hrx: HrxPin,
}

/// The crates.io package whose `llama.cpp/` folder is the default source.
#[derive(Deserialize)]
pub struct CpuPin {
    pub package: String,
    pub version: String,
    pub llama_build: u32,
}

/// The fork that has AMD's HRX backend.
#[derive(Deserialize)]
pub struct HrxPin {
    pub repository: String,
    pub commit: String,
}

pub fn read(manifest_dir: &Path) -> Result<Pins> {
    let path = manifest_dir.join("../vendor/PINS.toml");
    println!("cargo::rerun-if-changed={}", path.display());
    let text = std::fs::read_to_string(&path).map_err(|err| format!("cannot read {}: {err}", path.display()))?;
    toml::from_str(&text).map_err(|err| format!("{} is not what the build expects: {err}", path.display()))
}
