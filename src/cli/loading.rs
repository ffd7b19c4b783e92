//! Loading a model with signs of life: a bar on a terminal, a line elsewhere.

use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::engine::{Engine, EngineConfig, ModelInfo};

use super::Failure;

/// Raised to give up a load.
pub(super) type Stop = Arc<AtomicBool>;

/// Loads and tells `name`'s user about it on stderr; silent when `quiet`.
pub(super) fn load(name: &str, config: EngineConfig, stop: &Stop, quiet: bool) -> Result<Engine, Failure> {
    let started = Instant::now();
    let bar = bar(&config.model, quiet);
    if bar.is_hidden() && !quiet {
        eprintln!("{name}: loading {}", config.model.display());
    }
    let (progress_bar, stop) = (bar.clone(), stop.clone());
    let loaded = Engine::load_with_progress(config, move |fraction| {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // 0..=1 to percent
        progress_bar.set_position((fraction * 100.0) as u64);
        !stop.load(Ordering::Relaxed)
    });
    bar.finish_and_clear();
    let engine = loaded?;
    if !quiet {
        eprintln!("{name}: {} in {:.1} s", describe(engine.info()), started.elapsed().as_secs_f64());
    }
    Ok(engine)
}

fn bar(model: &Path, quiet: bool) -> ProgressBar {
    if quiet || !std::io::stderr().is_terminal() {
        return ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
    }
    let style = ProgressStyle::with_template("loading {msg} [{bar:30}] {percent}%");
    let bar = ProgressBar::with_draw_target(Some(100), ProgressDrawTarget::stderr());
    let name = model.file_name().unwrap_or(model.as_os_str());
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())).with_message(name.display().to_string())
}

fn describe(info: &ModelInfo) -> String {
    let file = info.path.file_name().unwrap_or(info.path.as_os_str());
    format!("{} ({}) on {}, context {} tokens, ready", file.display(), info.description, info.device, info.n_ctx)
}
