//! A prompt that begins like what a sequence still holds continues from there, on every memory kind as far as that can, and
//! the answer is that of a cold run.

mod common;

use common::kinds::{self, Answer, Kind, greedy, prompt, whole};
use onebit::engine::{CacheType, Engine, Event, GenerateOptions};
use onebit::llama::Token;

const N_PROMPT: usize = 60;
const N_ANSWER: u32 = 12;

fn warm(engine: &Engine, prompt: &[Token]) -> Answer {
    let options = GenerateOptions { reuse_prefix: true, ..greedy(N_ANSWER) };
    Answer::read(engine.generate(prompt, &options).unwrap()).unwrap()
}

fn can_step_back(kind: Kind) -> bool {
    kind.n_states(N_PROMPT) == N_PROMPT
}

#[test]
fn the_same_prompt_again() {
    for kind in Kind::ALL {
        let engine = kinds::engine(&kind.model(), CacheType::F16, 1);
        let prompt = prompt(N_PROMPT, 1);
        let cold = whole(&engine, &prompt, N_ANSWER);
        let again = warm(&engine, &prompt);
        assert_eq!(again.ids, cold.ids, "{kind:?}");
        // One token is always left, for its logits; a running state cannot go back at all.
        let expected = if can_step_back(kind) { 1 } else { N_PROMPT };
        assert_eq!(again.n_evaluated, expected, "{kind:?}");
        assert_eq!(whole(&engine, &prompt, N_ANSWER), cold, "{kind:?}: when not asked for, nothing is reused");
    }
}

#[test]
fn the_next_turn_evaluates_what_is_new() {
    const N_NEW: usize = 20;
    for kind in Kind::ALL {
        let engine = kinds::engine(&kind.model(), CacheType::F16, 1);
        let first = prompt(N_PROMPT, 1);
        let answer = warm(&engine, &first);
        let mut next = first;
        next.extend(answer.ids.iter().copied().map(Token));
        next.extend(prompt(N_NEW, 2));
        let second = warm(&engine, &next);
        // The last token of an answer is chosen and not evaluated.
        assert_eq!(second.n_evaluated, N_NEW + 1, "{kind:?}");
        assert_eq!(second.ids, whole(&engine, &next, N_ANSWER).ids, "{kind:?}");
    }
}

/// From 64 tokens on, memories that cannot step back have a checkpoint before the prompt's last token.
#[test]
fn a_prompt_is_taken_up_again_on_every_memory() {
    const N: usize = 150;
    for kind in Kind::ALL {
        let engine = kinds::engine(&kind.model(), CacheType::F16, 1);
        let first = prompt(N, 1);
        let cold = whole(&kinds::engine(&kind.model(), CacheType::F16, 1), &first, N_ANSWER);
        // Turn by turn: the same again, then another answer in the place of the one that was given.
        assert_eq!(warm(&engine, &first).n_evaluated, N, "{kind:?}");
        for _ in 0..2 {
            let again = warm(&engine, &first);
            assert_eq!((again.n_evaluated, &again.ids), (1, &cold.ids), "{kind:?}");
        }
        let mut next = first.clone();
        for (turn, n_new) in [(2, 100), (3, 30), (4, 30), (5, 30), (6, 30)] {
            next.extend(prompt(n_new, turn));
            let found = warm(&engine, &next);
            assert!([n_new, n_new + 1].contains(&found.n_evaluated), "{kind:?}, turn {turn}: {}", found.n_evaluated);
            let expected = whole(&kinds::engine(&kind.model(), CacheType::F16, 1), &next, N_ANSWER);
            assert_eq!(found.ids, expected.ids, "{kind:?}, turn {turn}");
        }
        // Back to an earlier turn, whose checkpoint is still there, and to one that has gone.
        let earlier = warm(&engine, &next[..N + 160]);
        assert!(earlier.n_evaluated <= 31, "{kind:?}: {}", earlier.n_evaluated);
        assert_eq!(warm(&engine, &first).ids, cold.ids, "{kind:?}");
        // Nothing is left of it in an erased slot.
        engine.erase_slot(0).unwrap();
        assert_eq!(warm(&engine, &first), cold, "{kind:?}");
    }
}

#[test]
fn another_beginning_is_not_reused() {
    for kind in Kind::ALL {
        let engine = kinds::engine(&kind.model(), CacheType::F16, 1);
        warm(&engine, &prompt(N_PROMPT, 1));
        let other = prompt(N_PROMPT, 2);
        let answer = warm(&engine, &other);
        assert_eq!(answer.n_evaluated, N_PROMPT, "{kind:?}");
        assert_eq!(answer.ids, whole(&engine, &other, N_ANSWER).ids, "{kind:?}");
    }
}

/// A state file holds the window of its last position. It lies beyond the place that a short prompt ends at: what is there
/// must not be used for that.
#[test]
fn a_window_that_has_moved_on_is_evaluated_anew() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("state");
    for kind in [Kind::SlidingWindow, Kind::HybridWindow] {
        let engine = kinds::engine(&kind.model(), CacheType::F16, 1);
        let long = prompt(400, 1);
        engine.prefill_to_file(&long[..kind.n_states(long.len())], &file).unwrap();
        kinds::restored(&engine, &file, &long, 1).unwrap();
        let short = &long[..100];
        let answer = warm(&engine, short);
        assert_eq!(answer.n_evaluated, short.len(), "{kind:?}");
        assert_eq!(answer.ids, whole(&engine, short, N_ANSWER).ids, "{kind:?}");
    }
}

/// What another program computed serves the request that it came with. A prompt that is evaluated here is evaluated from its
/// first token.
#[test]
fn what_a_provider_computed_is_not_reused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("state");
    for kind in Kind::ALL {
        let engine = kinds::engine(&kind.model(), CacheType::F16, 1);
        let mut prompt = prompt(N_PROMPT, 1);
        engine.prefill_to_file(&prompt[..kind.n_states(prompt.len())], &file).unwrap();
        let answer = kinds::restored(&engine, &file, &prompt, N_ANSWER).unwrap();
        prompt.extend(answer.ids.iter().copied().map(Token));
        prompt.extend(kinds::prompt(5, 2));
        assert_eq!(warm(&engine, &prompt).n_evaluated, prompt.len(), "{kind:?}");
        // What was evaluated here serves again.
        assert!(prompt.len() > 64);
        assert_eq!(warm(&engine, &prompt).n_evaluated, 1, "{kind:?}");
    }
}

#[test]
fn several_answers_share_their_prompt() {
    for kind in Kind::ALL {
        let engine = kinds::engine(&kind.model(), CacheType::F16, 1);
        let prompt = prompt(N_PROMPT, 1);
        let cold = whole(&engine, &prompt, N_ANSWER);
        let answers = engine.generate_many(&prompt[..], &greedy(N_ANSWER), 3).unwrap();
        let answers: Vec<Answer> = answers.into_iter().map(|events| Answer::read(events).unwrap()).collect();
        assert!(answers.iter().all(|answer| answer.ids == cold.ids), "{kind:?}: greedy answers are all the same");
        let n_evaluated: Vec<usize> = answers.iter().map(|answer| answer.n_evaluated).collect();
        let again = if can_step_back(kind) { 1 } else { N_PROMPT };
        assert_eq!(n_evaluated, [N_PROMPT, again, again], "{kind:?}");
    }
}

/// Of several answers those that nobody waits for are left out, and the others come.
#[test]
fn an_answer_that_is_dropped_is_left_out() {
    let engine = kinds::engine(&Kind::Attention.model(), CacheType::F16, 1);
    let prompt = prompt(N_PROMPT, 1);
    let cold = whole(&engine, &prompt, N_ANSWER);
    // The first is dropped between batches or amidst one, which is aborted then.
    for n_read in 1..60 {
        let mut answers = engine.generate_many(&prompt[..], &greedy(100), 3).unwrap();
        let last = answers.pop().unwrap();
        let mut first = answers.remove(0);
        assert!(matches!(first.next(), Some(Ok(Event::Prompt(_)))));
        first.by_ref().take(n_read).for_each(drop);
        drop((first, answers));
        assert_eq!(Answer::read(last).unwrap().ids[..N_ANSWER as usize], cold.ids);
    }
}

/// Seeds of several answers are counted up, so they differ, and each can be had again alone.
#[test]
fn several_answers_have_seeds_of_their_own() {
    let engine = kinds::engine(&Kind::Attention.model(), CacheType::F16, 1);
    let prompt = prompt(N_PROMPT, 1);
    let mut options = greedy(N_ANSWER);
    (options.sampling.temperature, options.sampling.seed) = (5.0, Some(11));
    let ids = |options: &GenerateOptions, n| -> Vec<Vec<i32>> {
        let answers = engine.generate_many(&prompt[..], options, n).unwrap();
        answers.into_iter().map(|events| Answer::read(events).unwrap().ids).collect()
    };
    let both = ids(&options, 2);
    assert_ne!(both[0], both[1]);
    options.sampling.seed = Some(12);
    assert_eq!(ids(&options, 1)[0], both[1]);
}
