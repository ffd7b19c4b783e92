//! The provider's run: its command line, its deadline, its end.

use std::ffi::OsString;
use std::future::Future;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::HybridConfig;
use super::error::HybridError;
use super::output::Output;
use super::process::{Process, Program};
use super::report::{LineSink, Reply};
use super::slot_dir::RunDir;

/// Tells a provider where this server listens.
pub const BACKEND_URL_VARIABLE: &str = "ONEBIT_HYBRID_BACKEND_URL";

/// Between SIGTERM and SIGKILL, for a provider that is late.
pub(super) const GRACE: Duration = Duration::from_millis(500);
/// How long we wait for killed processes to be gone before we go on without them.
pub(super) const DEATH_LIMIT: Duration = Duration::from_secs(5);

/// How to call the provider; the paths are fit for another working directory.
#[derive(Clone, Debug)]
pub(super) struct Runner {
    pub(super) program: PathBuf,
    pub(super) elfs: Option<PathBuf>,
    pub(super) model: PathBuf,
    pub(super) timeout: Duration,
    pub(super) supervisor: Option<PathBuf>,
    pub(super) sink: LineSink,
}

/// A run that kept the contract as far as stdout and the exit status go.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Finished {
    pub reply: Reply,
    /// From starting the provider to its end.
    pub elapsed: Duration,
}

impl Runner {
    /// `None` when no provider is named.
    pub(super) fn new(config: &HybridConfig) -> io::Result<Option<Self>> {
        let Some(provider) = &config.provider else { return Ok(None) };
        Ok(Some(Self {
            program: resolve_program(provider)?,
            elfs: config.elfs.as_ref().map(std::path::absolute).transpose()?,
            model: std::path::absolute(&config.model)?,
            timeout: config.timeout,
            supervisor: config.supervisor.as_deref().map(resolve_program).transpose()?,
            sink: config.report.clone(),
        }))
    }

    /// Runs the provider on the ids in `run_dir`, which are `n_asked`, until it and its process group are gone.
    /// `cancel` ends it at once.
    pub(super) async fn run(
        &self,
        run_dir: &RunDir,
        n_asked: usize,
        backend_url: Option<String>,
        cancel: &CancellationToken,
    ) -> Result<Finished, HybridError> {
        let program = Program {
            program: &self.program,
            args: self.args(run_dir),
            directory: run_dir.path(),
            variable: (BACKEND_URL_VARIABLE, backend_url),
            supervisor: self.supervisor.as_deref(),
        };
        let started = Instant::now();
        let (mut process, mut output) = Process::start(&program, None, self.sink.clone())?;
        let outcome = tokio::select! {
            status = process.ended() => Ok(status?),
            never = output.pump() => match never {},
            () = tokio::time::sleep(self.timeout) => Err(Cut::Late),
            () = cancel.cancelled() => Err(Cut::Cancelled),
        };
        let elapsed = started.elapsed();
        if let Err(cut) = outcome {
            end(&mut process, &mut output, cut).await;
        }
        let (stdout, stderr) = output.finish();
        let status = match outcome {
            Err(Cut::Cancelled) => return Err(HybridError::Stopped),
            Err(Cut::Late) => return Err(HybridError::TimedOut { after: self.timeout, stderr }),
            Ok(status) => status,
        };
        match (status.code(), status.signal()) {
            (Some(0), _) => {}
            (Some(code), _) => return Err(HybridError::Exited { code, stderr }),
            (None, signal) => return Err(HybridError::Killed { signal: signal.unwrap_or(0), stderr }),
        }
        let reply = Reply::parse(&stdout)?.expect(n_asked)?;
        Ok(Finished { reply, elapsed })
    }

    /// `--out` is a bare name, and the working directory the one it belongs to; the other paths hold anywhere.
    fn args(&self, run_dir: &RunDir) -> Vec<OsString> {
        let mut args: Vec<OsString> = vec![
            "--tokens".into(),
            run_dir.tokens_path().into(),
            "--out".into(),
            run_dir.state_name().into(),
            "--model".into(),
            self.model.clone().into(),
        ];
        if let Some(elfs) = &self.elfs {
            args.extend(["--elfs".into(), elfs.clone().into()]);
        }
        args
    }
}

/// Why a run is ended from outside.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Cut {
    Late,
    Cancelled,
}

/// A late provider may still tidy up; one whose client has gone is killed.
pub(super) async fn end(process: &mut Process, output: &mut Output, cut: Cut) {
    if cut == Cut::Late {
        process.terminate().await;
        if is_gone(process, output, GRACE).await {
            return;
        }
    }
    process.kill().await;
    is_gone(process, output, DEATH_LIMIT).await;
}

async fn is_gone(process: &mut Process, output: &mut Output, limit: Duration) -> bool {
    let gone = async {
        tokio::select! {
            _ = process.ended() => {}
            never = output.pump() => match never {},
        }
    };
    within(limit, gone).await
}

async fn within(limit: Duration, future: impl Future<Output = ()>) -> bool {
    tokio::time::timeout(limit, future).await.is_ok()
}

/// A bare name is for `PATH`; anything with a slash is relative to our working directory, which the child's is not.
fn resolve_program(path: impl AsRef<Path>) -> io::Result<PathBuf> {
    let path = path.as_ref();
    if path.components().count() == 1 && !path.as_os_str().as_encoded_bytes().contains(&b'/') {
        return Ok(path.to_owned());
    }
    std::path::absolute(path)
}

#[cfg(test)]
#[path = "runner_tests.rs"]
mod tests;
