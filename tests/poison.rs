//! Values that are well-formed and make everything computed on them NaN: the request that brought them falls back, and no
//! other is touched. Freed memory is not zeroed by itself, and 0 times NaN is NaN.

mod common;

use std::path::Path;

use common::kinds::{self, Kind, greedy, prompt, restored, whole};
use onebit::engine::{CacheType, Engine, EngineConfig, EngineError, FlashAttention};

const N_ANSWER: u32 = 12;

/// Overwrites the last values of a file, which are those of the last tensor.
fn poison(file: &Path, value: &[u8], n_values: usize) {
    let mut bytes = std::fs::read(file).unwrap();
    let from = bytes.len() - n_values * value.len();
    bytes[from..].copy_from_slice(&value.repeat(n_values));
    std::fs::write(file, bytes).unwrap();
}

fn engine(kind: Kind) -> Engine {
    let config = EngineConfig {
        n_ctx: Some(512),
        n_ubatch: kinds::N_UBATCH,
        n_threads: Some(1),
        flash_attention: FlashAttention::On,
        state_scan: false,
        state_probe: None,
        ..EngineConfig::new(kind.model())
    };
    Engine::load(config).unwrap()
}

fn check(kind: Kind, value: &[u8], n_values: usize) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("state");
    let (clean, engine) = (kinds::engine(&kind.model(), CacheType::F16, 1), engine(kind));
    let long = prompt(200, 1);
    clean.prefill_to_file(&long[..kind.n_states(long.len())], &file).unwrap();
    poison(&file, value, n_values);
    let error = restored(&engine, &file, &long, N_ANSWER).expect_err("the poison does nothing: the test is wrong");
    assert!(matches!(&error, EngineError::Decode(reason) if reason.contains("not numbers")), "{kind:?}: {error}");
    for n in [200, 70, 1, 130] {
        let prompt = prompt(n, 1);
        let found = whole(&engine, &prompt, N_ANSWER);
        assert_eq!(found, whole(&clean, &prompt, N_ANSWER), "{kind:?}, {n} tokens");
    }
    // The same while nobody reads to the end: the next request finds the poison.
    drop(engine.restore_and_generate(&file, &long[..], &greedy(400)));
    assert_eq!(whole(&engine, &long, N_ANSWER), whole(&clean, &long, N_ANSWER), "{kind:?}, after a client that left");
}

#[test]
fn a_running_state_of_huge_numbers() {
    check(Kind::Recurrent, &3e38f32.to_le_bytes(), 64);
    check(Kind::Hybrid, &3e38f32.to_le_bytes(), 64);
}

#[test]
fn nan_in_attention() {
    let nan_f16 = [0x00, 0x7e];
    check(Kind::Attention, &nan_f16, 2000);
    check(Kind::MRope, &nan_f16, 2000);
}
