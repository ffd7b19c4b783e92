//! The HSA run-time that AMD's HRX backend loads (docs/hrx.md).

use std::path::{Path, PathBuf};

/// The variable that the run-time reads.
pub(super) const LIBHSA_VARIABLE: &str = "IREE_HAL_AMDGPU_LIBHSA_PATH";
const LIBRARY: &str = "libhsa-runtime64.so.1";
const ROOT: &str = "/opt/rocm-therock";

/// Where the run-time is: the flag, else what the environment says already, else the first below [`ROOT`]. A distribution's
/// own library is not taken: gfx1151 is refused by it.
pub(super) fn find_libhsa(
    flag: Option<&Path>,
    environment: Option<&Path>,
    folders: &[PathBuf],
    exists: &dyn Fn(&Path) -> bool,
) -> Option<PathBuf> {
    if let Some(path) = flag.or(environment) {
        return Some(path.to_owned());
    }
    folders.iter().map(|folder| folder.join(LIBRARY)).find(|path| exists(path))
}

/// The deepest place where an installed run-time has its library is inside a Python environment:
/// `lib/python3.12/site-packages/_rocm_sdk_core/lib`.
const MAX_DEPTH: usize = 7;

/// Folders below `folder` that are called `lib`, nearer ones first, then in the order of their names.
fn library_folders(folder: &Path) -> Vec<PathBuf> {
    let (mut found, mut level) = (Vec::new(), vec![folder.to_owned()]);
    for _ in 0..MAX_DEPTH {
        let mut next = Vec::new();
        for folder in level {
            let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
            // Links are not followed: an installation may link back to itself.
            next.extend(
                entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()),
            );
        }
        next.sort();
        found.extend(next.iter().filter(|folder| folder.ends_with("lib")).cloned());
        level = next;
    }
    found
}

/// Points HRX at its run-time, and says what stands in the way: `Ok(None)` when this build has no HRX.
/// To be called before anything else of llama.cpp, while the process has one thread.
pub(super) fn prepare(flag: Option<&Path>) -> Result<Option<PathBuf>, String> {
    if !cfg!(feature = "hrx") {
        return Ok(None);
    }
    let environment = std::env::var_os(LIBHSA_VARIABLE).map(PathBuf::from);
    let found = find_libhsa(flag, environment.as_deref(), &library_folders(Path::new(ROOT)), &|path| path.is_file());
    let Some(path) = found else {
        return Err(format!("no {LIBRARY} below {ROOT}: install TheRock's run-time or name it with --hrx-libhsa"));
    };
    crate::llama::probe_library(&path).map_err(|err| format!("{} cannot be loaded: {err}", path.display()))?;
    crate::llama::set_environment(LIBHSA_VARIABLE, &path);
    Ok(Some(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_deep_inside_is_found_after_one_nearer_by() {
        let root = tempfile::tempdir().unwrap();
        let deep = root.path().join("7.1/lib/python3.12/site-packages/_rocm_sdk_core/lib");
        std::fs::create_dir_all(&deep).unwrap();
        assert_eq!(library_folders(root.path()), [root.path().join("7.1/lib"), deep]);
    }

    #[test]
    fn the_flag_wins_then_the_environment_then_the_first_installed() {
        let folders = [PathBuf::from("/a/lib"), PathBuf::from("/b/lib")];
        let only_b = |path: &Path| path.starts_with("/b");
        let find = |flag, env| find_libhsa(flag, env, &folders, &only_b);
        assert_eq!(find(Some(Path::new("/f.so")), Some(Path::new("/e.so"))), Some("/f.so".into()));
        assert_eq!(find(None, Some(Path::new("/e.so"))), Some("/e.so".into()));
        assert_eq!(find(None, None), Some("/b/lib/libhsa-runtime64.so.1".into()));
        assert_eq!(find_libhsa(None, None, &folders, &|_| false), None);
    }
}
