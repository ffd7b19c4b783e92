//! The private directory that ids and state files pass through.
//!
//! `BASE/onebit-slot-<32 hex digits>/`, mode 0700, holds a `lock` file that is locked (flock) as long as this process
//! lives, and one directory for each run of the provider, removed with everything in it when the run is over. A
//! directory whose lock can be taken belongs to a process that died; the next one to start removes it.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use rustix::fs::OFlags;

use super::error::{HybridError, os_reason};
use crate::llama::Token;

const PREFIX: &str = "onebit-slot-";
/// Name of a directory that is not locked yet; it is renamed once it is, so that no `onebit-slot-*` ever lacks a lock.
const UNBORN_PREFIX: &str = ".onebit-slot-";
/// From this age on nobody is about to lock an unborn one any more.
const UNBORN_LIMIT: Duration = Duration::from_secs(60);
const LOCK_NAME: &str = "lock";

/// The directory of this process; removed when dropped.
#[derive(Debug)]
pub(super) struct SlotDir {
    base: PathBuf,
    made: Mutex<Made>,
}

#[derive(Debug)]
struct Made {
    path: PathBuf,
    _lock: File,
    /// Closed by us, so that its absence is no surprise.
    closed: bool,
}

impl SlotDir {
    /// Makes one in `base`, or, without, where there is memory for it: in `/dev/shm` when `n_bytes` fit there, else in
    /// the temporary directory. Removes what dead processes left in either first, which may be what takes the room.
    ///
    /// Errors: `SlotDir`.
    pub(super) fn new(base: Option<&Path>, n_bytes: u64) -> Result<Self, HybridError> {
        let make = |base: &Path| {
            let error = |error: io::Error| HybridError::SlotDir { path: base.to_owned(), reason: os_reason(&error) };
            Self::make(base).map_err(error)
        };
        if let Some(base) = base {
            sweep(base);
            return make(base);
        }
        let (shared_memory, temporary) = (Path::new("/dev/shm"), std::env::temp_dir());
        sweep(shared_memory);
        sweep(&temporary);
        match has_room(shared_memory, n_bytes).then(|| make(shared_memory)) {
            Some(Ok(made)) => Ok(made),
            _ => make(&temporary),
        }
    }

    fn make(base: &Path) -> io::Result<Self> {
        let base = fs::canonicalize(base)?;
        let made = Made::make(&base)?;
        Ok(Self { base, made: Mutex::new(made) })
    }

    /// Where it is; absolute.
    #[cfg(test)]
    pub(super) fn path(&self) -> PathBuf {
        self.made.lock().path.clone()
    }

    /// A directory for one run with the ids in it, one decimal id a line. Blocks on the file system.
    ///
    /// Errors: `Ids`.
    pub(super) fn new_run(&self, ids: &[Token]) -> Result<RunDir, HybridError> {
        let ids_error = |error: io::Error| HybridError::Ids { reason: os_reason(&error) };
        let mut text = String::with_capacity(ids.len() * 7);
        for id in ids {
            text.push_str(&id.to_string());
            text.push('\n');
        }
        let run = self.new_run_dir().map_err(ids_error)?;
        create_private(&run.tokens_path).and_then(|mut file| file.write_all(text.as_bytes())).map_err(ids_error)?;
        Ok(run)
    }

    /// Others tidy up as well: a session's end may empty /dev/shm, a timer /tmp. Then the directory is made anew.
    fn new_run_dir(&self) -> io::Result<RunDir> {
        let mut made = self.made.lock();
        match RunDir::make(&made.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && !made.closed => {
                *made = Made::make(&self.base)?;
                RunDir::make(&made.path)
            }
            result => result,
        }
    }

    /// Removes it now, while handles to it may live on; runs fail from here on.
    pub(super) fn close(&self) {
        let mut made = self.made.lock();
        made.closed = true;
        remove_dir(&made.path);
    }
}

impl Made {
    fn make(base: &Path) -> io::Result<Self> {
        let name = random_name()?;
        let unborn = base.join(format!("{UNBORN_PREFIX}{name}"));
        let path = base.join(format!("{PREFIX}{name}"));
        make_private_dir(&unborn)?;
        let locked = create_private(&unborn.join(LOCK_NAME)).and_then(|lock| {
            lock.try_lock()?;
            fs::rename(&unborn, &path)?;
            Ok(lock)
        });
        match locked {
            Ok(lock) => Ok(Self { path, _lock: lock, closed: false }),
            Err(error) => {
                remove_dir(&unborn);
                Err(error)
            }
        }
    }
}

impl Drop for SlotDir {
    fn drop(&mut self) {
        self.close();
    }
}

/// The files of one run, under names that nobody can guess and that never come again. Dropping the last clone removes them,
/// and whatever else the provider left beside them.
#[derive(Clone, Debug)]
pub(super) struct RunDir {
    path: Arc<Removed>,
    tokens_path: PathBuf,
    state_name: String,
}

impl RunDir {
    fn make(slot_dir: &Path) -> io::Result<Self> {
        let path = slot_dir.join(random_name()?);
        let tokens_path = path.join(format!("{}.tokens", random_name()?));
        let state_name = format!("{}.state", random_name()?);
        make_private_dir(&path)?;
        Ok(Self { path: Arc::new(Removed(path)), tokens_path, state_name })
    }

    /// The same run with an `--out` that nobody can write, root neither: its directory does not exist.
    pub(super) fn into_missing_folder(mut self) -> Self {
        self.state_name = format!("missing/{}", self.state_name);
        self
    }

    /// The provider's working directory.
    pub(super) fn path(&self) -> &Path {
        &self.path.0
    }

    pub(super) fn tokens_path(&self) -> &Path {
        &self.tokens_path
    }

    /// The bare name for `--out`.
    pub(super) fn state_name(&self) -> &str {
        &self.state_name
    }

    pub(super) fn state_path(&self) -> PathBuf {
        self.path().join(&self.state_name)
    }

    /// Errors: `NoStateFile`, and `StateFile` for a link, a directory, an empty file and the like.
    pub(super) fn check_state_file(&self) -> Result<(), HybridError> {
        let metadata = match fs::symlink_metadata(self.state_path()) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(HybridError::NoStateFile),
            Err(error) => return Err(HybridError::StateFile(format!("cannot be looked at: {}", os_reason(&error)))),
        };
        let kind = metadata.file_type();
        let fault = match () {
            () if kind.is_symlink() => "is a symbolic link",
            () if kind.is_dir() => "is a directory",
            () if !kind.is_file() => "is no regular file",
            () if metadata.len() == 0 => "is empty",
            () => return Ok(()),
        };
        Err(HybridError::StateFile(fault.to_owned()))
    }
}

/// A directory that goes when this is dropped.
#[derive(Debug)]
struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        remove_dir(&self.0);
    }
}

/// Whether `n_bytes` are free in the file system of `directory`.
fn has_room(directory: &Path, n_bytes: u64) -> bool {
    directory.is_dir()
        && rustix::fs::statvfs(directory).is_ok_and(|stat| stat.f_bavail.saturating_mul(stat.f_frsize) >= n_bytes)
}

/// Removes the slot directories of dead processes. What cannot be removed now is left for the next time.
fn sweep(base: &Path) {
    let Ok(entries) = fs::read_dir(base) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let is_stale = match () {
            () if name.starts_with(PREFIX) => is_dead,
            () if name.starts_with(UNBORN_PREFIX) => is_stillborn,
            () => continue,
        };
        // Others may plant such names in /tmp.
        let Ok(metadata) = fs::symlink_metadata(entry.path()) else { continue };
        let is_ours = metadata.is_dir() && metadata.uid() == rustix::process::geteuid().as_raw();
        if is_ours && is_stale(&entry.path()) {
            remove_dir(&entry.path());
        }
    }
}

/// Whether the lock can be taken, or has gone in a removal that was cut short.
fn is_dead(slot_dir: &Path) -> bool {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    match OpenOptions::new().read(true).custom_flags(flags).open(slot_dir.join(LOCK_NAME)) {
        Ok(lock) => lock.try_lock().is_ok(),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

fn is_stillborn(slot_dir: &Path) -> bool {
    let modified = fs::metadata(slot_dir).and_then(|metadata| metadata.modified());
    let age = modified.ok().and_then(|time| SystemTime::now().duration_since(time).ok());
    age.is_some_and(|age| age > UNBORN_LIMIT)
}

/// A provider that is dying may still put files in; a directory it made unreadable is made readable again.
fn remove_dir(path: &Path) {
    for _ in 0..3 {
        match fs::remove_dir_all(path) {
            Ok(()) => return,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(_) => drop(fs::set_permissions(path, fs::Permissions::from_mode(0o700))),
        }
    }
    tracing::warn!("cannot remove {}", path.display());
}

fn make_private_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(path)
}

fn create_private(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// 128 random bits in hexadecimal digits.
fn random_name() -> io::Result<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
    }

    fn names(path: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn life_cycle() {
        let base = tempfile::tempdir().unwrap();
        let slot = SlotDir::new(Some(base.path()), 0).unwrap();
        let slot_path = slot.path();
        let name = slot_path.file_name().unwrap().to_str().unwrap();
        assert_eq!(name.len(), PREFIX.len() + 32);
        assert_eq!(names(base.path()), [name]);
        assert_eq!(mode(&slot_path), 0o700);

        let run = slot.new_run(&[Token(1), Token(-2), Token(32000)]).unwrap();
        assert_eq!(fs::read_to_string(run.tokens_path()).unwrap(), "1\n-2\n32000\n");
        assert_eq!((mode(run.path()), mode(run.tokens_path())), (0o700, 0o600));
        let other = slot.new_run(&[]).unwrap();
        assert!(other.state_name() != run.state_name() && other.path() != run.path());
        fs::write(run.path().join("left behind"), "x").unwrap();
        drop((run, other));
        assert_eq!(names(&slot_path), [LOCK_NAME]);

        let run = slot.new_run(&[Token(1)]).unwrap();
        slot.close();
        assert!(names(base.path()).is_empty());
        assert!(matches!(slot.new_run(&[Token(1)]), Err(HybridError::Ids { .. })));
        drop((run, slot));
        assert!(names(base.path()).is_empty());
    }

    #[test]
    fn sweeps_the_dead_only() {
        let base = tempfile::tempdir().unwrap();
        let dir = |name: &str, with_lock: bool| {
            let path = base.path().join(name);
            fs::create_dir(&path).unwrap();
            fs::write(path.join("x.state"), "x").unwrap();
            if with_lock {
                fs::write(path.join(LOCK_NAME), "").unwrap();
            }
        };
        let live = SlotDir::new(Some(base.path()), 0).unwrap();
        dir("onebit-slot-dead", true);
        dir("onebit-slot-half-removed", false);
        dir(".onebit-slot-young", false);
        dir(".onebit-slot-old", false);
        let long_ago = SystemTime::now() - Duration::from_secs(3600);
        File::open(base.path().join(".onebit-slot-old")).unwrap().set_modified(long_ago).unwrap();
        dir("other", false);
        fs::write(base.path().join("onebit-slot-file"), "").unwrap();
        let outside = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(outside.path(), base.path().join("onebit-slot-link")).unwrap();

        let second = SlotDir::new(Some(base.path()), 0).unwrap();
        let mut expected =
            [".onebit-slot-young", "onebit-slot-file", "onebit-slot-link", "other"].map(str::to_owned).to_vec();
        for slot in [&live, &second] {
            expected.push(slot.path().file_name().unwrap().to_str().unwrap().to_owned());
        }
        expected.sort();
        assert_eq!(names(base.path()), expected);
        assert!(outside.path().exists());
    }

    #[test]
    fn state_files() {
        let base = tempfile::tempdir().unwrap();
        let slot = SlotDir::new(Some(base.path()), 0).unwrap();
        let check = |prepare: &dyn Fn(&Path), expected: &str| {
            let run = slot.new_run(&[Token(1)]).unwrap();
            prepare(&run.state_path());
            let found = run.check_state_file().map_or_else(|error| error.to_string(), |()| "ok".to_owned());
            assert_eq!(found, expected);
        };
        check(&|_| {}, "the provider wrote no state file");
        check(&|path| fs::write(path, "").unwrap(), "the provider's state file is empty");
        check(&|path| fs::create_dir(path).unwrap(), "the provider's state file is a directory");
        check(
            &|path| std::os::unix::fs::symlink("/etc/passwd", path).unwrap(),
            "the provider's state file is a symbolic link",
        );
        check(&|path| fs::write(path, "x").unwrap(), "ok");
    }

    #[test]
    fn a_base_that_is_none() {
        let error = SlotDir::new(Some(Path::new("/nowhere/at/all")), 0).unwrap_err();
        assert_eq!(error.to_string(), "cannot use the slot directory /nowhere/at/all: No such file or directory");
        assert!(!has_room(Path::new("/nowhere"), 0));
        assert!(has_room(Path::new("/"), 1) && !has_room(Path::new("/"), u64::MAX));
    }
}
