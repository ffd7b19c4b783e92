//! Bad state files on a live engine: none may end the process, change an answer or spoil a later one.
//!
//! Each mutation is made from a seed and its number, both of which a failure prints:
//!
//! - `ONEBIT_MUTATIONS=100000` makes that many in all (6,000 by default),
//! - `ONEBIT_MUTATIONS_SEED=7` makes others,
//! - `ONEBIT_MUTATIONS_FROM=1234` begins there. The number of the one that ended a process is in
//!   `target/tmp/mutations-<kind>.last`.

mod map;
mod mutate;
mod objects;
mod races;
mod rng;

#[path = "../common/mod.rs"]
mod common;

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use onebit::engine::{CacheType, Engine, EngineError};
use onebit::llama::Token;
use onebit::testing::TinyModel;

use common::kinds::{self, Answer, Kind, engine, prompt, restored, whole};
use common::model;
use map::Map;
use mutate::{Good, Mutation};
use rng::Rng;

/// Greedy tokens of an answer.
const N_ANSWER: u32 = 4;
/// A good handoff, or a plain generation, is asked for after so many mutations.
const LOOK_AFTER: u64 = 4;

/// An engine, a good file for it, and the right answer.
struct Bench {
    engine: Engine,
    prompt: Vec<Token>,
    good: Good,
    answer: Vec<i32>,
    good_file: PathBuf,
    file: PathBuf,
}

impl Bench {
    fn new(kind: Kind, cache: CacheType, n: usize, others: &[(String, Vec<u8>)], folder: &Path) -> Self {
        let engine = engine(&kind.model(), cache, 1);
        let prompt = prompt(n, 1);
        let good_file = folder.join(format!("good-{cache}-{n}"));
        engine.prefill_to_file(&prompt[..kind.n_states(n)], &good_file).unwrap();
        let bytes = std::fs::read(&good_file).unwrap();
        let answer = whole(&engine, &prompt, N_ANSWER).ids;
        let good = Good { map: Map::of(&bytes), file: bytes, others: others.to_vec() };
        let bench = Self { engine, prompt, good, answer, good_file, file: folder.join("mutation") };
        bench.look(0);
        bench.look(1);
        bench
    }

    fn restored(&self, file: &Path) -> Result<Answer, EngineError> {
        restored(&self.engine, file, &self.prompt, N_ANSWER)
    }

    /// All is as ever: a good handoff (even `turn`) or the whole prompt (odd).
    fn look(&self, turn: u64) {
        let (answer, n_evaluated) = match turn % 2 {
            0 => (self.restored(&self.good_file).unwrap_or_else(|error| panic!("the good file: {error}")), 1),
            _ => (whole(&self.engine, &self.prompt, N_ANSWER), self.prompt.len()),
        };
        assert_eq!(answer, Answer { ids: self.answer.clone(), n_evaluated });
    }

    /// Refused, or as good as the good file. Says which.
    fn try_file(&self, mutation: &Mutation) -> bool {
        std::fs::write(&self.file, &mutation.file).unwrap();
        match self.restored(&self.file) {
            Err(EngineError::Restore(_)) => false,
            Err(error) => panic!("another error than a refusal: {error}"),
            Ok(answer) => {
                assert!(self.good.map.is_equivalent(&self.good.file, &mutation.file), "it was accepted");
                assert_eq!(answer, Answer { ids: self.answer.clone(), n_evaluated: 1 });
                true
            }
        }
    }
}

/// Good files that are not this bench's: of every kind, of other shapes, of another prompt, of another cache.
fn others() -> Vec<(String, Vec<u8>)> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("state");
    let mut all = Vec::new();
    let mut add = |name: String, model: &Path, cache: CacheType, prompt: &[Token]| {
        kinds::engine(model, cache, 1).prefill_to_file(prompt, &file).unwrap();
        all.push((name, std::fs::read(&file).unwrap()));
    };
    for kind in Kind::ALL {
        // Of 12 tokens 11 would do; 10 are another length.
        let n = kind.n_states(12);
        add(format!("{kind:?}"), &kind.model(), CacheType::F16, &prompt(12, 1)[..n]);
        add(format!("{kind:?} of another prompt"), &kind.model(), CacheType::F16, &prompt(12, 2)[..n]);
        add(format!("{kind:?} of another length"), &kind.model(), CacheType::F16, &prompt(12, 1)[..10]);
        if kind.has_attention() {
            add(format!("{kind:?} with q8_0"), &kind.model(), CacheType::Q8_0, &prompt(12, 1)[..n]);
        }
        let tiny = kind.tiny();
        for (shape, tiny) in
            [("with more layers", tiny.clone().with_layers(tiny.n_layer + 2)), ("wider", tiny.clone().with_width(128))]
        {
            let path = model::write(&format!("tiny-{kind:?}-{}.gguf", shape.replace(' ', "-")), &tiny);
            add(format!("{kind:?} {shape}"), &path, CacheType::F16, &prompt(12, 1)[..n]);
        }
    }
    let seven = model::write("tiny-seven.gguf", &TinyModel::with_seed(7));
    add("llama with other heads".to_owned(), &seven, CacheType::F16, &prompt(12, 1));
    all
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// This kind's share of all mutations, taken in turn from several good files: within and past the window and the pass, of a
/// quantized cache, and round the end of the window's cells.
fn run(kind: Kind) {
    let n_mutations = number("ONEBIT_MUTATIONS", 6_000).div_ceil(Kind::ALL.len() as u64);
    let (seed, from) = (number("ONEBIT_MUTATIONS_SEED", 1), number("ONEBIT_MUTATIONS_FROM", 0));
    let folder = tempfile::tempdir().unwrap();
    let others = others();
    let mut sizes = vec![(CacheType::F16, 12), (CacheType::F16, 70)];
    if kind.has_attention() {
        sizes.push((CacheType::Q8_0, 40));
    }
    if matches!(kind, Kind::SlidingWindow | Kind::HybridWindow) {
        sizes.push((CacheType::F16, 300));
    }
    let benches: Vec<Bench> =
        sizes.into_iter().map(|(cache, n)| Bench::new(kind, cache, n, &others, folder.path())).collect();
    let last = std::fs::File::create(Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("mutations-{kind:?}.last")));
    let last = last.unwrap();

    let started = Instant::now();
    let mut n_accepted = 0;
    for index in from..from + n_mutations {
        last.write_all_at(format!("ONEBIT_MUTATIONS_SEED={seed} ONEBIT_MUTATIONS_FROM={index:<9}\n").as_bytes(), 0)
            .unwrap();
        let bench = &benches[usize::try_from(index).unwrap() % benches.len()];
        let mutation = bench.good.mutate(&mut Rng::new(seed ^ (kind as u64) << 32, index));
        let hint = Hint(|| {
            eprintln!("{kind:?}, seed {seed}, mutation {index} ({} tokens): {}", bench.prompt.len(), mutation.what)
        });
        n_accepted += u64::from(bench.try_file(&mutation));
        if index % LOOK_AFTER == 0 {
            bench.look(index / LOOK_AFTER);
        }
        hint.forget();
    }
    for bench in &benches {
        bench.look(0);
        bench.look(1);
    }
    eprintln!(
        "{kind:?}: {n_mutations} mutations with seed {seed} in {:.1} s: {n_accepted} mean the same and were restored, the others were refused",
        started.elapsed().as_secs_f32()
    );
    assert!(n_accepted < n_mutations / 4, "too many that mean the same");
}

/// Says what was going on if the test fails.
struct Hint<F: Fn()>(F);

impl<F: Fn()> Hint<F> {
    fn forget(self) {
        std::mem::forget(self);
    }
}

impl<F: Fn()> Drop for Hint<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

macro_rules! mutations_of {
    ($($name:ident: $kind:ident;)+) => {
        $(#[test]
        fn $name() {
            run(Kind::$kind);
        })+
    };
}

mutations_of! {
    attention: Attention;
    sliding_window: SlidingWindow;
    recurrent: Recurrent;
    hybrid: Hybrid;
    hybrid_window: HybridWindow;
    mrope: MRope;
}
