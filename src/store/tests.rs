//! Names, parts of a model, and which state serves which prompt.

use std::path::{Path, PathBuf};

use super::identity::{About, parts_of};
use super::*;

#[test]
fn names() {
    for is_foreign in [false, true] {
        let name = Name::of(&[1, 2, 3], b"bytes", is_foreign);
        let text = name.to_string();
        assert_eq!(text.parse(), Ok(name.clone()), "{text}");
        assert!(name.is_of(&[1, 2, 3]) && !name.is_of(&[1, 2]) && name.holds(b"bytes") && !name.holds(b"byte"));
        assert_eq!(text.contains("-provider"), is_foreign);
        for wrong in [&text[1..], &text[..text.len() - 1], &text.to_uppercase(), "x", ".part"] {
            assert_eq!(wrong.parse::<Name>(), Err(()), "{wrong}");
        }
    }
}

#[test]
fn split_models() {
    let parts = |path: &str| parts_of(Path::new(path));
    assert_eq!(parts("/m/x.gguf"), [PathBuf::from("/m/x.gguf")]);
    assert_eq!(parts("/m/x-00002-of-00003.gguf").len(), 1, "not the first");
    let three = ["/m/x-00001-of-00003.gguf", "/m/x-00002-of-00003.gguf", "/m/x-00003-of-00003.gguf"];
    assert_eq!(parts(three[0]), three.map(PathBuf::from));
}

/// A file whose header says these ids; there is no memory in it, which the store does not look at.
fn state(ids: &[i32]) -> Vec<u8> {
    let mut words = vec![0x6767_7371, 4, ids.len() as i32];
    words.extend(ids);
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn about() -> About {
    About {
        model: "m.gguf".to_owned(),
        description: "a model".to_owned(),
        cache_type_k: "f16".to_owned(),
        cache_type_v: "f16".to_owned(),
        state_version: 4,
        long_rope: false,
    }
}

fn open(dir: &Path, max_cut: usize) -> Store {
    let identity = Identity::read(about(), &[]).unwrap();
    let config = StoreConfig { dir: dir.to_owned(), max_bytes: 1 << 20, min_tokens: 4, with_foreign: false };
    Store::open(config, &identity, Memory { n_ctx: 16, max_cut }).unwrap()
}

#[test]
fn which_state_serves_which_prompt() {
    let ten: Vec<i32> = (0..10).collect();
    // max_cut, the prompt, tokens held, tokens spared
    let rows: [(usize, &[i32], usize, usize); 11] = [
        (usize::MAX, &ten, 0, 9),
        (1, &ten, 0, 9),
        (0, &ten, 0, 0),
        (0, &[&ten[..], &[7]].concat(), 0, 10),
        (0, &[&ten[..], &[7, 8, 9]].concat(), 0, 10),
        (usize::MAX, &[&ten[..6], &[7, 8, 9]].concat(), 0, 6),
        (1, &[&ten[..6], &[7, 8, 9]].concat(), 0, 0),
        (1, &[&ten[..9], &[7]].concat(), 0, 9),
        // Not worth it: too few, or hardly more than what is held.
        (usize::MAX, &ten[..4], 0, 0),
        (usize::MAX, &ten, 6, 0),
        (usize::MAX, &ten, 5, 9),
    ];
    for (max_cut, prompt, n_held, expected) in rows {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path(), max_cut);
        store.put(ten.clone(), state(&ten), false);
        store.close();
        let found = store.find(prompt, n_held).map_or(0, |found| found.n_tokens);
        assert_eq!(found, expected, "cut {max_cut}, {prompt:?}, {n_held} held");
    }
}

#[test]
fn what_is_wanted() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), usize::MAX);
    let ids: Vec<i32> = (0..16).collect();
    assert!(!store.wants(&ids[..3]) && store.wants(&ids[..8]));
    store.put(ids[..8].to_vec(), state(&ids[..8]), false);
    // Known from the moment it is given. A quarter more is enough.
    assert!(!store.wants(&ids[..8]) && !store.wants(&ids[..10]));
    assert!(store.wants(&ids[..11]) && store.wants(&[9, 9, 9, 9, 9]));
    store.put(ids[..11].to_vec(), state(&ids[..11]), false);
    store.close();
    let families = list::families(folder.path()).unwrap();
    assert_eq!(families[0].about, Some(about()));
    let tokens: Vec<_> = families[0].entries.iter().map(|entry| entry.n_tokens.clone()).collect();
    assert_eq!(tokens, [Ok(11)], "the shorter one is not needed any more");
}

#[test]
fn a_state_that_fits_no_context_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), usize::MAX);
    let ids: Vec<i32> = (0..20).collect();
    store.put(ids.clone(), state(&ids), false);
    store.close();
    assert_eq!(store.find(&ids[..12], 0), None);
    assert_eq!(list::families(folder.path()).unwrap()[0].entries.len(), 1);
}
