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

/// Library folders of the installed run-times, in the order of their names.
fn library_folders() -> Vec<PathBuf> {
    let root = PathBuf::from(ROOT);
    let mut folders = vec![root.join("lib")];
    let entries = std::fs::read_dir(&root).into_iter().flatten().flatten();
    let mut versions: Vec<_> = entries.map(|entry| entry.path().join("lib")).collect();
    versions.sort();
    folders.extend(versions);
    folders
}

/// Points HRX at its run-time, and says what stands in the way: `Ok(None)` when this build has no HRX.
/// To be called before anything else of llama.cpp, while the process has one thread.
pub(super) fn prepare(flag: Option<&Path>) -> Result<Option<PathBuf>, String> {
    if !cfg!(feature = "hrx") {
        return Ok(None);
    }
    let environment = std::env::var_os(LIBHSA_VARIABLE).map(PathBuf::from);
    let found = find_libhsa(flag, environment.as_deref(), &library_folders(), &|path| path.is_file());
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
