//! Who works when: cancelling, waiting, ending.

use std::time::{Duration, Instant};

use onebit::engine::{Engine, EngineConfig, EngineError, Event, FinishReason, GenerateOptions};
use onebit::llama::Token;

use crate::common::model::{self, LONG_CONTEXT};
use crate::{Outcome, endless, engine, engine_with_context, generate, visible};

/// An answer of one token that had to wait for nobody.
fn check_free(engine: &Engine) {
    let started = Instant::now();
    assert_eq!(generate(engine, "Next, please.", &visible(1)).report.n_generated, 1);
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
}

#[test]
fn a_dropped_generation_stops() {
    let engine = engine_with_context(LONG_CONTEXT);
    let mut generation = engine.generate("Without end.", &endless()).unwrap();
    assert!(generation.by_ref().take(100).all(|event| event.is_ok()));
    drop(generation);
    check_free(&engine);
    assert_eq!(
        generate(&engine, "As ever.", &visible(20)).text(),
        generate(&crate::engine(), "As ever.", &visible(20)).text()
    );
}

#[test]
fn a_dropped_prompt_stops() {
    let engine = engine_with_context(LONG_CONTEXT);
    let prompt = vec![Token(70); LONG_CONTEXT as usize - 1];
    let started = Instant::now();
    let generation = engine.generate(prompt, &endless()).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    drop(generation);
    check_free(&engine);
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
}

#[test]
fn one_that_still_waits_is_forgotten() {
    let engine = engine_with_context(LONG_CONTEXT);
    let mut running = engine.generate("I am first.", &endless()).unwrap();
    assert!(running.next().is_some());
    let waiting: Vec<_> = (0..5).map(|_| engine.generate("I wait.", &endless()).unwrap()).collect();
    let last = engine.generate("I am last.", &visible(3)).unwrap();
    drop(waiting);
    drop(running);
    assert_eq!(Outcome::read(last).unwrap().report.n_generated, 3);
}

#[test]
fn those_who_wait_are_answered_in_turn() {
    let engine = engine();
    let prompts = ["one", "two", "three", "four"];
    let expected: Vec<_> = prompts.iter().map(|prompt| generate(&engine, prompt, &visible(20)).text()).collect();
    let generations: Vec<_> = prompts.iter().map(|prompt| engine.generate(*prompt, &visible(20)).unwrap()).collect();
    // Read from the last to the first: nobody's answer depends on another's being read.
    for (generation, expected) in generations.into_iter().zip(expected).rev() {
        assert_eq!(Outcome::read(generation).unwrap().text(), expected);
    }
}

/// How many tokens of a prompt are evaluated at a time.
fn chunks(generation: onebit::engine::Generation) -> Vec<usize> {
    let mut processed = Vec::new();
    for event in generation {
        if let Event::Progress(progress) = event.unwrap() {
            assert_eq!(progress.n_prompt, 1000);
            processed.push(progress.n_processed);
        }
    }
    assert_eq!((processed[0], processed[processed.len() - 1]), (0, 1000));
    processed.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

#[test]
fn a_long_prompt_leaves_room_for_those_who_are_answered() {
    let mut config = EngineConfig::new(model::tiny_with_long_context());
    (config.n_ctx, config.n_threads, config.n_seq, config.prefill_chunk) = (Some(LONG_CONTEXT), Some(1), 3, 50);
    let engine = Engine::load(config).unwrap();
    let options = GenerateOptions { report_progress: true, ..visible(1) };
    let prompt = vec![Token(70); 1000];
    assert_eq!(chunks(engine.generate(prompt.clone(), &options).unwrap()), [999, 1], "alone");

    let mut running = engine.generate("Without end.", &endless()).unwrap();
    assert!(running.next().is_some());
    // Two prompts share the chunk in turn.
    let both = [(), ()].map(|()| engine.generate(prompt.clone(), &options).unwrap()).map(chunks);
    assert!(both.iter().flatten().all(|&n| n <= 50), "{both:?}");
    assert!(both.iter().all(|chunks| chunks.len() > 19), "{both:?}");
    assert!(running.next().is_some_and(|event| event.is_ok()));
}

#[test]
fn shutdown_ends_what_runs_and_what_waits() {
    let engine = engine_with_context(LONG_CONTEXT);
    let mut running = engine.generate("Without end.", &endless()).unwrap();
    let waiting = engine.generate("I wait.", &endless()).unwrap();
    assert!(matches!(running.next(), Some(Ok(Event::Prompt(_)))));
    let started = Instant::now();
    let clone = engine.clone();
    clone.shutdown();
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    for generation in [running, waiting] {
        let last = generation.last();
        assert!(matches!(last, Some(Err(EngineError::Stopped))), "{last:?}");
    }
    let error = crate::refused(engine.generate("Hello?", &visible(1)), "after the shutdown");
    assert!(matches!(error, EngineError::Stopped), "{error}");
    let error = engine.prefill_to_file("Hello?", "/dev/null").unwrap_err();
    assert!(matches!(error, EngineError::Stopped), "{error}");
    // A second time is no mistake, and facts about the model remain.
    engine.shutdown();
    assert_eq!(engine.info().n_vocab, 259);
}

#[test]
fn a_finished_generation_stays_finished() {
    let engine = engine();
    let mut generation = engine.generate("Three tokens.", &visible(3)).unwrap();
    let last = generation.by_ref().last();
    assert!(matches!(&last, Some(Ok(Event::Done(report))) if report.finish == FinishReason::MaxTokens), "{last:?}");
    assert!(generation.next().is_none() && generation.next().is_none());
}
