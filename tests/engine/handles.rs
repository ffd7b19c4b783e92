//! Handles go anywhere, and outlive each other.

use futures_util::{Stream, StreamExt};
use onebit::engine::{Engine, EngineError, Event, Generation};

use crate::{Outcome, engine, generate, visible};

const fn is_a_handle<T: Clone + Send + Sync + 'static>() {}
const fn is_both<T: Stream<Item = Result<Event, EngineError>> + Iterator<Item = Result<Event, EngineError>>>() {}
const fn can_be_moved<T: Send + Unpin + 'static>() {}

const _: () = is_a_handle::<Engine>();
const _: () = is_both::<Generation>();
const _: () = can_be_moved::<Generation>();

const PROMPT: &str = "Anywhere, anyhow.";

/// The text, read as a stream.
async fn streamed(engine: Engine) -> String {
    let events: Vec<_> = StreamExt::collect(engine.generate(PROMPT, &visible(20)).unwrap()).await;
    Outcome::read(events.into_iter()).unwrap().text()
}

#[test]
fn the_last_handle_counts_not_the_first() {
    let first = engine();
    let expected = generate(&first, PROMPT, &visible(20)).text();
    let second = first.clone();
    let third = second.clone();
    drop((first, second));
    assert_eq!(generate(&third, PROMPT, &visible(20)).text(), expected);
    // A generation is a handle too.
    let generation = third.generate(PROMPT, &visible(20)).unwrap();
    drop(third);
    assert_eq!(Outcome::read(generation).unwrap().text(), expected);
}

#[test]
fn threads_and_tasks() {
    let engine = engine();
    let expected = generate(&engine, PROMPT, &visible(20)).text();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let tasks: Vec<_> = (0..3).map(|_| runtime.spawn(streamed(engine.clone()))).collect();
    let threads: Vec<_> = (0..3)
        .map(|_| {
            let engine = engine.clone();
            std::thread::spawn(move || generate(&engine, PROMPT, &visible(20)).text())
        })
        .collect();
    drop(engine);
    for task in tasks {
        assert_eq!(runtime.block_on(task).unwrap(), expected);
    }
    for thread in threads {
        assert_eq!(thread.join().unwrap(), expected);
    }
}

#[test]
fn an_iterator_works_on_a_runtimes_thread() {
    let engine = engine();
    let expected = generate(&engine, PROMPT, &visible(20)).text();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let text = runtime.block_on(async { generate(&engine, PROMPT, &visible(20)).text() });
    assert_eq!(text, expected);
}

#[test]
fn a_generation_begun_by_one_is_finished_by_another() {
    let engine = engine();
    let expected = generate(&engine, PROMPT, &visible(20));
    let mut generation = engine.generate(PROMPT, &visible(20)).unwrap();
    let mut events: Vec<_> = (0..5).filter_map(|_| Iterator::next(&mut generation)).collect();
    let rest = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(StreamExt::collect::<Vec<_>>(generation))
    });
    events.extend(rest.join().unwrap());
    assert_eq!(Outcome::read(events.into_iter()).unwrap().tokens(), expected.tokens());
}

#[test]
fn two_engines_in_one_process() {
    let (one, other) = (engine(), engine());
    let text = generate(&one, PROMPT, &visible(20)).text();
    drop(one);
    assert_eq!(generate(&other, PROMPT, &visible(20)).text(), text);
}
