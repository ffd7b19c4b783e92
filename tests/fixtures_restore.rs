//! Real files of four llama.cpp versions (tests/fixtures/README.md) on a live engine: each restores, converted where it has
//! to be, and goes on with the very ids that llama.cpp itself chose.

#[path = "common/mod.rs"]
mod common;

use std::path::PathBuf;

use onebit::engine::{CacheType, Engine, EngineConfig};
use onebit::llama::Token;

use common::kinds::{Answer, engine, restored, whole};

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// The prompt of every fixture.
fn prompt() -> Vec<Token> {
    (0..40).map(|i| Token((37 * i + 11) % 256)).collect()
}

/// File names, and the ids that follow.
fn greedy_ids() -> Vec<(String, Vec<i32>)> {
    let text = std::fs::read_to_string(fixture("greedy.txt")).unwrap();
    let line = |line: &str| {
        let (name, ids) = line.split_once(' ').unwrap();
        (name.to_owned(), ids.split(' ').map(|id| id.parse().unwrap()).collect())
    };
    text.lines().map(line).collect()
}

#[test]
fn every_file_continues_as_llama_cpp_did() {
    let mut n_files = 0;
    for model in ["tiny-llama", "tiny-gemma3", "tiny-mamba"] {
        let engine = engine(&fixture(&format!("{model}.gguf")), CacheType::F16, 1);
        for (name, ids) in greedy_ids().into_iter().filter(|(name, _)| name.starts_with(&format!("{model}-40."))) {
            assert_eq!(ids.len(), 24);
            let found =
                restored(&engine, &fixture(&name), &prompt(), 24).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(found, Answer { ids: ids.clone(), n_evaluated: 1 }, "{name}");
            assert_eq!(whole(&engine, &prompt(), 24).ids, ids, "{name}, computed here");
            n_files += 1;
        }
    }
    assert_eq!(n_files, 12);
}

/// Well formed, the right ids, and of other weights: no check of the structure can tell. The first restore after a start is
/// probed, and so is the next as long as none has passed. Without the probe the file is restored, and its answer is not this
/// model's.
#[test]
fn other_weights_of_the_same_shape_are_found_by_the_probe_alone() {
    let engine = engine(&fixture("tiny-llama.gguf"), CacheType::F16, 1);
    let right = whole(&engine, &prompt(), 24);
    let other = fixture("tiny-llama-other-40.v4.state");
    for _ in 0..3 {
        let refused = restored(&engine, &other, &prompt(), 24).unwrap_err().to_string();
        assert!(refused.contains("the values are not this model's"), "{refused}");
    }
    let path = fixture("tiny-llama.gguf");
    let unprobed =
        Engine::load(EngineConfig { state_probe: None, n_threads: Some(1), ..EngineConfig::new(path) }).unwrap();
    let found = restored(&unprobed, &other, &prompt(), 24).unwrap();
    assert_ne!(found.ids, right.ids);
    // It leaves nothing behind.
    for engine in [engine, unprobed] {
        assert_eq!(whole(&engine, &prompt(), 24), right);
    }
}

/// A file is for one model.
#[test]
fn files_of_other_models_are_refused() {
    for (model, file) in [
        ("tiny-llama", "tiny-gemma3"),
        ("tiny-llama", "tiny-mamba"),
        ("tiny-gemma3", "tiny-llama"),
        ("tiny-gemma3", "tiny-mamba"),
        ("tiny-mamba", "tiny-llama"),
        ("tiny-mamba", "tiny-gemma3"),
    ] {
        let engine = engine(&fixture(&format!("{model}.gguf")), CacheType::F16, 1);
        for version in ["v2a", "v2b", "v3", "v4"] {
            let result = restored(&engine, &fixture(&format!("{file}-40.{version}.state")), &prompt(), 1);
            assert!(result.is_err(), "{model} takes {file} {version}");
        }
    }
}
