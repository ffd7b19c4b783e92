//! The two ways to run a provider, behind one call.

use std::io;

use tokio_util::sync::CancellationToken;

use super::resident::{Resident, Rules, Tally};
use super::runner::{Finished, Runner};
use super::slot_dir::RunDir;
use super::{HybridConfig, HybridError};

/// How long a provider lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PrefillMode {
    /// It is started for each prompt (the contract, version 1).
    #[default]
    OneShot,
    /// It is started once, and gets requests on its stdin (version 1.1).
    Resident,
}

/// A runner of either mode.
pub(super) enum AnyRunner {
    OneShot(Runner),
    Resident(Resident),
}

impl AnyRunner {
    /// `None` when no provider is named.
    pub(super) fn new(config: &HybridConfig) -> io::Result<Option<Self>> {
        Self::with_rules(config, Rules::Serving)
    }

    /// As [`new`](Self::new), for a resident one with these rules.
    pub(super) fn with_rules(config: &HybridConfig, rules: Rules) -> io::Result<Option<Self>> {
        let runner = Runner::new(config)?;
        Ok(runner.map(|runner| match config.mode {
            PrefillMode::OneShot => Self::OneShot(runner),
            PrefillMode::Resident => Self::Resident(Resident::new(runner, rules)),
        }))
    }

    /// Has the ids in `run_dir`, which are `n_asked`, evaluated into its state file. Returns at once after `cancel`.
    pub(super) async fn run(
        &self,
        run_dir: &RunDir,
        n_asked: usize,
        backend_url: Option<String>,
        cancel: &CancellationToken,
    ) -> Result<Finished, HybridError> {
        match self {
            Self::OneShot(runner) => runner.run(run_dir, n_asked, backend_url, cancel).await,
            Self::Resident(resident) => resident.run(run_dir, n_asked, backend_url, cancel).await,
        }
    }

    /// What became of a resident process so far.
    pub(super) fn tally(&self) -> Option<Tally> {
        match self {
            Self::OneShot(_) => None,
            Self::Resident(resident) => Some(resident.tally()),
        }
    }

    /// Ends what stays between requests. Takes no more of them.
    pub(super) async fn close(&self) {
        if let Self::Resident(resident) = self {
            resident.close().await;
        }
    }
}
