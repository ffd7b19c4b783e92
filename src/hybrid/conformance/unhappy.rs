//! What a provider must refuse: with an exit status other than 0, and without leaving a state file.

use super::super::runner::Runner;
use super::super::slot_dir::RunDir;
use super::super::{HybridConfig, HybridError};
use super::{CheckError, Kit};
use crate::llama::Token;

/// One thing that must fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unhappy {
    /// What was wrong with the command line.
    pub name: &'static str,
    /// The exit status, when it ended by itself with one that is not 0.
    pub status: Option<i32>,
    /// How it did not fail as it should.
    pub fault: Option<String>,
}

pub(super) fn run(kit: &Kit<'_>) -> Result<Vec<Unhappy>, CheckError> {
    let ids = [kit.engine.bos().unwrap_or(Token(0)), Token(1)];
    let without_model = HybridConfig { model: "/no/such/model.gguf".into(), ..kit.settings.hybrid.clone() };
    let without_model = Runner::new(&without_model)?.ok_or(HybridError::NoProvider)?;
    Ok(vec![
        attempt(kit, "missing model", &without_model, &ids, kit.slot_dir.new_run(&ids)?)?,
        attempt(kit, "missing output directory", &kit.runner, &ids, kit.slot_dir.new_run(&ids)?.into_missing_folder())?,
        attempt(kit, "empty ids file", &kit.runner, &[], kit.slot_dir.new_run(&[])?)?,
    ])
}

fn attempt(
    kit: &Kit<'_>,
    name: &'static str,
    runner: &Runner,
    ids: &[Token],
    run_dir: RunDir,
) -> Result<Unhappy, CheckError> {
    let result = kit.runtime.block_on(runner.run(&run_dir, ids.len(), None, kit.cancel));
    let (status, fault) = match result {
        Err(HybridError::Stopped) => return Err(HybridError::Stopped.into()),
        Err(HybridError::Exited { code, .. }) => (Some(code), None),
        // It cannot be run, is too slow, or crashes: an author wants to know, whatever a server makes of it.
        Err(
            error @ (HybridError::Killed { .. }
            | HybridError::TimedOut { .. }
            | HybridError::Start { .. }
            | HybridError::Supervisor(_)),
        ) => (None, Some(format!("{error}; it should exit with a status of its own, not 0"))),
        // Whatever it printed, its exit status was 0.
        Ok(_) | Err(_) => (None, Some("the provider exited with status 0, as if all were well".to_owned())),
    };
    let left = fault.is_none() && run_dir.state_path().symlink_metadata().is_ok();
    let fault = fault.or_else(|| left.then(|| "the provider failed, but left a state file".to_owned()));
    Ok(Unhappy { name, status, fault })
}
