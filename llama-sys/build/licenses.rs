//! Gathers the license texts of llama.cpp and of what it bundles, for `onebit licenses`.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use crate::Result;
use crate::source::Source;

pub fn collect(source: &Source, out_dir: &Path) -> Result<()> {
    let mut files = Vec::new();
    find(&source.dir, 0, &mut files);
    files.sort();
    let mut text = String::new();
    for file in files {
        let name = file.strip_prefix(&source.dir).unwrap_or(&file);
        let body = std::fs::read_to_string(&file).unwrap_or_default();
        let _ = write!(text, "llama.cpp: {}\n\n{}\n\n", name.display(), body.trim_end());
    }
    std::fs::write(out_dir.join("licenses.txt"), text).map_err(|err| format!("cannot write licenses.txt: {err}"))
}

/// `LICENSE*` files near the top (llama.cpp's own, `vendor/*`, `licenses/*`); deeper there are none of interest.
fn find(dir: &Path, depth: usize, files: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let Ok(kind) = entry.file_type() else { continue };
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let is_text = !name.ends_with(".cmake");
        if kind.is_file() && is_text && name.to_uppercase().starts_with("LICENSE") {
            files.push(entry.path());
        } else if kind.is_dir() && depth < 3 && !name.starts_with('.') {
            find(&entry.path(), depth + 1, files);
        }
    }
}
