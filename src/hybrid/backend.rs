//! What a handoff needs of the engine, as a trait, so that the flow is tested without a model.

use std::path::Path;
use std::pin::Pin;

use futures_core::Stream;

use crate::engine::{Engine, EngineError, Event, GenerateOptions, Generation};
use crate::llama::Token;

/// A generation's events; dropping it stops the generation.
pub(super) type Events = Pin<Box<dyn Stream<Item = Result<Event, EngineError>> + Send>>;

/// See the functions of [`Engine`] by the same names.
pub(super) trait Backend: Send + Sync {
    /// Whether the last position can be removed from the memory; if not, a state holds all tokens but the last.
    fn can_step_back(&self) -> bool;
    /// The errors of a request that can be told without evaluating anything.
    fn check(&self, prompt: &[Token], options: &GenerateOptions) -> Result<(), EngineError>;
    /// How many tokens of a prompt's beginning need not be evaluated again.
    fn held(&self, prompt: &[Token]) -> Pin<Box<dyn Future<Output = usize> + Send>>;
    /// Whether nearly all of the prompt is on disk from before, so that a provider would spare nothing.
    fn has_stored(&self, _prompt: &[Token], _options: &GenerateOptions) -> bool {
        false
    }
    /// `n` answers.
    fn generate(&self, prompt: &[Token], options: &GenerateOptions, n: usize) -> Result<Vec<Events>, EngineError>;
    /// `n` answers. The first event is `Event::Prompt`, or the error for which the file was refused.
    fn restore_and_generate(
        &self,
        state_file: &Path,
        prompt: &[Token],
        options: &GenerateOptions,
        n: usize,
    ) -> Result<Vec<Events>, EngineError>;
}

impl Backend for Engine {
    fn can_step_back(&self) -> bool {
        self.info().can_step_back
    }

    fn check(&self, prompt: &[Token], options: &GenerateOptions) -> Result<(), EngineError> {
        Engine::check(self, prompt, options)
    }

    fn held(&self, prompt: &[Token]) -> Pin<Box<dyn Future<Output = usize> + Send>> {
        Box::pin(self.held_prefix(prompt))
    }

    fn has_stored(&self, prompt: &[Token], options: &GenerateOptions) -> bool {
        options.reuse_prefix && self.n_stored(prompt) * 10 >= prompt.len() * 9
    }

    fn generate(&self, prompt: &[Token], options: &GenerateOptions, n: usize) -> Result<Vec<Events>, EngineError> {
        self.generate_many(prompt, options, n).map(boxed)
    }

    fn restore_and_generate(
        &self,
        state_file: &Path,
        prompt: &[Token],
        options: &GenerateOptions,
        n: usize,
    ) -> Result<Vec<Events>, EngineError> {
        self.restore_and_generate_many(state_file, prompt, options, n).map(boxed)
    }
}

fn boxed(generations: Vec<Generation>) -> Vec<Events> {
    generations.into_iter().map(|events| Box::pin(events) as Events).collect()
}
