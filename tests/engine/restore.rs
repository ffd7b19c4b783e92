//! A prompt's state through a file: the same answer as without.

use std::path::Path;

use onebit::engine::{Engine, EngineError};
use onebit::llama::Token;
use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::{Outcome, common::model::byte_token, engine, visible};

fn prompt(n: usize) -> Vec<Token> {
    let bytes = (0..n - 1).map(|i| b'a' + u8::try_from(i * i % 26).unwrap());
    std::iter::once(Token(1)).chain(bytes.map(byte_token)).collect()
}

fn restored(engine: &Engine, state: &Path, prompt: &[Token]) -> Result<Outcome, EngineError> {
    Outcome::read(engine.restore_and_generate(state, prompt, &visible(16))?)
}

fn whole(engine: &Engine, prompt: &[Token]) -> Outcome {
    Outcome::read(engine.generate(prompt, &visible(16)).unwrap()).unwrap()
}

#[test]
fn answers_are_those_of_the_whole_prompt() {
    let engine = engine();
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    for n in [1, 2, 3, 31, 32, 33, 600] {
        let prompt = prompt(n);
        let expected = whole(&engine, &prompt);
        // All of the prompt, and all but the last, which is what models that cannot step back need.
        for n_states in [n, n - 1].into_iter().filter(|n_states| *n_states > 0) {
            let saved = engine.prefill_to_file(&prompt[..n_states], &state).unwrap();
            assert_eq!(saved.n_tokens, n_states);
            assert_eq!(saved.n_bytes, std::fs::metadata(&state).unwrap().len());
            let found = restored(&engine, &state, &prompt).unwrap();
            assert_eq!(found.tokens(), expected.tokens(), "{n_states} of {n}");
            assert_eq!((found.prompt.n_prompt, found.prompt.n_cached), (n, n - 1), "{n_states} of {n}");
            assert_eq!(found.prompt.argmax, expected.prompt.argmax, "{n_states} of {n}");
            assert!(found.prompt.restore.is_some() && expected.prompt.restore.is_none());
            if n_states == n {
                assert_eq!(saved.argmax, expected.prompt.argmax);
            }
        }
    }
}

#[test]
fn a_file_of_another_engine_will_do() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let prompt = prompt(100);
    // The size of the context is no part of the state.
    crate::engine_with_context(256).prefill_to_file(&*prompt, &state).unwrap();
    let engine = engine();
    assert_eq!(restored(&engine, &state, &prompt).unwrap().tokens(), whole(&engine, &prompt).tokens());
}

#[test]
fn bad_files_are_refused_and_forgotten() {
    let engine = engine();
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let prompt = prompt(40);
    let expected = whole(&engine, &prompt).tokens();
    engine.prefill_to_file(&*prompt, &state).unwrap();
    let good = std::fs::read(&state).unwrap();
    let spoiled = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        change(&mut bytes);
        bytes
    };
    let first_position = 12 + 4 * prompt.len() + 8;
    let rows = [
        ("empty", Vec::new()),
        ("cut", spoiled(&|bytes| bytes.truncate(bytes.len() / 2))),
        ("too long", spoiled(&|bytes| bytes.push(0))),
        ("magic", spoiled(&|bytes| bytes[0] ^= 1)),
        ("an id", spoiled(&|bytes| bytes[12 + 4 * 20] ^= 1)),
        ("a position of -1", spoiled(&|bytes| bytes[first_position..first_position + 4].fill(0xff))),
        ("NaN", spoiled(&|bytes| bytes.iter_mut().rev().take(2).for_each(|byte| *byte = 0x7e))),
    ];
    for (name, bytes) in rows {
        std::fs::write(&state, bytes).unwrap();
        let mut generation = engine.restore_and_generate(&state, &*prompt, &visible(16)).unwrap();
        let first = generation.next();
        assert!(matches!(first, Some(Err(EngineError::Restore(_)))), "{name}: {first:?}");
        assert!(generation.next().is_none(), "{name}: nothing follows an error");
        assert_eq!(whole(&engine, &prompt).tokens(), expected, "after {name}");
        std::fs::write(&state, &good).unwrap();
        assert_eq!(restored(&engine, &state, &prompt).unwrap().tokens(), expected, "after {name}");
    }
}

#[test]
fn what_is_no_file() {
    let engine = engine();
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let prompt = prompt(10);
    engine.prefill_to_file(&*prompt, path("state")).unwrap();
    std::os::unix::fs::symlink(path("state"), path("link")).unwrap();
    std::fs::create_dir(path("folder")).unwrap();
    mknodat(CWD, path("fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    for (name, reason) in [
        ("missing", "cannot open the state file: No such file or directory"),
        ("link", "the state file is a symbolic link, not a regular file"),
        ("folder", "the state file is a directory, not a regular file"),
        ("fifo", "the state file is a device or a pipe, not a regular file"),
    ] {
        let error = restored(&engine, &path(name), &prompt).unwrap_err();
        assert!(matches!(error, EngineError::Restore(_)) && error.to_string().starts_with(reason), "{error}");
    }
    assert!(restored(&engine, &path("state"), &prompt).is_ok());
}

#[test]
fn a_state_that_cannot_be_written() {
    let engine = engine();
    let error = engine.prefill_to_file(prompt(10), "/no/such/folder/state").unwrap_err();
    assert!(matches!(error, EngineError::Save { .. }), "{error}");
    assert_eq!(whole(&engine, &prompt(10)).report.n_generated, 16);
}
