//! External prefill: another program computes the prompt's KV cache, the engine restores it and decodes.
//!
//! [`Hybrid::generate`] does what [`Engine::generate`] does, and asks the *prefill provider* first. Whatever goes wrong
//! there costs one line on stderr, and the engine evaluates the prompt itself. The provider's contract is in
//! `docs/hybrid.md`.
//!
//! The files in the order to read them: this one; `runner` (command line, deadline) over `process` and `output` (the
//! process and its pipes); `resident` (a provider that stays), `mode` (either of the two); [`supervisor`]; `slot_dir` (where
//! the files pass); `report` (the provider's answer and our lines); `policy` (whether to hand over at all); `turns` (who may do
//! what when); `handoff` (the stream); `error`; `backend` (the engine as a trait). [`conformance`] stands beside all this:
//! it runs a provider to find out what is wrong with it.

#![forbid(unsafe_code)]

mod backend;
pub mod conformance;
mod error;
mod handoff;
mod mode;
mod output;
mod policy;
mod process;
mod report;
mod resident;
mod runner;
mod slot_dir;
pub mod supervisor;
mod turns;

use std::future::poll_fn;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub use error::HybridError;
pub use handoff::Handoff;
pub use mode::PrefillMode;
pub use policy::HandoffMode;
pub use report::LineSink;
pub use runner::BACKEND_URL_VARIABLE;

use crate::engine::{Engine, EngineError, Event, GenerateOptions};
use crate::llama::Token;
use backend::{Backend, Events};
use error::os_reason;
use handoff::Restored;
use mode::AnyRunner;
use policy::{Choice, Policy};
use report::{Reply, choice_line, fallback_line};
use runner::Finished;
use slot_dir::{RunDir, SlotDir};
use turns::{Place, ProviderTurn, Turn, Turns};

/// How long [`Hybrid::close`] waits for a provider to be gone; longer than killing one may take.
const CLOSE_LIMIT: Duration = Duration::from_secs(7);

/// How to hand prompts over.
#[derive(Clone, Debug)]
pub struct HybridConfig {
    /// The provider's program: a path, or a bare name to be found in `PATH`. `None` falls back for every request.
    pub provider: Option<PathBuf>,
    /// Whether it is started for each prompt, or once.
    pub mode: PrefillMode,
    /// Passed on as `--elfs`.
    pub elfs: Option<PathBuf>,
    /// Passed on as `--model`.
    pub model: PathBuf,
    /// How long the provider may take for one prompt.
    pub timeout: Duration,
    /// Where the slot directory is made; `None` chooses `/dev/shm` when two full states fit there, else the temporary
    /// directory.
    pub slot_dir: Option<PathBuf>,
    /// A binary whose `main` calls [`supervisor::run_if_asked`] first (`/proc/self/exe` names the running one, even after
    /// it was replaced on disk). With `None` the provider is our own child, and weaker bound: it outlives a server that
    /// gets SIGKILL, and its children can escape from its process group.
    pub supervisor: Option<PathBuf>,
    /// Where the lines for the operator go, the provider's stderr among them.
    pub report: LineSink,
    /// When prompts are handed over.
    pub handoff: HandoffMode,
    /// Prompts of fewer tokens are evaluated here.
    pub min_tokens: usize,
    /// How many requests that wait for the slot may have their prompts evaluated already, one after the other.
    pub prefill_ahead: usize,
}

/// Hands prompts over to a prefill provider. A cheap handle; clones share the one slot, and run one provider at a time.
#[derive(Clone)]
pub struct Hybrid(Arc<Inner>);

struct Inner {
    backend: Box<dyn Backend>,
    /// `None` without a provider.
    provider: Option<(AnyRunner, SlotDir)>,
    sink: LineSink,
    backend_url: RwLock<Option<String>>,
    turns: Turns,
    policy: Arc<Mutex<Policy>>,
    stop: CancellationToken,
    counts: Counters,
    /// Held while a provider runs. A run belongs to a request whose turn it is, so nobody but `close` ever waits.
    running: tokio::sync::Mutex<()>,
}

/// What became of the prompts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Prompts that were restored from the provider's file.
    pub handoffs: u64,
    /// Prompts that the engine had to evaluate itself.
    pub fallbacks: u64,
    /// Handoffs in which the provider's `argmax` was not the token that the engine's own logits rank first.
    pub argmax_disagreements: u64,
}

#[derive(Default)]
struct Counters {
    handoffs: AtomicU64,
    fallbacks: AtomicU64,
    argmax_disagreements: AtomicU64,
}

/// A run that kept the contract, and its files.
struct Prefilled {
    run_dir: RunDir,
    finished: Finished,
}

impl Hybrid {
    /// Makes the slot directory, and removes those that dead processes left beside it. The provider itself is first
    /// looked at when a request needs it, so one that is installed later is found.
    ///
    /// Errors: `SlotDir`.
    pub fn new(engine: Engine, config: HybridConfig) -> Result<Hybrid, HybridError> {
        let n_files = u64::try_from(config.prefill_ahead.saturating_add(1).max(2)).unwrap_or(u64::MAX);
        let n_bytes = engine.info().state_bytes_full.saturating_mul(n_files);
        Self::with_backend(Box::new(engine), config, n_bytes)
    }

    fn with_backend(backend: Box<dyn Backend>, config: HybridConfig, n_bytes: u64) -> Result<Hybrid, HybridError> {
        let runner = AnyRunner::new(&config)
            .map_err(|error| HybridError::SlotDir { path: PathBuf::from("."), reason: os_reason(&error) })?;
        let provider = match runner {
            Some(runner) => Some((runner, SlotDir::new(config.slot_dir.as_deref(), n_bytes)?)),
            None => None,
        };
        Ok(Hybrid(Arc::new(Inner {
            backend,
            provider,
            sink: config.report,
            backend_url: RwLock::new(None),
            turns: Turns::new(config.prefill_ahead),
            policy: Arc::new(Mutex::new(Policy::new(config.handoff, config.min_tokens))),
            stop: CancellationToken::new(),
            counts: Counters::default(),
            running: tokio::sync::Mutex::new(()),
        })))
    }

    /// Where this server listens, for the provider's environment ([`BACKEND_URL_VARIABLE`]). Known after the bind.
    pub fn set_backend_url(&self, url: String) {
        *self.0.backend_url.write() = Some(url);
    }

    /// Hands the prompt over and starts the generation; on a failure, says why and lets the engine do it all.
    ///
    /// Waits for its turn, which the returned stream holds until it ends. Dropping the future or the stream kills the
    /// provider; the next request gets its turn when it is dead. Must be called within a tokio runtime.
    ///
    /// Errors: those of [`Engine::generate`] that can be known at once, before the provider is started, and
    /// `EngineError::Stopped`.
    pub async fn generate(&self, prompt: Vec<Token>, options: GenerateOptions) -> Result<Handoff, EngineError> {
        self.generate_many(prompt, options, 1).await?.pop().ok_or(EngineError::Stopped)
    }

    /// As [`generate`](Self::generate), with `n` answers to the one prompt, one after the other. All hold the turn.
    pub async fn generate_many(
        &self,
        prompt: Vec<Token>,
        options: GenerateOptions,
        n: usize,
    ) -> Result<Vec<Handoff>, EngineError> {
        let inner = &self.0;
        inner.backend.check(&prompt, &options)?;
        let place = inner.turns.enter().await.map_err(|_closed| EngineError::Stopped)?;
        let options = GenerateOptions { reuse_restored: inner.policy.lock().continues_slot(), ..options };
        match self.choose(&prompt, &options).await? {
            Choice::HandOver(why) => {
                self.say_choice(&prompt, "handed over", why);
                self.hand_over(place, &prompt, &options, n).await
            }
            Choice::Here(why) => {
                self.say_choice(&prompt, "evaluated here", why);
                let turn = place.without_provider().slot().await.map_err(|_closed| EngineError::Stopped)?;
                self.evaluate_here(&turn, &prompt, &options, n)
            }
        }
    }

    async fn choose(&self, prompt: &[Token], options: &GenerateOptions) -> Result<Choice, EngineError> {
        if self.is_stored(prompt, options).await? {
            tracing::info!("the prefix store has this prompt of {} tokens: the provider is not asked", prompt.len());
            return Ok(Choice::Here(None));
        }
        // The operator is told of every request that there is no provider.
        if self.0.provider.is_none() {
            return Ok(Choice::HandOver(None));
        }
        let continues_slot = self.0.policy.lock().continues_slot();
        let n_held = if continues_slot { self.0.backend.held(prompt).await } else { 0 };
        Ok(self.0.policy.lock().choose(prompt.len(), n_held, Instant::now()))
    }

    fn say_choice(&self, prompt: &[Token], what: &str, why: Option<String>) {
        if let Some(why) = why {
            self.0.sink.say(&choice_line(prompt.len(), what, &why));
        }
    }

    fn evaluate_here(
        &self,
        turn: &Turn,
        prompt: &[Token],
        options: &GenerateOptions,
        n: usize,
    ) -> Result<Vec<Handoff>, EngineError> {
        let answers = self.0.backend.generate(prompt, options, n)?;
        let handoff = |events| Handoff::local(events, turn.clone(), self.0.policy.clone());
        Ok(answers.into_iter().map(handoff).collect())
    }

    /// What became of the prompts so far.
    pub fn counts(&self) -> Counts {
        let counts = &self.0.counts;
        Counts {
            handoffs: counts.handoffs.load(Relaxed),
            fallbacks: counts.fallbacks.load(Relaxed),
            argmax_disagreements: counts.argmax_disagreements.load(Relaxed),
        }
    }

    /// Takes no more requests, kills a running provider and removes the slot directory. Generations that run go on.
    pub async fn close(&self) {
        self.0.turns.close();
        self.0.stop.cancel();
        let _ = tokio::time::timeout(CLOSE_LIMIT, self.0.running.lock()).await;
        if let Some((runner, slot_dir)) = &self.0.provider {
            runner.close().await;
            slot_dir.close();
        }
    }

    /// Lets the provider evaluate the prompt and the engine restore it. When that fails, says why, and has the engine do it all.
    async fn hand_over(
        &self,
        place: Place,
        prompt: &[Token],
        options: &GenerateOptions,
        n: usize,
    ) -> Result<Vec<Handoff>, EngineError> {
        let (provider_turn, place) = place.provider().await.map_err(|_closed| EngineError::Stopped)?;
        let since = Instant::now();
        let prefilled = self.prefill(prompt, provider_turn).await;
        if let Err(reason) = &prefilled {
            self.say_failure(reason)?;
        }
        let ready = Instant::now();
        let turn = place.slot().await.map_err(|_closed| EngineError::Stopped)?;
        let Ok(prefilled) = prefilled else { return self.evaluate_here(&turn, prompt, options, n) };
        // Waiting for the slot is no part of the first byte's time.
        let since = since + ready.elapsed();
        match self.take_over(prefilled, since, prompt, options, n).await {
            Ok((events, restored)) => {
                let mut restored = Some(restored);
                let handoff = |events| match restored.take() {
                    Some(first) => Handoff::restored(events, turn.clone(), first),
                    None => Handoff::local(events, turn.clone(), self.0.policy.clone()),
                };
                Ok(events.into_iter().map(handoff).collect())
            }
            Err(reason) => {
                self.say_failure(&reason)?;
                self.evaluate_here(&turn, prompt, options, n)
            }
        }
    }

    /// Counts a failure and says it; an end that was asked for is no failure but ends the request.
    fn say_failure(&self, reason: &HybridError) -> Result<(), EngineError> {
        if *reason == HybridError::Stopped {
            return Err(EngineError::Stopped);
        }
        self.0.counts.fallbacks.fetch_add(1, Relaxed);
        self.0.sink.say(&fallback_line(reason));
        // The first two are not the provider's doing, one that rests was not tried, and one that answers why is well.
        let is_providers = !matches!(
            reason,
            HybridError::NoProvider
                | HybridError::NothingToHandOver
                | HybridError::Resting { .. }
                | HybridError::Answered(_)
        );
        if is_providers && let Some(word) = self.0.policy.lock().failed(Instant::now()) {
            self.0.sink.say(&format!("onebit serve: handoff: {word}"));
        }
        Ok(())
    }

    /// Restores what the provider wrote.
    async fn take_over(
        &self,
        prefilled: Prefilled,
        since: Instant,
        prompt: &[Token],
        options: &GenerateOptions,
        n: usize,
    ) -> Result<(Vec<Events>, Restored), HybridError> {
        let Prefilled { run_dir, finished } = prefilled;
        let (events, report) = self.restore(&run_dir, prompt, options, n).await?;
        self.0.counts.handoffs.fetch_add(1, Relaxed);
        self.0.policy.lock().handed_over(prompt.len(), finished.elapsed + report.restore.unwrap_or_default());
        if self.0.backend.can_step_back() {
            self.compare_argmax(&finished.reply, report.argmax);
        }
        let line = Some((report, self.0.sink.clone()));
        let files = run_dir.into();
        Ok((events, Restored { since, prefill: finished.elapsed, prompt: Some(report), files, line }))
    }

    /// See [`Backend::has_stored`], which may read files.
    async fn is_stored(&self, prompt: &[Token], options: &GenerateOptions) -> Result<bool, EngineError> {
        let (this, prompt, options) = (self.clone(), prompt.to_vec(), options.clone());
        let asked = joined(tokio::task::spawn_blocking(move || this.0.backend.has_stored(&prompt, &options))).await;
        asked.map_err(|_stopped| EngineError::Stopped)
    }

    /// Has the provider evaluate the prompt. The run is a task of its own: when this future is dropped, it still sees the
    /// provider dead and its files removed before it lets go of the turn.
    async fn prefill(&self, prompt: &[Token], turn: ProviderTurn) -> Result<Prefilled, HybridError> {
        if self.0.provider.is_none() {
            return Err(HybridError::NoProvider);
        }
        let ids = if self.0.backend.can_step_back() { prompt } else { &prompt[..prompt.len().saturating_sub(1)] };
        if ids.is_empty() {
            return Err(HybridError::NothingToHandOver);
        }
        let (this, ids) = (self.clone(), ids.to_vec());
        let cancel = self.0.stop.child_token();
        let _cancel_on_drop = cancel.clone().drop_guard();
        joined(tokio::spawn(async move {
            let prefilled = this.run_provider(ids, &cancel).await;
            drop(turn);
            prefilled
        }))
        .await?
    }

    async fn run_provider(&self, ids: Vec<Token>, cancel: &CancellationToken) -> Result<Prefilled, HybridError> {
        let _running = self.0.running.lock().await;
        let (runner, _) = self.0.provider.as_ref().ok_or(HybridError::NoProvider)?;
        let n_asked = ids.len();
        let this = self.clone();
        let new_run = move || this.0.provider.as_ref().map(|(_, slot_dir)| slot_dir.new_run(&ids));
        let run_dir = joined(tokio::task::spawn_blocking(new_run)).await?.ok_or(HybridError::NoProvider)??;
        if cancel.is_cancelled() {
            return Err(HybridError::Stopped);
        }
        let backend_url = self.0.backend_url.read().clone();
        let finished = runner.run(&run_dir, n_asked, backend_url, cancel).await?;
        run_dir.check_state_file()?;
        Ok(Prefilled { run_dir, finished })
    }

    /// Different rounding makes the two disagree now and then; often, and the provider computes something else. So the
    /// count goes with each warning.
    fn compare_argmax(&self, reply: &Reply, ours: Token) {
        if reply.argmax == ours.0 {
            return;
        }
        self.0.counts.argmax_disagreements.fetch_add(1, Relaxed);
        let Counts { handoffs, argmax_disagreements, .. } = self.counts();
        tracing::warn!(
            provider = reply.argmax,
            engine = ours.0,
            "the provider ranks another token first after the prompt ({argmax_disagreements} of {handoffs} handoffs so far)"
        );
    }

    /// Lets the engine restore the state. Any error of it is a reason to fall back: the request itself was found good.
    async fn restore(
        &self,
        run_dir: &RunDir,
        prompt: &[Token],
        options: &GenerateOptions,
        n: usize,
    ) -> Result<(Vec<Events>, crate::engine::PromptReport), HybridError> {
        let refused = |error| match error {
            EngineError::Stopped => HybridError::Stopped,
            error => HybridError::Refused(error.to_string()),
        };
        let started = self.0.backend.restore_and_generate(&run_dir.state_path(), prompt, options, n);
        let mut events = started.map_err(refused)?;
        let first = events.first_mut().ok_or(HybridError::Stopped)?;
        let mut event = poll_fn(|cx| first.as_mut().poll_next(cx)).await;
        // A restored prompt is no progress to watch.
        while matches!(event, Some(Ok(Event::Progress(_)))) {
            event = poll_fn(|cx| first.as_mut().poll_next(cx)).await;
        }
        match event {
            Some(Ok(Event::Prompt(report))) => Ok((events, report)),
            Some(Ok(_)) => Err(HybridError::Refused("the engine does not say what it restored".to_owned())),
            Some(Err(error)) => Err(refused(error)),
            None => Err(HybridError::Stopped),
        }
    }
}

/// The result of a task, which we never abort: an error is its panic, which goes on here, or the runtime's end.
async fn joined<T>(task: JoinHandle<T>) -> Result<T, HybridError> {
    task.await.map_err(|error| match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(_) => HybridError::Stopped,
    })
}

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
