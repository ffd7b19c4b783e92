//! States as files: made private, written under another name first, removed when they are old.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufReader, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::SystemTime;

use rustix::fs::OFlags;

use super::identity::{Identity, N_DIGITS};
use super::{Name, StoreConfig};
use crate::state::{self, StateError};

/// Says in words whose states a folder holds.
pub(super) const ABOUT: &str = "identity.json";

/// Names of files in writing: hidden, and no states.
const PART_SUFFIX: &str = ".part";

/// Of an identity, in a store.
pub(super) struct Folder {
    path: PathBuf,
    identity: Identity,
    /// A failure to write was told, and no write has worked since.
    has_complained: AtomicBool,
}

/// The ids of a file.
pub(super) enum Ids {
    Good(Vec<i32>),
    /// It is no state, or not the one that its name says.
    Bad(String),
    /// It is gone, or cannot be read now.
    Unread,
}

impl Folder {
    /// Makes what is not there. Errors: that this cannot be done, and that others may write to it.
    pub fn open(store: &Path, identity: &Identity) -> io::Result<Self> {
        let path = store.join(&identity.key);
        let folder = Self { path, identity: identity.clone(), has_complained: AtomicBool::new(false) };
        folder.make()?;
        Ok(folder)
    }

    fn make(&self) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.path)?;
        let metadata = fs::symlink_metadata(&self.path)?;
        // Root's will do: a store that is handed out to be read.
        let owners = [rustix::process::geteuid().as_raw(), 0];
        let is_ours = metadata.is_dir() && owners.contains(&metadata.uid());
        if !is_ours || metadata.mode() & 0o022 != 0 {
            let reason = format!("others may write to {}", self.path.display());
            return Err(io::Error::new(ErrorKind::PermissionDenied, reason));
        }
        let about = self.path.join(ABOUT);
        if !about.exists() {
            let text = serde_json::to_string_pretty(&self.identity.about).unwrap_or_default();
            // A store that can only be read still serves.
            let _ = self.place(&about, format!("{text}\n").as_bytes());
        }
        Ok(())
    }

    pub fn dir(&self) -> &Path {
        &self.path
    }

    pub fn path(&self, name: &Name) -> PathBuf {
        self.path.join(name.to_string())
    }

    /// The states that are there.
    pub fn names(&self) -> Vec<Name> {
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
    }

    pub fn read_ids(&self, name: &Name) -> Ids {
        let header = open(&self.path(name)).and_then(|file| {
            let len = file.metadata()?.len();
            Ok(state::read_header(&mut BufReader::new(file), len))
        });
        match header {
            Ok(Ok(header)) if name.is_of(&header.ids) => Ids::Good(header.ids),
            Ok(Ok(_)) => Ids::Bad("its ids are not those that it was written for".to_owned()),
            Ok(Err(StateError::Read { .. })) => Ids::Unread,
            Ok(Err(error)) => Ids::Bad(error.to_string()),
            Err(error) if error.kind() == ErrorKind::InvalidInput => Ids::Bad(error.to_string()),
            Err(_) => Ids::Unread,
        }
    }

    /// Writes a state, unless it is too large or there. Says whether it is there now; a failure is told once.
    pub fn write(&self, name: &Name, bytes: &[u8], config: &StoreConfig) -> bool {
        let len = bytes.len() as u64;
        if len > config.max_bytes {
            return false;
        }
        let path = self.path(name);
        let written = match path.exists() {
            true => Ok(()),
            // The folder may have been removed meanwhile.
            false => self.make().and_then(|()| {
                make_room(&config.dir, config.max_bytes - len);
                self.place(&path, bytes)
            }),
        };
        match written {
            Ok(()) => self.has_complained.store(false, Relaxed),
            Err(error) if !self.has_complained.swap(true, Relaxed) => {
                let store = config.dir.display();
                tracing::warn!("prefix store: cannot write to {store}: {error} (answers go on without; said once)");
                return false;
            }
            Err(_) => return false,
        }
        true
    }

    /// Writes a file that appears whole or not at all. It is locked while it is written: see [`sweep`](Self::sweep).
    fn place(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let random = getrandom::u64().map_err(|error| io::Error::other(error.to_string()))?;
        let part = self.path.join(format!(".{random:016x}{PART_SUFFIX}"));
        let written = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part).and_then(|mut file| {
            // Where there are no locks, nobody can take it for a dead one's either.
            let _ = file.try_lock();
            file.write_all(bytes)?;
            fs::rename(&part, path)
        });
        if written.is_err() {
            let _ = fs::remove_file(&part);
        }
        written
    }

    /// Removes what dead processes were writing: nobody holds its lock.
    pub fn sweep(&self) {
        for entry in fs::read_dir(&self.path).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let is_part = name.to_str().is_some_and(|name| name.starts_with('.') && name.ends_with(PART_SUFFIX));
            if is_part && open(&entry.path()).is_ok_and(|file| file.try_lock().is_ok()) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    pub fn remove(&self, name: &Name) {
        // Gone already is as good.
        let _ = fs::remove_file(self.path(name));
    }

    /// Removes a bad state, and says so.
    pub fn refuse(&self, name: &Name, reason: &dyn std::fmt::Display) {
        tracing::warn!("prefix store: {} is removed: {reason}", self.path(name).display());
        self.remove(name);
    }
}

/// Opens a regular file, following no link and waiting for no writer. `InvalidInput` is one that is none.
pub(super) fn open(path: &Path) -> io::Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    let no_file = || io::Error::new(ErrorKind::InvalidInput, "it is no regular file");
    if fs::symlink_metadata(path)?.is_symlink() {
        return Err(no_file());
    }
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(no_file()) }
}

/// Counts a use, in the file's time of change.
pub(super) fn touch(path: &Path) {
    let touched = open(path).and_then(|file| file.set_modified(SystemTime::now()));
    if let Err(error) = touched {
        tracing::debug!("prefix store: {}: {error}", path.display());
    }
}

/// A state of a store, whatever its identity.
pub(super) struct OnDisk {
    pub path: PathBuf,
    pub name: Name,
    pub n_bytes: u64,
    pub used: SystemTime,
}

/// The folders of all identities.
pub(super) fn folders(store: &Path) -> io::Result<Vec<PathBuf>> {
    let is_key = |name: &str| name.len() == N_DIGITS && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    let entries = fs::read_dir(store)?.flatten();
    let folders = entries.filter(|entry| entry.file_name().to_str().is_some_and(is_key));
    Ok(folders.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()).collect())
}

/// The states of a folder.
pub(super) fn states(folder: &Path) -> Vec<OnDisk> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let state = |entry: fs::DirEntry| {
        let name = entry.file_name().to_str()?.parse().ok()?;
        // Of a link, its own size.
        let metadata = entry.metadata().ok()?;
        Some(OnDisk { path: entry.path(), name, n_bytes: metadata.len(), used: metadata.modified().ok()? })
    };
    entries.filter_map(state).collect()
}

/// Removes the states that were not used for longest, until all together have at most `limit` bytes.
fn make_room(store: &Path, limit: u64) {
    let mut all: Vec<OnDisk> = folders(store).unwrap_or_default().iter().flat_map(|folder| states(folder)).collect();
    all.sort_by_key(|state| state.used);
    let mut total: u64 = all.iter().map(|state| state.n_bytes).sum();
    for oldest in all {
        if total <= limit {
            return;
        }
        if fs::remove_file(&oldest.path).is_ok() {
            total -= oldest.n_bytes;
        }
    }
}
