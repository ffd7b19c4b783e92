//! The layers of docs/architecture.md, checked in the source: no module uses one above it.

use std::path::{Path, PathBuf};

/// From the bottom up. `state`, and `store` on it, stand beside `llama`: neither side may use the other.
const LAYERS: [&str; 7] = ["llama", "state", "store", "engine", "hybrid", "server", "cli"];

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a source folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            files.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}

fn may_use(layer: &str, other: &str) -> bool {
    let rank = |name| LAYERS.iter().position(|layer| *layer == name);
    match (layer, other) {
        ("state" | "store", "llama") => false,
        _ => rank(other) <= rank(layer),
    }
}

#[test]
fn no_layer_uses_one_above_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    for layer in LAYERS {
        for file in sources(&root.join(layer)) {
            let text = std::fs::read_to_string(&file).expect("a source file");
            for (number, line) in text.lines().enumerate() {
                for other in LAYERS {
                    let used =
                        line.contains(&format!("crate::{other}::")) || line.contains(&format!("crate::{other};"));
                    if used && !may_use(layer, other) {
                        found.push(format!("{}:{}: {}", file.display(), number + 1, line.trim()));
                    }
                }
            }
        }
    }
    assert!(found.is_empty(), "upward uses:\n{}", found.join("\n"));
}

#[test]
fn unsafe_code_stays_in_its_room() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for layer in LAYERS.into_iter().filter(|layer| *layer != "llama") {
        for file in sources(&root.join(layer)) {
            let text = std::fs::read_to_string(&file).expect("a source file");
            let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
            let bad = code.filter(|line| line.contains("unsafe {") || line.contains("unsafe fn")).count();
            assert_eq!(bad, 0, "{}", file.display());
        }
    }
}
