//! The library's front door on a real, tiny model: what [`onebit::engine::Engine`] promises.

mod handles;
mod restore;
mod sampling;
mod work;

#[path = "../common/mod.rs"]
mod common;

use onebit::engine::{
    Engine, EngineConfig, EngineError, Event, GenerateOptions, Piece, PromptReport, Report, Sampling,
};
use onebit::llama::Token;

use common::model;

/// The tiny model with `n_ctx` tokens of context, on one thread: the tests run side by side.
fn engine_with_context(n_ctx: u32) -> Engine {
    let path = if n_ctx > 2048 { model::tiny_with_long_context() } else { model::tiny() };
    Engine::load(EngineConfig { n_ctx: Some(n_ctx), n_threads: Some(1), ..EngineConfig::new(path) }).unwrap()
}

fn engine() -> Engine {
    engine_with_context(2048)
}

/// Greedy, visible text of exactly `n` tokens.
fn visible(n: u32) -> GenerateOptions {
    let sampling = Sampling { logit_bias: only_visible(), ..Sampling::greedy() };
    GenerateOptions { sampling, ignore_eos: true, ..GenerateOptions::greedy(n) }
}

/// Goes on to the end of the context.
fn endless() -> GenerateOptions {
    GenerateOptions { max_tokens: None, ..visible(0) }
}

fn only_visible() -> Vec<(Token, f32)> {
    model::invisible_tokens().map(|token| (token, f32::NEG_INFINITY)).collect()
}

/// A generation that went well.
#[derive(Debug)]
struct Outcome {
    prompt: PromptReport,
    pieces: Vec<Piece>,
    report: Report,
}

impl Outcome {
    /// Reads a generation to its end, and checks that its events come in the order that is promised.
    fn read(events: impl Iterator<Item = Result<Event, EngineError>>) -> Result<Self, EngineError> {
        let mut events: Vec<Event> = events.collect::<Result<_, _>>()?;
        let Some(Event::Done(report)) = events.pop() else { panic!("`Done` is not last") };
        let mut events = events.into_iter();
        let Some(Event::Prompt(prompt)) = events.next() else { panic!("`Prompt` is not first") };
        let pieces = events.map(|event| match event {
            Event::Piece(piece) => piece,
            other => panic!("{other:?} among the pieces"),
        });
        let pieces = pieces.collect();
        assert_eq!(report.prompt, prompt);
        Ok(Self { prompt, pieces, report })
    }

    fn text(&self) -> String {
        self.pieces.iter().map(|piece| &*piece.text).collect()
    }

    fn tokens(&self) -> Vec<Token> {
        self.pieces.iter().flat_map(|piece| piece.tokens.clone()).collect()
    }
}

/// Generates to the end.
fn generate(engine: &Engine, prompt: &str, options: &GenerateOptions) -> Outcome {
    Outcome::read(engine.generate(prompt, options).unwrap()).unwrap()
}

/// The error of a request that is refused at once.
fn refused(result: Result<onebit::engine::Generation, EngineError>, what: &str) -> EngineError {
    result.err().unwrap_or_else(|| panic!("not refused: {what}"))
}
