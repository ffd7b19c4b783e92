//! One prompt: the provider's run, its file, and what this build makes of it.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use super::super::runner::Finished;
use super::super::slot_dir::RunDir;
use super::super::{HybridError, error::quote};
use super::limits::{self, N_GREEDY};
use super::prompts::TestPrompt;
use super::values::{self, Files};
use super::{Area, CheckError, Kit, Outcome};
use crate::engine::{Engine, EngineError, Event, GenerateOptions, Generation};
use crate::llama::Token;
use crate::state::{self, Expect};

/// Runs one prompt through everything, as far as it comes.
pub(super) fn run(kit: &Kit<'_>, prompt: TestPrompt) -> Result<Outcome, CheckError> {
    let TestPrompt { name, tokens: prompt } = prompt;
    let asked = if kit.engine.info().can_step_back { &prompt[..] } else { &prompt[..prompt.len() - 1] };
    let mut outcome = Outcome {
        name,
        n_prompt: prompt.len(),
        n_asked: asked.len(),
        elapsed: None,
        version: None,
        worst: None,
        argmax: None,
        kl: None,
        n_greedy: None,
        faults: Vec::new(),
    };
    let run_dir = kit.slot_dir.new_run(asked)?;
    let finished = match provide(kit, &run_dir, asked.len()) {
        Ok(finished) => finished,
        Err(HybridError::Stopped) => return Err(HybridError::Stopped.into()),
        Err(error) => {
            outcome.fault(Area::Contract, error.to_string());
            return Ok(outcome);
        }
    };
    outcome.elapsed = Some(finished.elapsed);
    // Our own files are in a directory of their own, which the provider never heard of.
    let own_dir = kit.slot_dir.new_run(&[])?;
    let own = kit.engine.prefill_to_file(asked, own_dir.state_path())?;
    compare_argmax(kit, &mut outcome, asked, Token(finished.reply.argmax), own.argmax)?;
    if check_structure(kit.engine, &mut outcome, &run_dir.state_path(), asked)? {
        let files = Files { own: &own_dir.state_path(), theirs: &run_dir.state_path() };
        outcome.worst = values::compare(kit.engine, &files, &mut outcome.faults)?;
        compare_answers(kit, &mut outcome, &prompt, &files)?;
    }
    Ok(outcome)
}

fn provide(kit: &Kit<'_>, run_dir: &RunDir, n_asked: usize) -> Result<Finished, HybridError> {
    let finished = kit.runtime.block_on(kit.runner.run(run_dir, n_asked, None, kit.cancel))?;
    run_dir.check_state_file()?;
    Ok(finished)
}

/// A near tie may go either way.
fn compare_argmax(
    kit: &Kit<'_>,
    outcome: &mut Outcome,
    asked: &[Token],
    theirs: Token,
    ours: Token,
) -> Result<(), CheckError> {
    outcome.argmax = Some((theirs, ours));
    if theirs == ours {
        return Ok(());
    }
    let logits = kit.engine.logits(asked, None)?;
    let logit = |token: Token| usize::try_from(token.0).ok().and_then(|index| logits.get(index)).copied();
    let (Some(their_logit), Some(our_logit)) = (logit(theirs), logit(ours)) else {
        outcome.fault(Area::Argmax, format!("argmax is {theirs}, which is no token of the vocabulary"));
        return Ok(());
    };
    let gap = f64::from(our_logit - their_logit);
    let near_tie = limits::near_tie(kit.settings.max_kl);
    if gap > near_tie || gap.is_nan() {
        outcome.fault(
            Area::Argmax,
            format!(
                "argmax is token {theirs}, but this build ranks {ours} first, by {gap:.2} nats (up to {near_tie:.2} is a \
                 near tie)"
            ),
        );
    }
    Ok(())
}

/// Stricter than a restore, which also takes a file without the last token.
fn check_structure(engine: &Engine, outcome: &mut Outcome, path: &Path, asked: &[Token]) -> Result<bool, CheckError> {
    let layout = engine.state_layout().map_err(|reason| CheckError::Layout(reason.to_owned()))?;
    let ids: Vec<i32> = asked.iter().map(|token| token.0).collect();
    let expect = Expect { ids: &ids, n_states: ids.len(), n_ctx: engine.info().n_ctx, scan: true };
    let (mut reader, len) = open(path)?;
    match state::check(&mut reader, len, layout, &expect) {
        Ok(checked) => outcome.version = Some(checked.version),
        Err(error) => outcome.fault(Area::State, error.to_string()),
    }
    Ok(outcome.version.is_some())
}

/// What the model says next: with this build's own state, and with the provider's. Both are restored, so that nothing but
/// the state differs.
fn compare_answers(
    kit: &Kit<'_>,
    outcome: &mut Outcome,
    prompt: &[Token],
    files: &Files<'_>,
) -> Result<(), CheckError> {
    let engine = kit.engine;
    let ours = engine.logits(prompt, Some(files.own))?;
    let theirs = match engine.logits(prompt, Some(files.theirs)) {
        Ok(logits) => logits,
        Err(EngineError::Restore(reason)) => {
            outcome.fault(Area::State, quote(reason));
            return Ok(());
        }
        // Numbers of theirs that this build cannot go on with.
        Err(error @ EngineError::Decode(_)) => {
            outcome.fault(Area::Distribution, quote(error.to_string()));
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    let kl = kl_divergence(&ours, &theirs);
    outcome.kl = Some(kl);
    if kl > kit.settings.max_kl || kl.is_nan() {
        outcome.fault(
            Area::Distribution,
            format!(
                "the next token's distribution is another one: KL divergence {kl:.3e} nats, at most {} are allowed",
                kit.settings.max_kl
            ),
        );
    }
    let mut options = GenerateOptions::greedy(N_GREEDY as u32);
    options.ignore_eos = true;
    let ours = tokens(engine.restore_and_generate(files.own, prompt, &options)?)?;
    let theirs = tokens(engine.restore_and_generate(files.theirs, prompt, &options)?)?;
    outcome.n_greedy = Some(ours.iter().zip(&theirs).take_while(|(ours, theirs)| ours == theirs).count());
    Ok(())
}

fn tokens(generation: Generation) -> Result<Vec<Token>, EngineError> {
    let mut tokens = Vec::new();
    for event in generation {
        if let Event::Piece(piece) = event? {
            tokens.extend(piece.tokens);
        }
    }
    Ok(tokens)
}

/// `sum p (log p - log q)` in nats, of the distributions that two rows of logits stand for.
fn kl_divergence(p: &[f32], q: &[f32]) -> f64 {
    let (p, q) = (log_softmax(p), log_softmax(q));
    let sum: f64 = p.iter().zip(&q).filter(|(p, _)| p.is_finite()).map(|(p, q)| p.exp() * (p - q)).sum();
    // Rounding alone can make it a little less than nothing.
    if sum < 0.0 { 0.0 } else { sum }
}

fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let most = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|logit| (f64::from(*logit) - most).exp()).sum();
    logits.iter().map(|logit| f64::from(*logit) - most - sum.ln()).collect()
}

/// A state file as a reader, and its length.
pub(super) fn open(path: &Path) -> std::io::Result<(BufReader<File>, u64)> {
    let file = File::open(path)?;
    let len = file.metadata()?.len();
    Ok((BufReader::with_capacity(256 * 1024, file), len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divergence() {
        assert_eq!(kl_divergence(&[1.0, 2.0, 3.0], &[1.0, 2.0, 3.0]), 0.0);
        // A constant is no difference.
        assert!(kl_divergence(&[1.0, 2.0], &[101.0, 102.0]) < 1e-12);
        // p = (1/2, 1/2), q = (1/4, 3/4)
        let q = [0.25f32.ln(), 0.75f32.ln()];
        let expected = 0.5 * (0.5f64 / 0.25).ln() + 0.5 * (0.5f64 / 0.75).ln();
        assert!((kl_divergence(&[0.0, 0.0], &q) - expected).abs() < 1e-6);
        // A token that is forbidden in both counts for nothing, one that q forbids is infinitely surprising.
        let never = f32::NEG_INFINITY;
        assert_eq!(kl_divergence(&[0.0, never], &[0.0, never]), 0.0);
        assert!(kl_divergence(&[0.0, 0.0], &[0.0, never]).is_infinite());
        assert!(kl_divergence(&[0.0, 0.0], &[0.0, f32::NAN]).is_nan());
    }
}
