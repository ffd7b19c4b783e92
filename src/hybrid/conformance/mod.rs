//! The conformance kit: is this program a prefill provider, and if not, what is wrong with it?
//!
//! [`run`] has the provider evaluate a set of prompts, and compares each state file with the one this build computes
//! itself. Reading order: this file (what is reported), `prompts` (what is asked), `trial` (one prompt), `values` (K and V
//! against our own, and what a difference means), `unhappy` (what must fail), `resident` (whether the process
//! stays), [`limits`] (what is good enough, and why).

pub mod limits;
mod prompts;
mod resident;
mod trial;
mod unhappy;
mod values;

use std::time::Duration;

use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use super::mode::AnyRunner;
use super::resident::Rules;
use super::slot_dir::SlotDir;
use super::{HybridConfig, HybridError};
use crate::engine::{Engine, EngineError};
use crate::llama::Token;
use crate::state::BlockId;

pub use unhappy::Unhappy;

/// What is checked, and how strictly.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The provider and how it is run; `provider` must be named.
    pub hybrid: HybridConfig,
    /// Most KL divergence of the next token's distribution, in nats; see [`limits::MAX_KL`].
    pub max_kl: f64,
}

/// Everything that was found out.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// One for each prompt, in the order they were run.
    pub prompts: Vec<Outcome>,
    /// Prompts that could not be run with this model, each with the reason.
    pub left_out: Vec<String>,
    /// What a provider must refuse, and, for a resident one, what else the protocol asks of it.
    pub unhappy: Vec<Unhappy>,
    /// What is no fault, but good to know.
    pub notes: Vec<String>,
}

impl Report {
    /// Nothing was found wrong.
    pub fn passed(&self) -> bool {
        self.n_faults() == 0
    }

    /// Faults of all prompts and unhappy paths.
    pub fn n_faults(&self) -> usize {
        let of_prompts: usize = self.prompts.iter().map(|outcome| outcome.faults.len()).sum();
        of_prompts + self.unhappy.iter().filter(|unhappy| unhappy.fault.is_some()).count()
    }
}

/// One prompt. What was not reached, because something before it failed, is `None`.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// What the prompt is, such as `63 tokens`.
    pub name: String,
    /// Tokens of the prompt.
    pub n_prompt: usize,
    /// Tokens that the provider was to evaluate: one less for models that cannot step back.
    pub n_asked: usize,
    /// The provider's whole run.
    pub elapsed: Option<Duration>,
    /// The state version of its file.
    pub version: Option<u32>,
    /// The tensor that differs most from this build's own.
    pub worst: Option<WorstTensor>,
    /// The provider's argmax and this build's own.
    pub argmax: Option<(Token, Token)>,
    /// KL divergence of the next token's distribution, in nats: this build's own state against the provider's, both
    /// restored.
    pub kl: Option<f64>,
    /// Of [`limits::N_GREEDY`] greedy tokens, how many are the same before the first that is not.
    pub n_greedy: Option<usize>,
    /// What is wrong, in the order it was found.
    pub faults: Vec<Fault>,
}

/// A tensor and how far it is off.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WorstTensor {
    /// Which.
    pub id: BlockId,
    /// See [`Errors::relative_l2`](crate::state::Errors::relative_l2).
    pub relative_l2: f64,
}

/// Something that the provider's author has to put right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Which of the checks it failed.
    pub area: Area,
    /// One line: what was found and what was expected.
    pub text: String,
}

/// The checks, in the order in which they are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Area {
    /// The command line is accepted, the exit status 0, the reply as the contract says, the file there.
    Contract,
    /// The state file is one that this model can load.
    State,
    /// `argmax` is what this build's logits rank first.
    Argmax,
    /// K and V (R and S) are this build's own, but for rounding.
    Values,
    /// The next token's distribution is this build's own, but for rounding.
    Distribution,
}

impl std::fmt::Display for Area {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Area::Contract => "contract",
            Area::State => "state",
            Area::Argmax => "argmax",
            Area::Values => "values",
            Area::Distribution => "distribution",
        })
    }
}

impl Outcome {
    /// Whether a check was passed; `None` when it was not reached.
    pub fn passed(&self, area: Area) -> Option<bool> {
        if self.faults.iter().any(|fault| fault.area == area) {
            return Some(false);
        }
        let reached = match area {
            Area::Contract => self.elapsed.is_some(),
            Area::State => self.version.is_some(),
            Area::Argmax => self.argmax.is_some(),
            Area::Values => self.worst.is_some(),
            Area::Distribution => self.kl.is_some(),
        };
        reached.then_some(true)
    }

    fn fault(&mut self, area: Area, text: impl Into<String>) {
        self.faults.push(Fault { area, text: text.into() });
    }
}

/// Why there is no report: the fault is ours, the model's or the user's, not the provider's.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// The model's memory is of no kind that can be handed over.
    #[error("{0}")]
    Layout(String),
    /// The slot directory cannot be used, or the check was stopped.
    #[error(transparent)]
    Hybrid(#[from] HybridError),
    /// This build cannot evaluate the prompt itself.
    #[error("this build cannot evaluate the prompt itself: {0}")]
    Engine(#[from] EngineError),
    /// This build's own state cannot be compared.
    #[error("this build's own state cannot be read: {0}")]
    Own(crate::state::StateError),
    /// A state file cannot be read any more.
    #[error("{0}")]
    Io(#[from] std::io::Error),
}

/// What the parts of a check have in common.
struct Kit<'a> {
    engine: &'a Engine,
    settings: &'a Settings,
    runner: AnyRunner,
    slot_dir: SlotDir,
    runtime: &'a Handle,
    cancel: &'a CancellationToken,
}

/// Checks a provider against an engine that has the same model loaded. Blocks, for minutes with a slow provider: to be
/// called outside of `runtime`'s own tasks. `each` sees every prompt's outcome as soon as it is known.
///
/// # Errors
///
/// [`CheckError`]; whatever the provider does wrong is in the report instead. `HybridError::Stopped` after a cancellation.
pub fn run(
    engine: &Engine,
    settings: &Settings,
    runtime: &Handle,
    cancel: &CancellationToken,
    mut each: impl FnMut(&Outcome),
) -> Result<Report, CheckError> {
    engine.state_layout().map_err(|reason| CheckError::Layout(reason.to_owned()))?;
    let runner = AnyRunner::with_rules(&settings.hybrid, Rules::Checking)?.ok_or(HybridError::NoProvider)?;
    let n_bytes = engine.info().state_bytes_full.saturating_mul(2);
    let slot_dir = SlotDir::new(settings.hybrid.slot_dir.as_deref(), n_bytes)?;
    let kit = Kit { engine, settings, runner, slot_dir, runtime, cancel };

    let (prompts, left_out) = prompts::prompts(engine);
    let mut outcomes = Vec::new();
    for prompt in prompts {
        let outcome = trial::run(&kit, prompt)?;
        each(&outcome);
        outcomes.push(outcome);
    }
    let mut unhappy = unhappy::run(&kit)?;
    let mut notes = Vec::new();
    resident::run(&kit, &mut unhappy, &mut notes);
    Ok(Report { prompts: outcomes, left_out, unhappy, notes })
}
