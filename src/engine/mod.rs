//! The engine: a model, a context, and the one thread that decodes.
//!
//! [`Engine`] is a cheap handle (`Clone + Send + Sync`): it sends jobs to the decode thread and gets events back. Reading
//! order: [`types`](Event) (what goes in and out), `generation` (how events reach the caller), `thread` (the loop), `slot`
//! (one sequence), `text` (bytes to pieces), `load`, `device`, `template`.

mod config;
mod device;
mod embed;
mod error;
mod generation;
mod image;
mod load;
mod logprob;
mod probe;
mod restore;
mod rows;
mod save;
mod slot;
mod slot_files;
mod template;
mod text;
mod thread;
mod types;

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;

use parking_lot::Mutex;

use crate::llama::{ChatTemplates, Model, Sampler, SamplerSpec, Token};
use crate::state::Layout;
use crate::store::Store;

pub use config::{
    CacheType, DEFAULT_N_CTX, DEFAULT_PREFILL_CHUNK, DEFAULT_STATE_PROBE, Device, EngineConfig, FlashAttention,
};
pub use device::{DeviceSummary, list_devices, resolve_device};
pub use embed::{Embedding, Pooling};
pub use error::{EngineError, LoadError};
pub use generation::Generation;
pub use template::{ChatPrompt, ChatRequest};
pub use types::*;

use slot::{Job, Output};
use thread::{Command, Counts};

/// A handle on a loaded model. Clones share the model and its decode thread, which ends when the last handle and the last
/// [`Generation`] are gone.
///
/// # Example
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let model = folder.path().join("tiny.gguf");
/// # onebit::testing::TinyModel::llama().write(&model)?;
/// use onebit::engine::{Engine, EngineConfig, Event, GenerateOptions};
///
/// let engine = Engine::load(EngineConfig::new(model))?;
/// for event in engine.generate("Once upon a time", &GenerateOptions::greedy(16))? {
///     match event? {
///         Event::Progress(progress) => eprintln!("{} of {}", progress.n_processed, progress.n_prompt),
///         Event::Prompt(prompt) => eprintln!("{} prompt tokens in {:?}", prompt.n_prompt, prompt.evaluate),
///         Event::Piece(piece) => print!("{}", piece.text),
///         Event::Done(report) => eprintln!("{} tokens, ended by {:?}", report.n_generated, report.finish),
///     }
/// }
/// # Ok(())
/// # }
/// ```
///
/// A prompt whose KV cache another program computed (design: docs/hybrid.md) goes in through
/// [`restore_and_generate`](Self::restore_and_generate).
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
}

/// What all handles have in common. Dropping it ends the thread.
struct Shared {
    model: Arc<Model>,
    templates: Option<ChatTemplates>,
    counts: Arc<Counts>,
    template_info: serde_json::Value,
    info: ModelInfo,
    end_tokens: Vec<Token>,
    /// The shape of this model's state files; the reason when there is none.
    layout: Result<Layout, String>,
    store: Option<Arc<Store>>,
    commands: Mutex<Option<Sender<Command>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    /// Ends the decode thread and waits for it, so that the context is gone before the model, and for states that are being
    /// written.
    fn stop(&self) {
        if let Some(commands) = self.commands.lock().take() {
            // A thread that is gone already needs no word.
            let _ = commands.send(Command::Shutdown);
        }
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
        if let Some(store) = &self.store {
            store.close();
        }
    }

    fn send(&self, command: Command) -> Result<(), EngineError> {
        let commands = self.commands.lock();
        let sender = commands.as_ref().ok_or(EngineError::Stopped)?;
        sender.send(command).map_err(|_| EngineError::Stopped)
    }
}

impl Engine {
    /// Loads a model and starts its decode thread. Blocks until the model can be used.
    ///
    /// # Errors
    ///
    /// [`LoadError`], with llama.cpp's own message where it has one.
    pub fn load(config: EngineConfig) -> Result<Self, LoadError> {
        Self::load_with_progress(config, |_| true)
    }

    /// As [`load`](Self::load); `progress` gets 0.0 to 1.0 while the weights are read, and stops the load by returning
    /// false.
    pub fn load_with_progress(config: EngineConfig, progress: impl FnMut(f32) -> bool) -> Result<Self, LoadError> {
        load::load(&config, progress).map(|shared| Self { shared: Arc::new(shared) })
    }

    /// Facts about the model and its context.
    pub fn info(&self) -> &ModelInfo {
        &self.shared.info
    }

    /// What every state file of this model looks like, as [`state`](crate::state) wants to know it. Learnt in the warm-up.
    ///
    /// # Errors
    ///
    /// Why handoff is not possible with this model, or that the engine was loaded without a warm-up.
    pub fn state_layout(&self) -> Result<&Layout, &str> {
        self.shared.layout.as_ref().map_err(String::as_str)
    }

    /// The vocabulary's beginning-of-sequence token.
    pub fn bos(&self) -> Option<Token> {
        self.shared.model.vocab().bos()
    }

    /// The vocabulary's end-of-sequence token.
    pub fn eos(&self) -> Option<Token> {
        self.shared.model.vocab().eos()
    }

    /// The tokens for filling in the middle, when the vocabulary has them.
    pub fn fim_tokens(&self) -> Option<FimTokens> {
        let [prefix, suffix, middle, separator, repository] = self.shared.model.vocab().fim();
        Some(FimTokens { prefix: prefix?, suffix: suffix?, middle: middle?, separator, repository })
    }

    /// The tokens with which the model ends its turn.
    pub fn end_tokens(&self) -> &[Token] {
        &self.shared.end_tokens
    }

    /// Splits text into tokens. `add_special` puts BOS (and EOS) where the model wants them, `parse_special` turns the
    /// spelling of a special token into that token.
    pub fn tokenize(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<Token>, EngineError> {
        let tokens = self.shared.model.vocab().tokenize(text, add_special, parse_special);
        tokens.map_err(|err| EngineError::Tokenize(err.to_string()))
    }

    /// The text of tokens, special ones shown. Invalid UTF-8 is replaced.
    pub fn detokenize(&self, tokens: &[Token]) -> String {
        self.shared.model.vocab().detokenize(tokens)
    }

    /// The bytes of one token, special ones spelt out; may end inside a UTF-8 character.
    pub fn token_bytes(&self, token: Token) -> Vec<u8> {
        let mut bytes = Vec::new();
        let vocab = self.shared.model.vocab();
        if vocab.contains(token) {
            vocab.append_bytes(token, true, &mut bytes);
        }
        bytes
    }

    /// How many tokens of a prompt's beginning a slot holds, or will when its job ends, so that
    /// [`reuse_prefix`](GenerateOptions::reuse_prefix) with [`reuse_restored`](GenerateOptions::reuse_restored) spares them.
    pub fn held_prefix(&self, prompt: &[Token]) -> impl Future<Output = usize> + Send + use<> {
        let (reply, answer) = futures_channel::oneshot::channel();
        let sent = self.shared.send(Command::Held { prompt: prompt.to_vec(), reply });
        async move {
            match sent {
                Ok(()) => answer.await.unwrap_or(0),
                Err(_) => 0,
            }
        }
    }

    /// What the decode thread has done so far.
    pub fn decode_counts(&self) -> DecodeCounts {
        self.shared.counts.read()
    }

    /// Renders chat messages with the model's template. The prompt has no BOS: tokenize it with `add_special`.
    pub fn apply_template(&self, request: &ChatRequest) -> Result<ChatPrompt, EngineError> {
        let templates = self.shared.templates.as_ref().ok_or(EngineError::NoTemplate)?;
        template::apply(templates, self.shared.model.vocab(), request)
    }

    /// About the chat template: `source`, `tool_use_source`, `supports_thinking`, `caps`, as llama.cpp's `common` tells it; null
    /// without one.
    pub fn template_info(&self) -> &serde_json::Value {
        &self.shared.template_info
    }

    /// Evaluates a prompt and generates. What can be known to be wrong is told here; the rest arrives as events.
    pub fn generate(&self, prompt: impl Into<Prompt>, options: &GenerateOptions) -> Result<Generation, EngineError> {
        let tokens = self.prompt_tokens(prompt.into())?;
        self.start(tokens, None, options)
    }

    /// `n` answers to one prompt, which is evaluated once where the memory can step back. They come one after the other;
    /// each has its own seed, counted up from the first.
    pub fn generate_many(
        &self,
        prompt: impl Into<Prompt>,
        options: &GenerateOptions,
        n: usize,
    ) -> Result<Vec<Generation>, EngineError> {
        let tokens = self.prompt_tokens(prompt.into())?;
        self.start_many(tokens, None, options, n)
    }

    /// As [`restore_and_generate`](Self::restore_and_generate), with `n` answers as
    /// [`generate_many`](Self::generate_many) gives them.
    pub fn restore_and_generate_many(
        &self,
        state_file: impl AsRef<Path>,
        prompt: impl Into<Prompt>,
        options: &GenerateOptions,
        n: usize,
    ) -> Result<Vec<Generation>, EngineError> {
        let tokens = self.prompt_tokens(prompt.into())?;
        self.start_many(tokens, Some(state_file.as_ref().to_owned()), options, n)
    }

    /// As [`generate`](Self::generate), with the prompt's KV cache taken from a sequence-state file that another program
    /// wrote: all N tokens of the prompt, or the first N-1 (which is what models that cannot step back need, see
    /// [`ModelInfo::can_step_back`]). The last token is evaluated here.
    ///
    /// A refused file is the first event, [`EngineError::Restore`] with the reason; the sequence is empty again then, and
    /// [`generate`](Self::generate) with the same prompt does the whole work here.
    pub fn restore_and_generate(
        &self,
        state_file: impl AsRef<Path>,
        prompt: impl Into<Prompt>,
        options: &GenerateOptions,
    ) -> Result<Generation, EngineError> {
        let tokens = self.prompt_tokens(prompt.into())?;
        self.start(tokens, Some(state_file.as_ref().to_owned()), options)
    }

    /// Evaluates a prompt and writes its sequence state (`llama_state_seq_save_file`): what a prefill provider does.
    /// Blocks.
    pub fn prefill_to_file(
        &self,
        prompt: impl Into<Prompt>,
        path: impl AsRef<Path>,
    ) -> Result<PrefillReport, EngineError> {
        self.prefill(prompt.into(), path.as_ref(), false)
    }

    /// As [`prefill_to_file`](Self::prefill_to_file), going on from what a sequence still holds of the prompt
    /// ([`GenerateOptions::reuse_prefix`]) in whole passes ([`ModelInfo::n_ubatch`] tokens). On an engine that does nothing else,
    /// the file is bit for bit that of a cold run; where the memory cannot step back, only a prompt that goes on from the
    /// end of the last one is a gain, and its values may be rounded otherwise.
    pub fn prefill_more_to_file(
        &self,
        prompt: impl Into<Prompt>,
        path: impl AsRef<Path>,
    ) -> Result<PrefillReport, EngineError> {
        self.prefill(prompt.into(), path.as_ref(), true)
    }

    fn prefill(&self, prompt: Prompt, path: &Path, reuse_prefix: bool) -> Result<PrefillReport, EngineError> {
        let tokens = self.prompt_tokens(prompt)?;
        self.check_prompt(&tokens)?;
        let options = GenerateOptions { reuse_prefix, ..GenerateOptions::greedy(0) };
        let sampler = self.sampler(&options, 0)?;
        let (reply, answer) = std::sync::mpsc::channel();
        let output = Output::File { path: path.to_owned(), reply };
        self.shared.send(Command::Job(Box::new(Job::new(tokens, None, options, sampler, 0, output))))?;
        answer.recv().unwrap_or(Err(EngineError::Stopped))
    }

    /// The logits after the prompt, one for each token of the vocabulary. With a state file the prompt is restored from
    /// it, as by [`restore_and_generate`](Self::restore_and_generate), and its last token evaluated here. Blocks.
    pub fn logits(&self, prompt: impl Into<Prompt>, state_file: Option<&Path>) -> Result<Vec<f32>, EngineError> {
        let tokens = self.prompt_tokens(prompt.into())?;
        self.check_prompt(&tokens)?;
        let options = GenerateOptions::greedy(0);
        let sampler = self.sampler(&options, 0)?;
        let (reply, answer) = std::sync::mpsc::channel();
        let restore = state_file.map(Path::to_owned);
        let job = Job::new(tokens, restore, options, sampler, 0, Output::Logits(reply));
        self.shared.send(Command::Job(Box::new(job)))?;
        answer.recv().unwrap_or(Err(EngineError::Stopped))
    }

    /// The embedding of a text, as the model's pooling makes it. The engine must have been loaded for it
    /// ([`EngineConfig::embeddings`]), and the text has to fit one pass ([`ModelInfo::n_ubatch`] tokens). Blocks.
    pub fn embed(&self, prompt: impl Into<Prompt>) -> Result<Embedding, EngineError> {
        let tokens = self.prompt_tokens(prompt.into())?;
        let info = &self.shared.info;
        if info.embeddings.is_none() {
            let reason = "are off: the engine was not loaded for them".to_owned();
            return Err(EngineError::InvalidOption { option: "embeddings", reason });
        }
        let limit = info.n_ubatch.min(info.n_ctx) as usize;
        if tokens.len() > limit {
            let reason = format!("is too large: {} tokens, and one pass takes {limit} (--ubatch-size)", tokens.len());
            return Err(EngineError::InvalidOption { option: "input", reason });
        }
        self.check_tokens(&tokens)?;
        let options = GenerateOptions::greedy(0);
        let sampler = self.sampler(&options, 0)?;
        let (reply, answer) = std::sync::mpsc::channel();
        let job = Job::new(tokens, None, options, sampler, 0, Output::Embedding(reply));
        self.shared.send(Command::Job(Box::new(job)))?;
        answer.recv().unwrap_or(Err(EngineError::Stopped))
    }

    /// How many of a prompt's first tokens could be taken from the prefix store; 0 when that is not worth it, or there is none.
    pub fn n_stored(&self, prompt: &[Token]) -> usize {
        let ids: Vec<i32> = prompt.iter().map(|token| token.0).collect();
        let found = self.shared.store.as_ref().and_then(|store| store.find(&ids, 0));
        found.map_or(0, |found| found.n_tokens)
    }

    /// Tells what [`generate`](Self::generate) would refuse at once, without starting anything.
    pub fn check(&self, prompt: &[Token], options: &GenerateOptions) -> Result<(), EngineError> {
        self.check_prompt(prompt)?;
        // Building the sampler is the check of the grammar.
        self.sampler(options, 0).map(drop)
    }

    /// Ends running generations with [`EngineError::Stopped`] and the decode thread with them. Blocks until it is gone.
    pub fn shutdown(&self) {
        self.shared.stop();
    }

    fn start(
        &self,
        tokens: Vec<Token>,
        restore: Option<std::path::PathBuf>,
        options: &GenerateOptions,
    ) -> Result<Generation, EngineError> {
        let mut generations = self.start_many(tokens, restore, options, 1)?;
        generations.pop().ok_or(EngineError::Stopped)
    }

    fn start_many(
        &self,
        tokens: Vec<Token>,
        restore: Option<std::path::PathBuf>,
        options: &GenerateOptions,
        n: usize,
    ) -> Result<Vec<Generation>, EngineError> {
        self.check_prompt(&tokens)?;
        let first_seed = options.sampling.seed.unwrap_or_else(random_seed);
        let mut generations = Vec::new();
        let mut chain: Option<Box<Job>> = None;
        // From the last to the first, since each job holds those behind it.
        for index in (0..n).rev() {
            let seed = first_seed.wrapping_add(u32::try_from(index).unwrap_or(0));
            let sampler = self.sampler(options, seed)?;
            let (events, generation) = generation::channel(self.shared.clone());
            let restore = restore.clone().filter(|_| index == 0);
            // What the first job has evaluated is still there for the others.
            let (reuse_prefix, uses_store) = (options.reuse_prefix || index > 0, options.reuse_prefix);
            let options = GenerateOptions { reuse_prefix, ..options.clone() };
            let mut job = Job::new(tokens.clone(), restore, options, sampler, seed, Output::Events(events));
            job.cancel = generation.cancel_flag();
            job.uses_store = uses_store;
            job.then = chain.take();
            chain = Some(Box::new(job));
            generations.push(generation);
        }
        if let Some(job) = chain {
            self.shared.send(Command::Job(job))?;
        }
        generations.reverse();
        Ok(generations)
    }

    fn prompt_tokens(&self, prompt: Prompt) -> Result<Vec<Token>, EngineError> {
        match prompt {
            Prompt::Text(text) => self.tokenize(&text, true, true),
            Prompt::Tokens(tokens) => Ok(tokens),
        }
    }

    fn check_prompt(&self, tokens: &[Token]) -> Result<(), EngineError> {
        let info = &self.shared.info;
        if !info.generates {
            return Err(EngineError::NoDecoder);
        }
        if tokens.len() >= info.n_ctx as usize {
            return Err(EngineError::PromptTooLong { n_prompt: tokens.len(), n_ctx: info.n_ctx as usize });
        }
        self.check_tokens(tokens)
    }

    fn check_tokens(&self, tokens: &[Token]) -> Result<(), EngineError> {
        if tokens.is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        let info = &self.shared.info;
        let vocab = self.shared.model.vocab();
        match tokens.iter().find(|token| !vocab.contains(**token)) {
            Some(&token) => Err(EngineError::InvalidToken { token, n_vocab: info.n_vocab }),
            None => Ok(()),
        }
    }

    fn sampler(&self, options: &GenerateOptions, seed: u32) -> Result<Sampler, EngineError> {
        let spec = self.sampler_spec(options, seed)?;
        Sampler::new(&self.shared.model, &spec)
            .map_err(|err| EngineError::InvalidOption { option: "grammar", reason: format!("is refused: {err}") })
    }

    fn sampler_spec(&self, options: &GenerateOptions, seed: u32) -> Result<SamplerSpec, EngineError> {
        let sampling = &options.sampling;
        let mut logit_bias = sampling.logit_bias.clone();
        if options.ignore_eos {
            logit_bias.extend(self.shared.end_tokens.iter().map(|&token| (token, f32::NEG_INFINITY)));
        }
        Ok(SamplerSpec {
            temperature: number("temperature", sampling.temperature, |value| value >= 0.0)?,
            top_k: sampling.top_k,
            top_p: number("top_p", sampling.top_p, |value| (0.0..=1.0).contains(&value))?,
            min_p: number("min_p", sampling.min_p, |value| (0.0..=1.0).contains(&value))?,
            typical_p: number("typical_p", sampling.typical_p, |value| (0.0..=1.0).contains(&value))?,
            repeat_penalty: number("repeat_penalty", sampling.repeat_penalty, |value| value > 0.0)?,
            repeat_last_n: sampling.repeat_last_n,
            presence_penalty: number("presence_penalty", sampling.presence_penalty, |_| true)?,
            frequency_penalty: number("frequency_penalty", sampling.frequency_penalty, |_| true)?,
            seed,
            logit_bias,
            grammar: sampling.grammar.as_ref().map(|grammar| template::grammar_spec(self, grammar)).transpose()?,
        })
    }
}

fn number(option: &'static str, value: f32, fits: impl Fn(f32) -> bool) -> Result<f32, EngineError> {
    if value.is_finite() && fits(value) {
        return Ok(value);
    }
    Err(EngineError::InvalidOption { option, reason: format!("cannot be {value}") })
}

fn random_seed() -> u32 {
    // Without the system's randomness a fixed seed still gives a right answer, only not a fresh one.
    getrandom::u32().unwrap_or(0x1b17)
}
