//! Which states can serve a model: those that it would compute itself.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::name::digits;

/// Hexadecimal digits of an identity, which are the name of its folder.
pub(super) const N_DIGITS: usize = 16;

/// Bytes that are looked at on each side of the place where a tensor's weights begin.
const SAMPLE: u64 = 4096;

/// What a state's values depend on, beside the tokens. Its words are kept beside the states, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// The model's file name.
    pub model: String,
    /// llama.cpp's words for it.
    pub description: String,
    /// Type of the K cache.
    pub cache_type_k: String,
    /// Type of the V cache.
    pub cache_type_v: String,
    /// Version of the state files.
    pub state_version: u32,
    /// Whether the context is longer than the one that the model's rope was made for: some models turn K by other factors then.
    pub long_rope: bool,
}

/// A file of the model, and where its parts lie, in bytes from its start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelPart {
    /// The file.
    pub path: PathBuf,
    /// Where metadata and tensor table end and the weights begin.
    pub data: u64,
    /// Where each tensor's weights begin.
    pub tensors: Vec<u64>,
}

/// The name of one model and cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// 16 hexadecimal digits.
    pub key: String,
    /// In words.
    pub about: About,
}

impl Identity {
    /// Reads the files' metadata, tensor tables, sizes, and a sample of the weights: 4 KiB on each side of every tensor's
    /// beginning, and the last 4 KiB. All weights would take as long as loading the model. Two models that are alike in all of
    /// that and differ between are taken for one; the probe of restored values is what finds them then.
    ///
    /// # Errors
    ///
    /// That a file cannot be read.
    pub fn read(about: About, parts: &[ModelPart]) -> io::Result<Self> {
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"onebit prefix store 1\n");
        let About { model: _, description: _, cache_type_k, cache_type_v, state_version, long_rope } = &about;
        hasher.update(format!("{cache_type_k} {cache_type_v} {state_version} {long_rope}\n").as_bytes());
        for part in parts {
            add(&mut hasher, part)?;
        }
        Ok(Self { key: digits(hasher.finalize(), N_DIGITS), about })
    }
}

fn add(hasher: &mut blake3::Hasher, part: &ModelPart) -> io::Result<()> {
    let mut file = File::open(&part.path)?;
    let len = file.metadata()?.len();
    hasher.update(&len.to_le_bytes());
    let mut read = |from: u64, to: u64| -> io::Result<()> {
        file.seek(SeekFrom::Start(from))?;
        hasher.update_reader((&mut file).take(to.saturating_sub(from)))?;
        Ok(())
    };
    read(0, part.data)?;
    for &start in &part.tensors {
        read(start.saturating_sub(SAMPLE).max(part.data), start.saturating_add(SAMPLE))?;
    }
    read(len.saturating_sub(SAMPLE).max(part.data), len)
}

/// The files of a model whose first one this is: itself, or all of a split model (`NAME-00001-of-00003.gguf`).
pub fn parts_of(first: &Path) -> Vec<PathBuf> {
    let split = || {
        let name = first.file_name()?.to_str()?;
        let (stem, count) = name.strip_suffix(".gguf")?.rsplit_once("-00001-of-")?;
        let n: u32 = count.parse().ok().filter(|_| count.len() == 5)?;
        Some((1..=n).map(|index| first.with_file_name(format!("{stem}-{index:05}-of-{count}.gguf"))).collect())
    };
    split().unwrap_or_else(|| vec![first.to_owned()])
}
