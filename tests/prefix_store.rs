//! Prompts that were evaluated once are not evaluated again, by whatever process: real models of every memory kind, real files.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use common::bench::Bench;
use common::kinds::{self, Answer, Kind, N_UBATCH, greedy, prompt, whole};
use common::model;
use common::request::Request;
use common::server::{HybridLine, Server};
use onebit::engine::{CacheType, Engine, EngineConfig, FlashAttention, GenerateOptions};
use onebit::llama::Token;
use onebit::store::{Name, StoreConfig, list};
use serde_json::Value;

const N_PROMPT: usize = 200;
const N_ANSWER: u32 = 12;
const MIN_TOKENS: usize = 64;

fn store(dir: &Path) -> StoreConfig {
    StoreConfig { dir: dir.to_owned(), max_bytes: 1 << 30, min_tokens: MIN_TOKENS, with_foreign: false }
}

/// As `kinds::engine`, with a store.
fn engine(model: &Path, cache: CacheType, store: StoreConfig) -> Engine {
    Engine::load(config(model, cache, store)).unwrap()
}

fn config(model: &Path, cache: CacheType, store: StoreConfig) -> EngineConfig {
    EngineConfig {
        n_ctx: Some(512),
        n_batch: 2 * N_UBATCH,
        n_ubatch: N_UBATCH,
        n_threads: Some(1),
        cache_type_k: cache,
        cache_type_v: cache,
        flash_attention: FlashAttention::On,
        prefix_store: Some(store),
        ..EngineConfig::new(model)
    }
}

fn ask(engine: &Engine, prompt: &[Token]) -> Answer {
    let options = GenerateOptions { reuse_prefix: true, ..greedy(N_ANSWER) };
    Answer::read(engine.generate(prompt, &options).unwrap()).unwrap()
}

/// The answer of an engine that is started for it, and has ended with everything written.
fn ask_anew(model: &Path, store: StoreConfig, prompt: &[Token]) -> Answer {
    let engine = engine(model, CacheType::F16, store);
    let answer = ask(&engine, prompt);
    engine.shutdown();
    answer
}

/// The states of all models in a store.
fn states(dir: &Path) -> Vec<PathBuf> {
    let families = list::families(dir).unwrap();
    families.into_iter().flat_map(|family| family.entries).map(|entry| entry.path).collect()
}

fn assert_all_good(dir: &Path, what: &str) {
    for entry in list::families(dir).unwrap().iter().flat_map(|family| &family.entries) {
        entry.verify().unwrap_or_else(|problem| panic!("{what}: {}: {problem}", entry.name));
    }
}

#[test]
fn after_a_restart_one_token_is_evaluated() {
    for (kind, cache) in Kind::ALL.into_iter().flat_map(|kind| [(kind, CacheType::F16), (kind, CacheType::Q8_0)]) {
        if cache != CacheType::F16 && !kind.has_attention() {
            continue;
        }
        let folder = tempfile::tempdir().unwrap();
        let prompt = prompt(N_PROMPT, 1);
        let first = engine(&kind.model(), cache, store(folder.path()));
        let cold = ask(&first, &prompt);
        assert_eq!(cold.n_evaluated, N_PROMPT, "{kind:?}, {cache}");
        first.shutdown();
        assert_eq!(states(folder.path()).len(), 1, "{kind:?}, {cache}");
        assert_all_good(folder.path(), &format!("{kind:?}, {cache}"));

        let second = engine(&kind.model(), cache, store(folder.path()));
        assert_eq!(second.n_stored(&prompt), N_PROMPT - 1, "{kind:?}, {cache}");
        assert_eq!(ask(&second, &prompt), Answer { n_evaluated: 1, ..cold.clone() }, "{kind:?}, {cache}");
        assert_eq!(whole(&second, &prompt, N_ANSWER), cold, "{kind:?}, {cache}: when not asked for, nothing is reused");
        second.shutdown();
        assert_eq!(states(folder.path()).len(), 1, "{kind:?}, {cache}: what is there is not written again");
    }
}

#[test]
fn the_next_turn_after_a_restart() {
    const N_NEW: usize = 20;
    for kind in Kind::ALL {
        let folder = tempfile::tempdir().unwrap();
        let mut next = prompt(N_PROMPT, 1);
        let answer = ask_anew(&kind.model(), store(folder.path()), &next);
        next.extend(answer.ids.iter().copied().map(Token));
        next.extend(prompt(N_NEW, 2));
        let second = engine(&kind.model(), CacheType::F16, store(folder.path()));
        let found = ask(&second, &next);
        // With plain attention the answer is in the file, but for its last token; else the prompt is, and a running state's is
        // that of all but its last.
        let expected = match kind {
            Kind::Attention | Kind::MRope => N_NEW + 1,
            Kind::SlidingWindow => N_NEW + N_ANSWER as usize,
            Kind::Recurrent | Kind::Hybrid | Kind::HybridWindow => N_NEW + N_ANSWER as usize + 1,
        };
        assert_eq!(found.n_evaluated, expected, "{kind:?}");
        assert_eq!(found.ids, whole(&second, &next, N_ANSWER).ids, "{kind:?}");
    }
}

/// A state that goes on otherwise is cut back, where the memory can be.
#[test]
fn a_common_beginning() {
    const N_COMMON: usize = 150;
    for kind in Kind::ALL {
        let folder = tempfile::tempdir().unwrap();
        let mut prompt = prompt(N_PROMPT, 1);
        ask_anew(&kind.model(), store(folder.path()), &prompt);
        prompt.truncate(N_COMMON);
        prompt.extend(kinds::prompt(40, 2));
        let second = engine(&kind.model(), CacheType::F16, store(folder.path()));
        let found = ask(&second, &prompt);
        let is_plain = matches!(kind, Kind::Attention | Kind::MRope);
        assert_eq!(found.n_evaluated, if is_plain { 40 } else { N_COMMON + 40 }, "{kind:?}");
        assert_eq!(found.ids, whole(&second, &prompt, N_ANSWER).ids, "{kind:?}");
    }
}

#[test]
fn damaged_files_are_removed() {
    let kind = Kind::Attention;
    let folder = tempfile::tempdir().unwrap();
    let prompt = prompt(N_PROMPT, 1);
    let cold = ask_anew(&kind.model(), store(folder.path()), &prompt);
    let [file] = &states(folder.path())[..] else { panic!("one state") };
    let good = fs::read(file).unwrap();
    let flipped = |at: usize| {
        let mut bytes = good.clone();
        bytes[at] ^= 0x10;
        bytes
    };
    let middle = good.len() / 2;
    let mut damages = vec![
        ("empty".to_owned(), Vec::new()),
        ("half".to_owned(), good[..middle].to_vec()),
        ("all but a byte".to_owned(), good[..good.len() - 1].to_vec()),
        ("longer".to_owned(), [&good[..], &[0]].concat()),
        ("zeros".to_owned(), vec![0; good.len()]),
        ("zeros from the middle on".to_owned(), [&good[..middle], &vec![0; good.len() - middle]].concat()),
    ];
    // Magic, version, count, ids, cells, layers, values.
    for at in [0, 4, 8, 12, 400, 12 + 4 * N_PROMPT + 60, 4096, middle, good.len() - 1] {
        damages.push((format!("byte {at}"), flipped(at)));
    }
    for (what, bytes) in damages {
        fs::write(file, bytes).unwrap();
        assert_eq!(ask_anew(&kind.model(), store(folder.path()), &prompt), cold, "{what}");
        // It was evaluated anew, and written anew.
        assert_all_good(folder.path(), &what);
        assert_eq!(states(folder.path()).len(), 1, "{what}");
    }
    // Something else under that name.
    fs::remove_file(file).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", file).unwrap();
    assert_eq!(ask_anew(&kind.model(), store(folder.path()), &prompt), cold);
    assert_all_good(folder.path(), "a link");
}

/// Under a right name, for the right ids, whole, and of other weights: what the probe is for.
#[test]
fn values_of_other_weights_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let other = model::write("store-other.gguf", &onebit::testing::TinyModel { seed: 2, ..Kind::Attention.tiny() });
    let prompt = prompt(N_PROMPT, 1);
    let cold = ask_anew(&Kind::Attention.model(), store(folder.path()), &prompt);
    let [file] = &states(folder.path())[..] else { panic!("one state") };
    let name: Name = file.file_name().unwrap().to_str().unwrap().parse().unwrap();

    let forged = folder.path().join("forged");
    let ids = prompt[..N_PROMPT - 1].to_vec();
    kinds::engine(&other, CacheType::F16, 1).prefill_to_file(ids.clone(), &forged).unwrap();
    let ids: Vec<i32> = ids.iter().map(|token| token.0).collect();
    let forged_name = Name::of(&ids, &fs::read(&forged).unwrap(), false);
    assert_ne!(forged_name, name);
    fs::rename(&forged, file.with_file_name(forged_name.to_string())).unwrap();
    fs::remove_file(file).unwrap();

    assert_eq!(ask_anew(&Kind::Attention.model(), store(folder.path()), &prompt), cold);
    assert!(!file.with_file_name(forged_name.to_string()).exists());
}

/// The same shape, so the same metadata and tensor table: the weights tell them apart. And so do cache types.
#[test]
fn other_models_have_other_states() {
    let folder = tempfile::tempdir().unwrap();
    let other = model::write("store-other.gguf", &onebit::testing::TinyModel { seed: 2, ..Kind::Attention.tiny() });
    let prompt = prompt(N_PROMPT, 1);
    ask_anew(&Kind::Attention.model(), store(folder.path()), &prompt);
    assert_eq!(ask_anew(&other, store(folder.path()), &prompt).n_evaluated, N_PROMPT);
    let quantized = engine(&other, CacheType::Q8_0, store(folder.path()));
    assert_eq!(ask(&quantized, &prompt).n_evaluated, N_PROMPT);
    quantized.shutdown();
    assert_eq!(list::families(folder.path()).unwrap().len(), 3);
    // A copy under another name is the same model.
    let copy = folder.path().join("copy.gguf");
    fs::copy(&other, &copy).unwrap();
    assert_eq!(ask_anew(&copy, store(folder.path()), &prompt).n_evaluated, 1);
}

#[test]
fn engines_share_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let model = Kind::Attention.model();
    // Both are there before anything is written.
    let [one, two] = [(); 2].map(|()| engine(&model, CacheType::F16, store(folder.path())));
    let prompts = [1, 2, 3].map(|salt| prompt(N_PROMPT, salt));
    assert_eq!(two.n_stored(&prompts[0]), 0);
    let cold = prompts.each_ref().map(|prompt| ask(&one, prompt));
    one.shutdown();
    // A job between takes the slot's own memory out of it.
    for (prompt, cold) in prompts.iter().zip(&cold) {
        assert_eq!(ask(&two, prompt), Answer { n_evaluated: 1, ..cold.clone() });
    }
    // Removed by somebody else, with the folder.
    fs::remove_dir_all(folder.path()).unwrap();
    for (prompt, cold) in prompts.iter().zip(&cold) {
        assert_eq!(ask(&two, prompt).ids, cold.ids);
    }
    two.shutdown();
    assert!(!states(folder.path()).is_empty(), "the folder is made anew");
}

/// How many sequences an engine has, and how long they may be, is no part of a state; one that is too long is left alone.
#[test]
fn engines_of_other_sizes_share_states() {
    for kind in Kind::ALL {
        let folder = tempfile::tempdir().unwrap();
        let sized = |n_seq, n_ctx| {
            let config = config(&kind.model(), CacheType::F16, store(folder.path()));
            Engine::load(EngineConfig { n_seq, n_ctx: Some(n_ctx), ..config }).unwrap()
        };
        let [long, short] = [prompt(400, 1), prompt(N_PROMPT, 2)];
        let (two, one, small) = (sized(2, 512), sized(1, 512), sized(1, 256));
        let cold = [&long, &short].map(|prompt| ask(&two, prompt));
        two.shutdown();
        assert_eq!(ask(&one, &long), Answer { n_evaluated: 1, ..cold[0].clone() }, "{kind:?}");
        assert_eq!(small.n_stored(&long[..250]), 0, "{kind:?}");
        assert_eq!(ask(&small, &short), Answer { n_evaluated: 1, ..cold[1].clone() }, "{kind:?}");
        let again = sized(2, 512);
        assert_eq!(ask(&again, &long), Answer { n_evaluated: 1, ..cold[0].clone() }, "{kind:?}");
        assert_all_good(folder.path(), &format!("{kind:?}"));
    }
}

#[test]
fn what_was_not_used_for_longest_goes_first() {
    let folder = tempfile::tempdir().unwrap();
    let model = Kind::Attention.model();
    let prompts = [1, 2, 3].map(|salt| prompt(N_PROMPT, salt));
    for (index, prompt) in prompts.iter().take(2).enumerate() {
        let before = states(folder.path());
        ask_anew(&model, store(folder.path()), prompt);
        let new = states(folder.path()).into_iter().find(|file| !before.contains(file)).unwrap();
        let age = Duration::from_secs(3600 * (10 - index as u64));
        fs::File::open(new).unwrap().set_modified(SystemTime::now() - age).unwrap();
    }
    let n_bytes = fs::metadata(&states(folder.path())[0]).unwrap().len();
    let two = || StoreConfig { max_bytes: n_bytes * 5 / 2, ..store(folder.path()) };
    // The older one is used, so the other is the one that goes.
    assert_eq!(ask_anew(&model, two(), &prompts[0]).n_evaluated, 1);
    assert_eq!(ask_anew(&model, two(), &prompts[2]).n_evaluated, N_PROMPT);
    assert_eq!(states(folder.path()).len(), 2);
    let last = engine(&model, CacheType::F16, two());
    assert_eq!(prompts.each_ref().map(|prompt| last.n_stored(prompt)), [N_PROMPT - 1, 0, N_PROMPT - 1]);
}

#[test]
fn a_store_that_cannot_be_written_costs_no_answer() {
    let folder = tempfile::tempdir().unwrap();
    let model = Kind::Attention.model();
    let prompt = prompt(N_PROMPT, 1);
    let cold = whole(&kinds::engine(&model, CacheType::F16, 1), &prompt, N_ANSWER);
    // No room for one state.
    let small = StoreConfig { max_bytes: 1000, ..store(folder.path()) };
    assert_eq!(ask_anew(&model, small, &prompt), cold);
    assert!(states(folder.path()).is_empty());
    // No folder, from the start and later.
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    assert_eq!(ask_anew(&model, store(&file), &prompt), cold);
    let dir = folder.path().join("dir");
    let engine = engine(&model, CacheType::F16, store(&dir));
    fs::remove_dir_all(&dir).unwrap();
    fs::write(&dir, "").unwrap();
    for salt in [1, 2] {
        assert_eq!(ask(&engine, &kinds::prompt(N_PROMPT, salt)).n_evaluated, N_PROMPT);
    }
    engine.shutdown();
    assert_eq!(fs::read(&dir).unwrap(), b"");
}

#[test]
fn short_prompts_and_private_ones_are_not_kept() {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(&Kind::Attention.model(), CacheType::F16, store(folder.path()));
    ask(&engine, &prompt(MIN_TOKENS - N_ANSWER as usize, 1));
    whole(&engine, &prompt(N_PROMPT, 2), N_ANSWER);
    let both = engine.generate_many(&prompt(N_PROMPT, 3)[..], &greedy(N_ANSWER), 2).unwrap();
    both.into_iter().for_each(|events| drop(Answer::read(events).unwrap()));
    engine.shutdown();
    assert!(states(folder.path()).is_empty());
}

/// With plain attention a longer conversation's state does what the shorter one's did.
#[test]
fn a_longer_state_replaces_its_beginning() {
    let folder = tempfile::tempdir().unwrap();
    let model = Kind::Attention.model();
    let long = prompt(400, 1);
    for n in [100, 200, 400] {
        ask_anew(&model, store(folder.path()), &long[..n]);
    }
    // The answers differ from what follows in the prompt, so each state is cut back, and stays.
    assert_eq!(states(folder.path()).len(), 3);
    let answered = engine(&model, CacheType::F16, store(folder.path()));
    let mut next = long[..300].to_vec();
    let options = GenerateOptions { reuse_prefix: true, ..greedy(0) };
    for n in [300, 420] {
        next.extend(prompt(n - next.len(), 7));
        Answer::read(answered.generate(&next[..], &options).unwrap()).unwrap();
    }
    answered.shutdown();
    let n_tokens = |family: &list::Family| -> Vec<usize> {
        let mut all: Vec<usize> = family.entries.iter().map(|entry| entry.n_tokens.clone().unwrap()).collect();
        all.sort_unstable();
        all
    };
    assert_eq!(n_tokens(&list::families(folder.path()).unwrap()[0]), [111, 211, 411, 420]);
}

/// What a provider computed serves where a provider is asked, and nowhere else.
#[test]
fn states_of_a_provider() {
    for kind in Kind::ALL {
        let folder = tempfile::tempdir().unwrap();
        let hybrid = || StoreConfig { with_foreign: true, ..store(folder.path()) };
        let file = folder.path().join("state");
        let prompt = prompt(N_PROMPT, 1);
        kinds::engine(&kind.model(), CacheType::F16, 1)
            .prefill_to_file(&prompt[..kind.n_states(N_PROMPT)], &file)
            .unwrap();
        let first = engine(&kind.model(), CacheType::F16, hybrid());
        let options = GenerateOptions { reuse_prefix: true, ..greedy(N_ANSWER) };
        let restored = Answer::read(first.restore_and_generate(&file, &prompt[..], &options).unwrap()).unwrap();
        first.shutdown();
        assert_eq!(states(folder.path()).len(), 1, "{kind:?}");

        assert_eq!(ask_anew(&kind.model(), hybrid(), &prompt), restored, "{kind:?}");
        let local = engine(&kind.model(), CacheType::F16, store(folder.path()));
        assert_eq!(local.n_stored(&prompt), 0, "{kind:?}");
        assert_eq!(ask(&local, &prompt).n_evaluated, N_PROMPT, "{kind:?}");
    }
}

/// Files and folders are this user's alone, and what a killed process was writing is removed.
#[test]
fn files_are_private_and_swept() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("made");
    let model = Kind::Attention.model();
    ask_anew(&model, store(&dir), &prompt(N_PROMPT, 1));
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let file = states(&dir).remove(0);
    let family = file.parent().unwrap();
    assert_eq!([mode(&dir), mode(family), mode(&file)], [0o700, 0o700, 0o600]);

    let (dead, live) = (family.join(".0.part"), family.join(".1.part"));
    fs::write(&dead, "x").unwrap();
    let lock = fs::File::create(&live).unwrap();
    lock.lock().unwrap();
    ask_anew(&model, store(&dir), &prompt(N_PROMPT, 1));
    assert!(!dead.exists() && live.exists());

    // Where others may write, nothing is trusted.
    fs::set_permissions(family, fs::Permissions::from_mode(0o777)).unwrap();
    assert_eq!(ask_anew(&model, store(&dir), &prompt(N_PROMPT, 1)).n_evaluated, N_PROMPT);
}

fn onebit(args: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_onebit"));
    let output = command.args(args).env_remove("ONEBIT_MODEL").output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// A hybrid server, started again: the provider ran once, and is not started for what is in the store.
#[test]
fn a_hybrid_server_skips_its_provider() {
    let bench = Bench::new("echo called >> \"$bench/calls\"; exec \"$prefill\" \"$@\"");
    let dir = bench.path("store");
    let start =
        || -> Server { bench.setup().flag("--prefix-store", &dir).args(&["--prefix-store-min-tokens", "64"]).start() };
    let request = Request::text(&"It was a long story. ".repeat(10)).with("cache_prompt", true.into());
    let server = start();
    let first = server.ask(&request);
    assert_eq!(server.hybrid_line(), HybridLine::Handoff { n_prompt: first.n_prompt() });
    server.stop();

    let server = start();
    let second = server.ask(&request);
    assert_eq!(second.visible(), first.visible());
    assert_eq!((second.n_evaluated(), second.n_cached()), (1, first.n_prompt() - 1));
    assert!(second.timings["restore_ms"].as_f64().is_some_and(|ms| ms > 0.0), "{}", second.timings);
    // Another prompt is the provider's again.
    let other = server.ask(&Request::text("Another story.").with("cache_prompt", true.into()));
    assert_eq!(server.hybrid_line(), HybridLine::Handoff { n_prompt: other.n_prompt() });
    server.stop();
    assert_eq!(bench.text("calls"), "called\ncalled\n");
    the_commands(&dir, first.n_prompt());
}

/// `onebit store`, on what the server has left.
fn the_commands(dir: &Path, n_prompt: usize) {
    let dir_text = dir.to_str().unwrap();
    let model = model::tiny();
    let model = model.to_str().unwrap();
    let (code, text, _) = onebit(&["store", "ls", dir_text]);
    assert_eq!(code, Some(0));
    for part in ["tiny.gguf (", "K f16, V f16: 1 state", "used just now  from a provider"] {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
    let (_, text, _) = onebit(&["store", "ls", dir_text, "--json"]);
    let state = &serde_json::from_str::<Value>(&text).unwrap()["models"][0]["states"][0];
    assert!(state["tokens"].as_u64().is_some_and(|n| n as usize >= n_prompt), "{state}");
    for args in [&["store", "verify", dir_text][..], &["store", "verify", dir_text, "-m", model]] {
        let (code, text, error) = onebit(args);
        assert_eq!((code, &*text), (Some(0), "1 good, 0 bad\n"), "{error}");
    }
    let other = Kind::Recurrent.model();
    let (code, _, error) = onebit(&["store", "verify", dir_text, "-m", other.to_str().unwrap()]);
    assert!(code == Some(1) && error.contains("no state in "), "{error}");

    let file = PathBuf::from(state["file"].as_str().unwrap());
    let mut bytes = fs::read(&file).unwrap();
    bytes[5000] ^= 1;
    fs::write(&file, bytes).unwrap();
    let (code, text, _) = onebit(&["store", "verify", dir_text]);
    assert!(code == Some(1) && text.contains("its bytes are not those that were written\n0 good, 1 bad"), "{text}");

    let name = &state["name"].as_str().unwrap()[..12];
    for (args, expected) in [
        (&["rm", dir_text][..], Some(2)),
        (&["rm", dir_text, "abc"], Some(2)),
        (&["rm", dir_text, "nothing"], Some(2)),
        (&["rm", dir_text, "--older-than", "1h"], Some(0)),
        (&["rm", dir_text, "--older-than", "soon"], Some(2)),
        (&["ls", "/no/such/folder"], Some(2)),
    ] {
        assert_eq!(onebit(&[&["store"], args].concat()).0, expected, "{args:?}");
        assert!(file.exists());
    }
    let (code, text, _) = onebit(&["store", "rm", dir_text, name]);
    assert!(code == Some(0) && text.starts_with("removed 1 state, "), "{text}");
    assert_eq!(fs::read_dir(dir).unwrap().count(), 0);
}

/// `onebit run` reads and writes one too.
#[test]
fn one_answer_on_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let (dir, model) = (folder.path().to_str().unwrap(), model::tiny());
    let prompt = "It was a long story. ".repeat(10);
    let args = ["run", "-m", model.to_str().unwrap(), "--raw", "--temp", "0", "-n", "8", "--device", "cpu", &prompt];
    let with_store = [&args[..], &["--prefix-store", dir, "--prefix-store-min-tokens", "64"]].concat();
    let expected = onebit(&args);
    assert_eq!(expected.0, Some(0), "{}", expected.2);
    for _ in 0..2 {
        let (code, text, error) = onebit(&with_store);
        assert_eq!((code, text), (expected.0, expected.1.clone()), "{error}");
        assert_eq!(states(folder.path()).len(), 1);
    }
    let (code, _, error) = onebit(&[&args[..], &["--prefix-store", dir, "--prefix-store-size", "lots"]].concat());
    assert!(code == Some(2) && error.contains("such as 500M or 8G"), "{error}");
}
