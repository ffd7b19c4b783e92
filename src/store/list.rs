//! A store as people see it: what is in it, whether it is whole, and away with it.

use std::fs;
use std::io::{self, BufReader, Seek};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::disk::{self, ABOUT};
use super::identity::About;
use crate::state;

/// The states of one model and cache.
#[derive(Debug)]
pub struct Family {
    /// The identity: the name of the folder.
    pub key: String,
    /// What it stands for; `None` when that file is gone or is none.
    pub about: Option<About>,
    /// The most recently used first.
    pub entries: Vec<Entry>,
}

/// One state.
#[derive(Debug)]
pub struct Entry {
    /// Where it is.
    pub path: PathBuf,
    /// The file's name.
    pub name: String,
    /// Bytes of the file.
    pub n_bytes: u64,
    /// Tokens that it stands for, or why they cannot be read.
    pub n_tokens: Result<usize, String>,
    /// When it was written or last used.
    pub used: SystemTime,
    /// Whether a prefill provider computed it.
    pub is_foreign: bool,
}

/// Everything in a store.
///
/// # Errors
///
/// That the folder cannot be read.
pub fn families(store: &Path) -> io::Result<Vec<Family>> {
    let mut families = Vec::new();
    for folder in disk::folders(store)? {
        let about = fs::read_to_string(folder.join(ABOUT)).ok();
        let mut entries: Vec<Entry> = disk::states(&folder).into_iter().map(Entry::new).collect();
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.used));
        families.push(Family {
            key: folder.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            about: about.and_then(|text| serde_json::from_str(&text).ok()),
            entries,
        });
    }
    families.sort_by(|a, b| a.key.cmp(&b.key));
    Ok(families)
}

/// Removes the folders that hold no state any more. A server makes its own again.
pub fn remove_empty(store: &Path) {
    for folder in disk::folders(store).unwrap_or_default() {
        if disk::states(&folder).is_empty() {
            let _ = fs::remove_file(folder.join(ABOUT));
            // Stays when there is something else in it.
            let _ = fs::remove_dir(&folder);
        }
    }
}

impl Entry {
    fn new(state: disk::OnDisk) -> Self {
        let n_tokens = disk::open(&state.path).map_err(|error| error.to_string()).and_then(|file| {
            let header = state::read_header(&mut BufReader::new(file), state.n_bytes);
            header.map(|header| header.ids.len()).map_err(|error| error.to_string())
        });
        let disk::OnDisk { path, name, n_bytes, used } = state;
        Self { path, name: name.to_string(), n_bytes, n_tokens, used, is_foreign: name.is_foreign() }
    }

    /// Reads the whole file: its bytes are those that were written, and they are a state.
    ///
    /// # Errors
    ///
    /// What is wrong with it, in words.
    pub fn verify(&self) -> Result<(), String> {
        let text = |error: io::Error| error.to_string();
        let name: super::Name = self.name.parse().map_err(|()| "its name is none of a state".to_owned())?;
        let mut file = disk::open(&self.path).map_err(text)?;
        let len = file.metadata().map_err(text)?.len();
        let report = state::inspect(&mut BufReader::new(&mut file), len, None).map_err(|error| error.to_string())?;
        if let Some(problem) = report.problem {
            return Err(problem.to_string());
        }
        if !name.is_of(&report.header.ids) {
            return Err("its ids are not those that it was written for".to_owned());
        }
        file.rewind().map_err(text)?;
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(&mut file).map_err(text)?;
        if !name.has_sum(hasher.finalize()) {
            return Err("its bytes are not those that were written".to_owned());
        }
        Ok(())
    }
}
