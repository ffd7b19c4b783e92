//! What a provider must refuse, without leaving a state file: with an exit status other than 0, or, once it is resident, with
//! an error for an answer.

use super::super::mode::{AnyRunner, PrefillMode};
use super::super::resident::Rules;
use super::super::slot_dir::RunDir;
use super::super::{HybridConfig, HybridError};
use super::{CheckError, Kit};
use crate::llama::Token;

/// One thing that must fail, or must hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unhappy {
    /// What was wrong with the command line or the request.
    pub name: &'static str,
    /// The exit status, when it ended by itself as it should.
    pub status: Option<i32>,
    /// What it did, when that is right.
    pub found: String,
    /// How it did not do what it should.
    pub fault: Option<String>,
}

/// How something has to be refused.
#[derive(Clone, Copy, PartialEq)]
enum By {
    Status,
    Answer,
}

pub(super) fn run(kit: &Kit<'_>) -> Result<Vec<Unhappy>, CheckError> {
    let ids = [kit.engine.bos().unwrap_or(Token(0)), Token(1)];
    let without_model = HybridConfig { model: "/no/such/model.gguf".into(), ..kit.settings.hybrid.clone() };
    let without_model = AnyRunner::with_rules(&without_model, Rules::Checking)?.ok_or(HybridError::NoProvider)?;
    // A resident provider stays when a request is wrong.
    let by = match kit.settings.hybrid.mode {
        PrefillMode::OneShot => By::Status,
        PrefillMode::Resident => By::Answer,
    };
    let new_run = |ids: &[Token]| kit.slot_dir.new_run(ids);
    let without_folder = new_run(&ids)?.into_missing_folder();
    let missing_model = attempt(kit, "missing model", By::Status, &without_model, &ids, new_run(&ids)?)?;
    kit.runtime.block_on(without_model.close());
    Ok(vec![
        missing_model,
        attempt(kit, "missing output directory", by, &kit.runner, &ids, without_folder)?,
        attempt(kit, "empty ids file", by, &kit.runner, &[], new_run(&[])?)?,
    ])
}

fn attempt(
    kit: &Kit<'_>,
    name: &'static str,
    by: By,
    runner: &AnyRunner,
    ids: &[Token],
    run_dir: RunDir,
) -> Result<Unhappy, CheckError> {
    let result = kit.runtime.block_on(runner.run(&run_dir, ids.len(), None, kit.cancel));
    let mut unhappy = Unhappy { name, status: None, found: String::new(), fault: None };
    match result {
        Err(HybridError::Stopped) => return Err(HybridError::Stopped.into()),
        Err(HybridError::Exited { code, .. }) if by == By::Status && code != 0 => {
            unhappy.status = Some(code);
            unhappy.found = format!("refused with status {code}");
        }
        // Also when it only then looks at its model.
        Err(HybridError::Answered(_)) => unhappy.found = "refused with an answer".to_owned(),
        result => unhappy.fault = Some(fault(by, result.err())),
    }
    if unhappy.fault.is_none() && run_dir.state_path().symlink_metadata().is_ok() {
        unhappy.fault = Some("the provider failed, but left a state file".to_owned());
    }
    Ok(unhappy)
}

fn fault(by: By, error: Option<HybridError>) -> String {
    let (due, as_if) = match by {
        By::Status => ("it should exit with a status of its own, not 0", "exited with status 0"),
        By::Answer => ("it should answer with an error, and stay", "answered"),
    };
    match error {
        // It cannot be run, is too slow, or crashes: an author wants to know, whatever a server makes of it.
        Some(
            error @ (HybridError::Exited { .. }
            | HybridError::Killed { .. }
            | HybridError::TimedOut { .. }
            | HybridError::HungUp { .. }
            | HybridError::WrongId { .. }
            | HybridError::Start { .. }
            | HybridError::Supervisor(_)),
        ) => format!("{error}; {due}"),
        // Whatever it printed, it was no refusal.
        Some(_) | None => format!("the provider {as_if}, as if all were well"),
    }
}
