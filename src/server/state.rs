//! What all handlers share: settings, the backend once it is there, and the state of a shutdown.

use std::{
    path::PathBuf,
    pin::Pin,
    sync::{Arc, OnceLock},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use futures_core::Stream;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{activity::Activity, auth::ApiKeys, chat::ChatDefaults, cors::Origins, error::ApiError, guard::Hosts};
use crate::{
    engine::{
        ChatPrompt, ChatRequest, DecodeCounts, Engine, EngineError, Event, FimTokens, GenerateOptions, ModelInfo,
    },
    hybrid::{Counts, Hybrid},
    llama::Token,
};

/// The events of one generation; dropping it ends the generation.
pub type EventStream = Pin<Box<dyn Stream<Item = Result<Event, EngineError>> + Send>>;

/// Settings of the server, all plain data.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// The model's id in replies; `None` means the file's name without `.gguf`.
    pub alias: Option<String>,
    /// Names under which it is known besides.
    pub other_names: Vec<String>,
    /// Shown with the model.
    pub tags: Vec<String>,
    /// The names under which it may be called.
    pub hosts: Hosts,
    /// Pages of which other origins may use it.
    pub origins: Origins,
    /// Who may use it.
    pub api_keys: ApiKeys,
    /// Most bytes of a request's body.
    pub body_limit: usize,
    /// Whether `/slots` shows them: everybody with a key sees the sizes of everybody's requests.
    pub slots: bool,
    /// Where `/slots/{id}?action=save` puts its files; `None` refuses it.
    pub slot_save_path: Option<PathBuf>,
    /// Whether `/metrics` answers.
    pub metrics: bool,
    /// Whether `/` is a page for people.
    pub page: bool,
    /// What a request gets that does not say otherwise.
    pub defaults: GenerateOptions,
    /// What a chat gets that does not say otherwise.
    pub chat: ChatDefaults,
    /// `system_fingerprint` of replies; clients expect a leading `b` and llama.cpp's build number.
    pub fingerprint: String,
    /// How long running requests may go on after the signal to stop.
    pub shutdown_grace: Duration,
    /// A stream that has had nothing to say for this long sends an SSE comment.
    pub keep_alive: Duration,
    /// Requests that may wait for a slot; one more is told to come back later.
    pub max_queue: usize,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            alias: None,
            other_names: Vec::new(),
            tags: Vec::new(),
            hosts: Hosts::default(),
            origins: Origins::default(),
            api_keys: ApiKeys::default(),
            body_limit: 100 << 20,
            slots: true,
            slot_save_path: None,
            metrics: false,
            page: true,
            defaults: GenerateOptions { reuse_prefix: true, ..GenerateOptions::default() },
            chat: ChatDefaults::default(),
            fingerprint: concat!("b0-onebit-", env!("CARGO_PKG_VERSION")).to_owned(),
            shutdown_grace: Duration::from_secs(10),
            keep_alive: Duration::from_secs(10),
            max_queue: 1024,
        }
    }
}

/// Who answers: the engine alone, or a prefill provider with the engine behind it.
#[derive(Clone)]
pub enum Backend {
    /// The engine evaluates prompts itself.
    Local(Engine),
    /// Prompts come from a provider where that works; the engine does the rest.
    Hybrid(Hybrid, Engine),
    /// A script in place of a model.
    #[cfg(test)]
    Scripted(super::testing::Script),
}

impl Backend {
    /// Facts about the model.
    pub fn info(&self) -> &ModelInfo {
        match self {
            Self::Local(engine) | Self::Hybrid(_, engine) => engine.info(),
            #[cfg(test)]
            Self::Scripted(script) => script.info(),
        }
    }

    /// The engine, for what has no other way to it.
    pub fn engine(&self) -> Option<&Engine> {
        match self {
            Self::Local(engine) | Self::Hybrid(_, engine) => Some(engine),
            #[cfg(test)]
            Self::Scripted(_) => None,
        }
    }

    /// See [`Engine::tokenize`]. Takes time in proportion to the text: not for an async thread.
    pub fn tokenize(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<Token>, EngineError> {
        match self {
            Self::Local(engine) | Self::Hybrid(_, engine) => engine.tokenize(text, add_special, parse_special),
            #[cfg(test)]
            Self::Scripted(script) => script.tokenize(text),
        }
    }

    /// The token that begins a sequence.
    pub fn bos(&self) -> Option<Token> {
        match self {
            Self::Local(engine) | Self::Hybrid(_, engine) => engine.bos(),
            #[cfg(test)]
            Self::Scripted(_) => None,
        }
    }

    /// The token that ends a sequence.
    pub fn eos(&self) -> Option<Token> {
        match self {
            Self::Local(engine) | Self::Hybrid(_, engine) => engine.eos(),
            #[cfg(test)]
            Self::Scripted(_) => None,
        }
    }

    /// See [`Engine::decode_counts`].
    pub fn decode_counts(&self) -> DecodeCounts {
        match self {
            Self::Local(engine) | Self::Hybrid(_, engine) => engine.decode_counts(),
            #[cfg(test)]
            Self::Scripted(_) => DecodeCounts { n_decode: 2, n_sequences: 3 },
        }
    }

    /// What became of prompts that a provider was asked for; `None` without a provider.
    pub fn handoff_counts(&self) -> Option<Counts> {
        match self {
            Self::Hybrid(hybrid, _) => Some(hybrid.counts()),
            Self::Local(_) => None,
            #[cfg(test)]
            Self::Scripted(_) => Some(Counts { handoffs: 5, fallbacks: 6, argmax_disagreements: 7 }),
        }
    }

    /// See [`Engine::apply_template`]. Runs a Jinja program: not for an async thread.
    pub fn apply_template(&self, request: &ChatRequest) -> Result<ChatPrompt, EngineError> {
        match self {
            Self::Local(engine) | Self::Hybrid(_, engine) => engine.apply_template(request),
            #[cfg(test)]
            Self::Scripted(script) => script.apply_template(request),
        }
    }

    /// See [`Engine::template_info`].
    pub fn template_info(&self) -> &serde_json::Value {
        match self {
            Self::Local(engine) | Self::Hybrid(_, engine) => engine.template_info(),
            #[cfg(test)]
            Self::Scripted(_) => &serde_json::Value::Null,
        }
    }

    /// See [`Engine::fim_tokens`].
    pub fn fim_tokens(&self) -> Option<FimTokens> {
        match self {
            Self::Local(engine) | Self::Hybrid(_, engine) => engine.fim_tokens(),
            #[cfg(test)]
            Self::Scripted(_) => None,
        }
    }

    /// BOS, for prompts that are put together from tokens, where the model wants it.
    pub fn bos_if_wanted(&self) -> Option<Token> {
        match self {
            Self::Local(engine) | Self::Hybrid(_, engine) => engine.bos().filter(|_| engine.info().adds_bos),
            #[cfg(test)]
            Self::Scripted(_) => None,
        }
    }

    /// See [`Engine::detokenize`].
    pub fn detokenize(&self, tokens: &[Token]) -> String {
        match self {
            Self::Local(engine) | Self::Hybrid(_, engine) => engine.detokenize(tokens),
            #[cfg(test)]
            Self::Scripted(_) => tokens.iter().map(|token| char::from(u8::try_from(token.0).unwrap_or(b'?'))).collect(),
        }
    }

    /// See [`Engine::token_bytes`].
    pub fn token_bytes(&self, token: Token) -> Vec<u8> {
        match self {
            Self::Local(engine) | Self::Hybrid(_, engine) => engine.token_bytes(token),
            #[cfg(test)]
            Self::Scripted(_) => vec![u8::try_from(token.0).unwrap_or(b'?')],
        }
    }

    /// Starts `n` answers to a prompt, which come one after the other. Dropping the future, or a stream that it gives, ends
    /// it.
    pub async fn generate(
        &self,
        prompt: Vec<Token>,
        options: GenerateOptions,
        n: usize,
    ) -> Result<Vec<EventStream>, EngineError> {
        match self {
            Self::Local(engine) => {
                let engine = engine.clone();
                // A large grammar takes a while to parse. When this future is dropped meanwhile, the generations are
                // dropped with the result of the task.
                let generations = blocking(move || engine.generate_many(prompt, &options, n)).await?;
                Ok(generations.into_iter().map(|events| Box::pin(events) as EventStream).collect())
            }
            Self::Hybrid(hybrid, _) => {
                let handoffs = hybrid.generate_many(prompt, options, n).await?;
                Ok(handoffs.into_iter().map(|events| Box::pin(events) as EventStream).collect())
            }
            #[cfg(test)]
            Self::Scripted(script) => (0..n).map(|_| script.generate(prompt.clone(), options.clone())).collect(),
        }
    }
}

/// Runs `work` on a thread where it may take its time; its panics go on here.
pub(super) async fn blocking<T, E>(work: impl FnOnce() -> Result<T, E> + Send + 'static) -> Result<T, E>
where
    T: Send + 'static,
    E: From<EngineError> + Send + 'static,
{
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(EngineError::Stopped.into()),
        },
    }
}

/// The handlers' shared state; clones are handles to one state.
#[derive(Clone)]
pub struct AppState(Arc<Inner>);

struct Inner {
    config: ServerConfig,
    ready: OnceLock<Ready>,
    refuse_new: CancellationToken,
    cancel: CancellationToken,
    n_busy: watch::Sender<usize>,
    activity: Activity,
    started_at: u64,
}

struct Ready {
    backend: Backend,
    model_id: Arc<str>,
}

impl AppState {
    /// A server that has no model yet.
    pub fn new(config: ServerConfig) -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
        Self(Arc::new(Inner {
            config,
            ready: OnceLock::new(),
            refuse_new: CancellationToken::new(),
            cancel: CancellationToken::new(),
            n_busy: watch::Sender::new(0),
            activity: Activity::default(),
            started_at: since_epoch.map_or(0, |elapsed| elapsed.as_secs()),
        }))
    }

    /// Opens the routes. The first backend stays; later calls do nothing.
    pub fn set_ready(&self, backend: Backend) {
        let model_id = self.0.config.alias.clone().unwrap_or_else(|| file_stem(backend.info()));
        self.0.activity.set_slots(backend.info().n_slots as usize);
        let _ = self.0.ready.set(Ready { backend, model_id: model_id.into() });
    }

    pub(super) fn config(&self) -> &ServerConfig {
        &self.0.config
    }

    /// What is being done.
    pub(super) fn activity(&self) -> &Activity {
        &self.0.activity
    }

    /// When the server was made, in seconds since the epoch.
    pub(super) fn started_at(&self) -> u64 {
        self.0.started_at
    }

    pub(super) fn is_ready(&self) -> bool {
        self.0.ready.get().is_some()
    }

    pub(super) fn backend(&self) -> Result<&Backend, ApiError> {
        self.0.ready.get().map(|ready| &ready.backend).ok_or_else(ApiError::loading)
    }

    /// The model's id in replies.
    pub(super) fn model_id(&self) -> Result<&Arc<str>, ApiError> {
        self.0.ready.get().map(|ready| &ready.model_id).ok_or_else(ApiError::loading)
    }

    pub(super) fn refuse_new_work(&self) {
        self.0.refuse_new.cancel();
    }

    pub(super) fn is_refusing_new_work(&self) -> bool {
        self.0.refuse_new.is_cancelled()
    }

    pub(super) async fn refusing_new_work(&self) {
        self.0.refuse_new.cancelled().await;
    }

    pub(super) fn cancel_running(&self) {
        self.0.cancel.cancel();
    }

    /// Ready when running work must end.
    pub(super) async fn cancelled(&self) {
        self.0.cancel.cancelled().await;
    }

    /// Counts as running work until dropped.
    pub(super) fn busy(&self) -> Busy {
        self.0.n_busy.send_modify(|n| *n += 1);
        Busy(self.clone())
    }

    /// Waits until no work runs.
    pub(super) async fn idle(&self) {
        // The sender lives as long as `self`, so waiting cannot fail.
        let _ = self.0.n_busy.subscribe().wait_for(|n| *n == 0).await;
    }
}

/// A request that is being answered, or a stream that is being sent.
pub(super) struct Busy(AppState);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.0.n_busy.send_modify(|n| *n -= 1);
    }
}

fn file_stem(info: &ModelInfo) -> String {
    info.path.file_stem().unwrap_or(info.path.as_os_str()).to_string_lossy().into_owned()
}
