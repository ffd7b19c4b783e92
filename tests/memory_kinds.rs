//! A handoff changes nothing, whatever memory the model keeps: at every edge of windows and batches, the ids that follow are
//! those of the run that was not split.

#[path = "common/mod.rs"]
mod common;

use std::path::Path;

use onebit::engine::{CacheType, Engine, EngineConfig, EngineError, Event, GenerateOptions};
use onebit::llama::Token;

use common::kinds::{Answer, Kind, N_UBATCH, config, engine, greedy, prompt, restored, whole};

/// Greedy tokens that are compared.
const N_ANSWER: u32 = 32;

/// Around the window (32), the pass (64), the batch (128) and the cells of the window's cache (256); several windows long.
const LENGTHS: [usize; 21] = [1, 2, 3, 31, 32, 33, 34, 63, 64, 65, 66, 95, 97, 127, 128, 129, 200, 255, 257, 320, 450];

/// A provider's file for this prompt, made by another engine on the same model.
fn prefill(provider: &Engine, kind: Kind, prompt: &[Token], file: &Path) {
    let n = kind.n_states(prompt.len());
    assert_eq!(provider.prefill_to_file(&prompt[..n], file).unwrap().n_tokens, n);
}

fn check_lengths(kind: Kind, cache: CacheType) {
    let model = kind.model();
    let (engine, provider) = (engine(&model, cache, 1), common::kinds::engine(&model, cache, 1));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("state");
    let mut different = Vec::new();
    for n in LENGTHS.into_iter().filter(|&n| kind.n_states(n) > 0) {
        let prompt = prompt(n, 1);
        prefill(&provider, kind, &prompt, &file);
        let expected = whole(&engine, &prompt, N_ANSWER);
        assert_eq!((expected.ids.len(), expected.n_evaluated), (N_ANSWER as usize, n));
        let found = restored(&engine, &file, &prompt, N_ANSWER).unwrap_or_else(|error| panic!("{n} tokens: {error}"));
        assert_eq!(found.n_evaluated, 1, "{kind:?}, {cache}, {n} tokens");
        if found.ids != expected.ids {
            different.push((n, expected.ids, found.ids));
        }
    }
    assert!(different.is_empty(), "{kind:?}, {cache}: {different:#?}");
}

macro_rules! at_every_edge {
    ($($name:ident: $kind:ident, $cache:ident;)+) => {
        $(#[test]
        fn $name() {
            check_lengths(Kind::$kind, CacheType::$cache);
        })+
    };
}

at_every_edge! {
    attention_f16: Attention, F16;
    attention_q8_0: Attention, Q8_0;
    sliding_window_f16: SlidingWindow, F16;
    sliding_window_q8_0: SlidingWindow, Q8_0;
    recurrent: Recurrent, F16;
    hybrid_f16: Hybrid, F16;
    hybrid_q8_0: Hybrid, Q8_0;
    hybrid_window_f16: HybridWindow, F16;
    hybrid_window_q8_0: HybridWindow, Q8_0;
    mrope_f16: MRope, F16;
    mrope_q8_0: MRope, Q8_0;
}

/// Otherwise all of this would prove little: the beginning of a prompt of several passes decides what follows.
#[test]
fn answers_depend_on_the_whole_prompt() {
    for kind in Kind::ALL {
        let engine = engine(&kind.model(), CacheType::F16, 1);
        let mut prompt = prompt(2 * N_UBATCH as usize + 1, 1);
        let first = whole(&engine, &prompt, N_ANSWER);
        // What was before the window is out of sight of a model that has nothing else than that and short convolutions.
        let start = if kind == Kind::HybridWindow { prompt.len() - 30 } else { 0 };
        prompt[start..start + 16].reverse();
        assert_ne!(whole(&engine, &prompt, N_ANSWER).ids, first.ids, "{kind:?}");
    }
}

/// A state that cannot step back stands for all tokens but the last, and of one token there is none.
#[test]
fn models_that_cannot_step_back_say_so() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("state");
    for kind in [Kind::Recurrent, Kind::Hybrid, Kind::HybridWindow] {
        let engine = engine(&kind.model(), CacheType::F16, 1);
        assert!(!engine.info().can_step_back);
        let prompt = prompt(40, 1);
        let expected = whole(&engine, &prompt, 8);
        engine.prefill_to_file(&prompt[..], &file).unwrap();
        let error = restored(&engine, &file, &prompt, 8).unwrap_err();
        assert_eq!(
            error.to_string(),
            "bad state file: it holds all 40 tokens, but this model cannot step back: it must hold the first 39"
        );
        engine.prefill_to_file(&prompt[..1], &file).unwrap();
        let error = restored(&engine, &file, &prompt[..1], 8).unwrap_err();
        assert!(matches!(error, EngineError::Restore(_)), "{error}");
        assert_eq!(whole(&engine, &prompt, 8), expected);
    }
}

/// Without flash attention V is stored the other way round, which no state file is to be: said, and the work done here.
#[test]
fn a_memory_that_is_not_supported_generates_locally() {
    use onebit::engine::{EngineConfig, FlashAttention};
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("state");
    for kind in [Kind::Attention, Kind::SlidingWindow, Kind::Hybrid, Kind::MRope] {
        let config = EngineConfig {
            n_ctx: Some(512),
            n_threads: Some(1),
            flash_attention: FlashAttention::Off,
            ..EngineConfig::new(kind.model())
        };
        let engine = Engine::load(config).unwrap();
        let prompt = prompt(40, 1);
        let expected = whole(&engine, &prompt, 8);
        prefill(&engine, kind, &prompt, &file);
        let error = restored(&engine, &file, &prompt, 8).unwrap_err();
        let reason = "cannot restore: this model's memory kind is not supported for handoff: V is stored transposed";
        assert!(error.to_string().starts_with(reason), "{kind:?}: {error}");
        assert_eq!(whole(&engine, &prompt, 8), expected);
    }
}

/// Two sequences: one goes on while files are restored into the other.
///
/// A token that shares its batch with another sequence's goes through the matrix kernel for several columns, which adds up in
/// another order than the one for a single column (ggml-cpu, `llamafile_sgemm`): the last bits of its logits depend on who
/// else is there, restored or not. (Measured: cells between its own change nothing, nor does a context for two; mamba,
/// whose batches have an axis for sequences, is the same to the bit.) So answers are those of a sequence alone but for ties.
#[test]
fn beside_a_running_sequence() {
    const N_RUNNING: u32 = 300;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("state");
    let kinds = Kind::ALL.into_iter().flat_map(|kind| [(kind, CacheType::F16), (kind, CacheType::Q8_0)]);
    for (kind, cache) in kinds.filter(|(kind, cache)| *cache == CacheType::F16 || kind.has_attention()) {
        let (alone, engine) = (engine(&kind.model(), cache, 1), common::kinds::engine(&kind.model(), cache, 2));
        let what = format!("{kind:?}, {cache}");
        let running_prompt = prompt(50, 7);
        let mut running = engine.generate(&running_prompt[..], &greedy(N_RUNNING)).unwrap();
        assert!(matches!(running.next(), Some(Ok(Event::Prompt(_)))));
        for n in [2, 33, 65, 129, 300] {
            let prompt = prompt(n, 1);
            prefill(&alone, kind, &prompt, &file);
            let found =
                restored(&engine, &file, &prompt, N_ANSWER).unwrap_or_else(|error| panic!("{what}, {n}: {error}"));
            assert_eq!(found.n_evaluated, 1);
            // A bad file is refused without harm to the neighbour.
            let bytes = std::fs::read(&file).unwrap();
            std::fs::write(&file, &bytes[..bytes.len() - 1]).unwrap();
            let error = restored(&engine, &file, &prompt, 1).unwrap_err();
            assert!(error.to_string().starts_with("bad state file: the file ends too early"), "{what}, {n}: {error}");
            check_but_for_ties(&alone, &prompt, &found.ids, &format!("{what}, {n} tokens"));
        }
        let mut ids = Vec::new();
        for event in running {
            if let Event::Piece(piece) = event.unwrap() {
                ids.extend(piece.tokens.iter().map(|token| token.0));
            }
        }
        assert_eq!(ids.len(), N_RUNNING as usize);
        check_but_for_ties(&alone, &running_prompt, &ids, &format!("{what}, the running sequence"));
    }
}

/// The file with NaN, whether its values are F16 or F32, as the last value of each layer's rows.
fn with_nan_at_the_ends(bytes: &[u8]) -> Vec<u8> {
    let report = onebit::state::inspect(&mut std::io::Cursor::new(bytes), bytes.len() as u64, None).unwrap();
    let mut spoiled = bytes.to_vec();
    for section in &report.sections {
        let mut end = usize::try_from(section.offset + section.bytes).unwrap();
        for block in section.blocks.iter().rev() {
            let rows = section.n_cells as usize * usize::try_from(block.row.bytes).unwrap();
            if rows > 0 {
                spoiled[end - 2..end].copy_from_slice(&[0xff, 0x7f]);
            }
            end -= 12 + rows;
        }
    }
    spoiled
}

/// In a cache that sequences share, the free cells may lie between those of others: rows of a file go to many places then.
#[test]
fn rows_between_those_of_others() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("state");
    let kinds = Kind::ALL.into_iter().flat_map(|kind| [(kind, CacheType::F16), (kind, CacheType::Q8_0)]);
    for (kind, cache) in kinds.filter(|(kind, cache)| *cache == CacheType::F16 || kind.has_attention()) {
        let what = format!("{kind:?}, {cache}");
        let alone = engine(&kind.model(), cache, 1);
        let shared = EngineConfig { kv_unified: true, state_probe: None, ..config(&kind.model(), cache, 2) };
        let engine = Engine::load(shared).unwrap();
        // Two answers that take cells in turn, of which one stays.
        let beside = |slot, salt| {
            let options = GenerateOptions { slot: Some(slot), reuse_prefix: true, ..greedy(170) };
            engine.generate(&prompt(5, salt)[..], &options).unwrap()
        };
        let (going, staying) = (beside(0, 3), beside(1, 4));
        let kept = Answer::read(staying).unwrap();
        going.count();
        engine.erase_slot(0).unwrap();

        let file_of = prompt(90, 1);
        prefill(&alone, kind, &file_of, &file);
        let good = std::fs::read(&file).unwrap();
        let ask = || {
            let options = GenerateOptions { slot: Some(0), ..greedy(N_ANSWER) };
            Answer::read(engine.restore_and_generate(&file, &file_of[..], &options).unwrap())
        };
        if cache == CacheType::F16 {
            std::fs::write(&file, with_nan_at_the_ends(&good)).unwrap();
            let error = ask().unwrap_err().to_string();
            assert!(error.contains("NaN or infinity"), "{what}: {error}");
            std::fs::write(&file, good).unwrap();
        }
        check_but_for_ties(&alone, &file_of, &ask().unwrap().ids, &what);

        // What stayed is still there, and goes on as it would have.
        let ids = kept.ids.iter().map(|&id| Token(id));
        let longer: Vec<_> = prompt(5, 4).into_iter().chain(ids).chain(prompt(3, 5)).collect();
        let options = GenerateOptions { slot: Some(1), reuse_prefix: true, ..greedy(N_ANSWER) };
        let found = Answer::read(engine.generate(&longer[..], &options).unwrap()).unwrap();
        assert!(found.n_evaluated <= 4, "{what}: {}", found.n_evaluated);
        check_but_for_ties(&alone, &longer, &found.ids, &format!("{what}, the one that stayed"));
    }
}

/// A context with a stream for each sequence writes, and wants, other bytes than one for a single sequence. Files are of one
/// stream, whoever saves and whoever loads them.
#[test]
fn files_of_any_slot_fit_any_slot() {
    let folder = tempfile::tempdir().unwrap();
    let [alone, beside] = ["alone", "beside"].map(|name| folder.path().join(name));
    for (kind, kv_unified) in Kind::ALL.into_iter().flat_map(|kind| [(kind, false), (kind, true)]) {
        let one = engine(&kind.model(), CacheType::F16, 1);
        let many = Engine::load(EngineConfig { kv_unified, ..config(&kind.model(), CacheType::F16, 3) }).unwrap();
        let prompt = prompt(100, 1);
        let ask = |engine: &Engine, slot| {
            let options = GenerateOptions { slot: Some(slot), reuse_prefix: true, ..greedy(8) };
            Answer::read(engine.generate(&prompt[..], &options).unwrap()).unwrap()
        };
        let expected = ask(&one, 0);
        // The other sequences hold something too.
        ask(&many, 0);
        many.generate(&common::kinds::prompt(33, 5)[..], &GenerateOptions { slot: Some(1), ..greedy(4) })
            .unwrap()
            .count();
        assert_eq!(ask(&many, 2), expected, "{kind:?}");
        let saved = (one.save_slot(0, &alone).unwrap(), many.save_slot(2, &beside).unwrap());
        assert_eq!(saved.0, saved.1, "{kind:?}");
        // The same bytes but for each cell's sequence id, which loaders pass over. In a pool, where a sequence lies behind
        // others, attention adds up in another order.
        let [bytes, others] = [&alone, &beside].map(|file| std::fs::read(file).unwrap());
        let is_same = bytes.iter().zip(&others).all(|(a, b)| a == b || (*a, *b) == (0, 2));
        assert!(is_same || kv_unified, "{kind:?}");
        // Each takes the other's, in any slot, and goes on with a longer prompt that evaluates only what is new.
        let longer =
            [&prompt[..], &expected.ids.iter().map(|&id| Token(id)).collect::<Vec<_>>(), &prompt[..5]].concat();
        let go_on = |engine: &Engine, slot: u32, file: &Path| {
            engine.erase_slot(slot).unwrap();
            engine.restore_slot(slot, file).unwrap();
            let options = GenerateOptions { slot: Some(slot), reuse_prefix: true, ..greedy(8) };
            Answer::read(engine.generate(&longer[..], &options).unwrap()).unwrap()
        };
        let expected = go_on(&one, 0, &beside);
        assert!(expected.n_evaluated <= 6, "{kind:?}: {}", expected.n_evaluated);
        for slot in 0..3 {
            assert_eq!(go_on(&many, slot, &alone), expected, "{kind:?}, unified {kv_unified}, slot {slot}");
        }
    }
}

/// The cells of a window's ring are written by index. Loaded from there and continued, they are in no order of positions any
/// more, and the file that is saved then has to be one all the same.
#[test]
fn a_window_that_was_loaded_gone_round_can_be_saved_again() {
    let folder = tempfile::tempdir().unwrap();
    let [first, second] = ["first", "second"].map(|name| folder.path().join(name));
    let ask = |engine: &Engine, slot, prompt: &[Token]| {
        let options = GenerateOptions { slot: Some(slot), reuse_prefix: true, ..greedy(4) };
        Answer::read(engine.generate(prompt, &options).unwrap()).unwrap()
    };
    for (kind, n_seq) in [(Kind::SlidingWindow, 1), (Kind::SlidingWindow, 3)] {
        // Without a layout it saves what llama.cpp writes, as providers do.
        let other = EngineConfig { warmup: false, ..config(&kind.model(), CacheType::F16, 1) };
        let [alone, engine] = [1, n_seq].map(|n| engine(&kind.model(), CacheType::F16, n));
        let other = Engine::load(other).unwrap();
        // Longer and longer, until the ring's end lies amidst the window.
        let mut text = Vec::new();
        loop {
            text = prompt(text.len() + 7, 1);
            text.extend(ask(&other, 0, &text).ids.into_iter().map(Token));
            other.save_slot(0, &first).unwrap();
            let bytes = std::fs::read(&first).unwrap();
            let report = onebit::state::inspect(&mut std::io::Cursor::new(&bytes), bytes.len() as u64, None).unwrap();
            if report.sections.iter().any(|section| !section.in_order) {
                break;
            }
            assert!(text.len() < 480, "{kind:?}: the window is always in one piece");
        }
        engine.restore_slot(0, &first).unwrap();
        text.extend(prompt(5, 3));
        let found = ask(&engine, 0, &text);
        assert!(found.n_evaluated <= 7, "{found:?}");
        check_but_for_ties(&alone, &text, &found.ids, &format!("{kind:?}, {n_seq}"));
        engine.save_slot(0, &second).unwrap();
        engine.restore_slot(n_seq - 1, &second).unwrap_or_else(|error| panic!("{kind:?}, {n_seq}: {error}"));
        text.extend(found.ids.into_iter().map(Token));
        text.extend(prompt(5, 4));
        let found = ask(&engine, n_seq - 1, &text);
        assert!(found.n_evaluated <= 7, "{found:?}");
        check_but_for_ties(&alone, &text, &found.ids, &format!("{kind:?}, {n_seq}, from the second file"));
    }
}

/// A provider may write every position of the layers with a window, of which the cache here has room for the last ones only.
#[test]
fn a_file_with_more_than_the_window_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("state");
    let kind = Kind::SlidingWindow;
    for n_seq in [1, 2] {
        let engine = engine(&kind.model(), CacheType::F16, n_seq);
        let prompt = prompt(400, 1);
        prefill(&engine, kind, &prompt, &file);
        let expected = restored(&engine, &file, &prompt, N_ANSWER).unwrap();
        std::fs::write(&file, with_all_positions(&std::fs::read(&file).unwrap())).unwrap();
        assert_eq!(restored(&engine, &file, &prompt, N_ANSWER).unwrap(), expected);
    }
}

/// The file with cells in front of the window's, for the positions from 0 on; their rows are zeros, which nothing attends to.
fn with_all_positions(bytes: &[u8]) -> Vec<u8> {
    let report = onebit::state::inspect(&mut std::io::Cursor::new(bytes), bytes.len() as u64, None).unwrap();
    let window = &report.sections[1];
    let (n_cells, n_more) = (window.n_cells as usize, u32::try_from(window.pos_min).unwrap());
    assert!(n_more > 256, "more than the ring has");
    let start = usize::try_from(window.offset).unwrap();
    let mut all = bytes[..start + 4].to_vec();
    all.extend((window.n_cells + n_more).to_le_bytes());
    (0..n_more).for_each(|position| all.extend([position, 1, 0].into_iter().flat_map(u32::to_le_bytes)));
    let mut at = start + 8 + 12 * n_cells + 16;
    all.extend(&bytes[start + 8..at]);
    for block in &window.blocks {
        let row = usize::try_from(block.row.bytes).unwrap();
        all.extend(&bytes[at..at + 12]);
        all.extend(vec![0; n_more as usize * row]);
        all.extend(&bytes[at + 12..at + 12 + n_cells * row]);
        at += 12 + n_cells * row;
    }
    assert_eq!(at, bytes.len());
    all
}

/// Saving a slot waits for its answer to end, and for nothing else.
#[test]
fn a_busy_slot_is_saved_when_its_answer_ends() {
    let folder = tempfile::tempdir().unwrap();
    let (engine, file) = (engine(&Kind::Attention.model(), CacheType::F16, 2), folder.path().join("state"));
    let mut running = engine.generate(&prompt(50, 7)[..], &GenerateOptions { slot: Some(1), ..greedy(200) }).unwrap();
    assert!(matches!(running.next(), Some(Ok(Event::Prompt(_)))));
    let (sender, saved) = std::sync::mpsc::channel();
    for _ in 0..3 {
        let (engine, file, sender) = (engine.clone(), file.clone(), sender.clone());
        std::thread::spawn(move || sender.send(engine.save_slot(1, &file)));
    }
    assert_eq!(running.filter(|event| matches!(event, Ok(Event::Done(_)))).count(), 1);
    for _ in 0..3 {
        let (n_tokens, n_bytes) = saved.recv_timeout(std::time::Duration::from_secs(60)).unwrap().unwrap();
        assert!(n_tokens >= 249, "{n_tokens}");
        assert_eq!(std::fs::metadata(&file).unwrap().len(), n_bytes);
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing but the file");
}

/// The ids are this engine's answer, up to the first place where two tokens were about equally likely.
fn check_but_for_ties(engine: &Engine, prompt: &[Token], ids: &[i32], what: &str) {
    /// Logits of the tiny models vary by some 2.5. Two plain generations beside each other, without any file, move each other's
    /// by up to 0.17 (measured on the sliding-window model, which carries a difference on through 300 tokens). A sequence
    /// that another one writes into is off by whole units.
    const TIE: f32 = 0.25;
    let expected = whole(engine, prompt, u32::try_from(ids.len()).unwrap()).ids;
    let Some(at) = ids.iter().zip(&expected).position(|(found, expected)| found != expected) else {
        assert_eq!(ids.len(), expected.len(), "{what}");
        return;
    };
    let so_far: Vec<Token> = prompt.iter().copied().chain(ids[..at].iter().copied().map(Token)).collect();
    let logits = engine.logits(&so_far[..], None).unwrap();
    let gap = logits[expected[at] as usize] - logits[ids[at] as usize];
    assert!(gap <= TIE, "{what}: token {at} is {}, {} would be right by {gap}", ids[at], expected[at]);
}
