//! The prefix store: states of long prompts on disk, found again after a restart and by other processes.
//!
//! It knows files and token ids, and no engine: the decode thread asks it for the longest state that a prompt begins with,
//! restores that through the checks of any file from outside, and gives it new states to write. Whatever goes wrong here
//! costs a line in the log, never an answer.
//!
//! `DIR/<identity>/<ids>-<sum>.state`: a folder for each model and cache ([`Identity`]), and in it what
//! `llama_state_seq_save_file` writes, under the hash of its ids and that of its bytes. So the file itself is the truth: what
//! tokens it is for stands in its header, and whether it is whole shows in its name (nobody syncs it to disk, and after a
//! power cut a renamed file may be full of zeros, which are good numbers).
//!
//! In the order to read: this file, `name`, [`identity`], `index` (what is there), `disk` (how it gets there), [`list`] (for
//! people).
#![forbid(unsafe_code)]

mod disk;
pub mod identity;
mod index;
pub mod list;
mod name;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use parking_lot::Mutex;

pub use identity::Identity;
pub use name::Name;

use disk::Folder;
use index::Index;

/// Tokens from which on a prompt is worth a file, and a file worth a restore.
pub const DEFAULT_MIN_TOKENS: usize = 256;

/// Bytes that all states together may take.
pub const DEFAULT_MAX_BYTES: u64 = 8 << 30;

/// From this many more tokens on a longer state is written although a shorter one is there...
const MORE_TOKENS: usize = 256;
/// ...or from this part of its own on: a quarter.
const MORE_PART: usize = 4;

/// States that may wait to be written, the one in writing among them. They are in memory.
const MAX_PENDING: usize = 2;

/// Where a store is and how much it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreConfig {
    /// The folder, shared by models and processes. Made when it is not there.
    pub dir: PathBuf,
    /// Most bytes of all states in it; the ones that were not used for longest go first.
    pub max_bytes: u64,
    /// Shorter prompts are neither written nor looked for, nor is a state that spares fewer tokens.
    pub min_tokens: usize,
    /// Whether states that another program computed serve here. Where no such program is asked, answers must not depend on
    /// whether one was right.
    pub with_foreign: bool,
}

/// What the memory of the engine can do with a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Tokens that a sequence has room for.
    pub n_ctx: usize,
    /// Tokens that can be cut off the end of any state: all with plain attention, 1 with a window, 0 with a running state.
    pub max_cut: usize,
}

/// A state that a prompt begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Where it is, unless somebody has just removed it.
    pub path: PathBuf,
    /// What its name says of it.
    pub name: Name,
    /// Tokens of the prompt that it spares.
    pub n_tokens: usize,
}

/// An open store, for one model and cache.
pub struct Store {
    inner: Arc<Inner>,
    writer: Mutex<Option<(Sender<Snapshot>, JoinHandle<()>)>>,
}

/// What the handle and the writing thread have in common.
struct Inner {
    config: StoreConfig,
    memory: Memory,
    folder: Folder,
    index: Mutex<Index>,
    n_pending: AtomicUsize,
}

/// A state to be written: the bytes of the whole file.
struct Snapshot {
    ids: Vec<i32>,
    bytes: Vec<u8>,
    is_foreign: bool,
}

impl Store {
    /// Opens the folder of this identity, and starts the thread that writes.
    ///
    /// # Errors
    ///
    /// That the folder cannot be made, or is not this user's alone.
    pub fn open(config: StoreConfig, identity: &Identity, memory: Memory) -> std::io::Result<Self> {
        // A state that spares nothing is never worth a restore.
        let config = StoreConfig { min_tokens: config.min_tokens.max(1), ..config };
        let folder = Folder::open(&config.dir, identity)?;
        let index = Mutex::new(Index::default());
        let inner = Arc::new(Inner { config, memory, folder, index, n_pending: AtomicUsize::new(0) });
        let (sender, receiver) = channel::<Snapshot>();
        let for_thread = inner.clone();
        let thread = std::thread::Builder::new().name("onebit-store".to_owned()).spawn(move || {
            for_thread.folder.sweep();
            // The first look at what is there, which no request has to wait for then.
            for_thread.index.lock().refresh(&for_thread.folder);
            for snapshot in receiver {
                for_thread.write(&snapshot);
                for_thread.index.lock().written(&snapshot.ids);
                for_thread.n_pending.fetch_sub(1, Relaxed);
            }
        })?;
        Ok(Self { inner, writer: Mutex::new(Some((sender, thread))) })
    }

    /// The state that spares most of a prompt whose first `n_held` tokens are there already; `None` when that is not worth
    /// it. The last token of a prompt is never spared.
    pub fn find(&self, prompt: &[i32], n_held: usize) -> Option<Found> {
        let Inner { config, memory, folder, index, .. } = &*self.inner;
        if prompt.len() <= n_held + config.min_tokens {
            return None;
        }
        let mut index = index.lock();
        index.refresh(folder);
        let (name, n_tokens) = index.best(prompt, prompt.len() - 1, memory, config.with_foreign)?;
        let is_worth = n_tokens >= n_held + config.min_tokens;
        is_worth.then(|| Found { path: folder.path(&name), name, n_tokens })
    }

    /// Whether a state of these tokens would be written: long enough, clearly more than what is there, and the thread is not
    /// busy with others.
    pub fn wants(&self, ids: &[i32]) -> bool {
        let Inner { config, memory, folder, index, n_pending } = &*self.inner;
        if ids.len() < config.min_tokens || n_pending.load(Relaxed) >= MAX_PENDING {
            return false;
        }
        let mut index = index.lock();
        index.refresh(folder);
        let n_there = index.covered(ids, memory, config.with_foreign);
        let n_more = ids.len() - n_there;
        n_more >= MORE_TOKENS || n_more * MORE_PART >= ids.len()
    }

    /// Most bytes that a state may have.
    pub fn max_bytes(&self) -> u64 {
        self.inner.config.max_bytes
    }

    /// Writes a state in the background: the bytes of its file, whose header holds `ids`.
    pub fn put(&self, ids: Vec<i32>, bytes: Vec<u8>, is_foreign: bool) {
        let writer = self.writer.lock();
        let Some((sender, _)) = &*writer else { return };
        self.inner.index.lock().pending(ids.clone());
        self.inner.n_pending.fetch_add(1, Relaxed);
        // A thread that is gone has said why.
        let _ = sender.send(Snapshot { ids, bytes, is_foreign });
    }

    /// Counts a use: what is used stays longest.
    pub fn used(&self, found: &Found) {
        disk::touch(&found.path);
    }

    /// Takes a state out of the store that was found bad.
    pub fn refuse(&self, found: &Found, reason: &dyn std::fmt::Display) {
        self.inner.folder.refuse(&found.name, reason);
        self.inner.index.lock().forget(&found.name);
    }

    /// Takes a state out of the index: it is gone, or cannot be read now.
    pub fn missed(&self, found: &Found) {
        self.inner.index.lock().forget(&found.name);
    }

    /// Waits until all that was given is written. Nothing is taken any more.
    pub fn close(&self) {
        if let Some((sender, thread)) = self.writer.lock().take() {
            drop(sender);
            let _ = thread.join();
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.close();
    }
}

impl Inner {
    /// One file more, and as many of the oldest less as it takes.
    fn write(&self, snapshot: &Snapshot) {
        let name = Name::of(&snapshot.ids, &snapshot.bytes, snapshot.is_foreign);
        if !self.folder.write(&name, &snapshot.bytes, &self.config) {
            return;
        }
        // With plain attention the longer state does all that a shorter one did.
        if self.memory.max_cut == usize::MAX {
            let mut index = self.index.lock();
            index.refresh(&self.folder);
            for shorter in index.beginnings_of(&snapshot.ids, snapshot.is_foreign) {
                self.folder.remove(&shorter);
            }
        }
    }
}

#[cfg(test)]
mod tests;
