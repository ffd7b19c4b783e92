//! One process of a resident provider: a request written to its stdin, its answer read from its stdout, its end.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;

use super::protocol::{self, Line, Lines};
use super::{Rules, Tally};
use crate::hybrid::HybridError;
use crate::hybrid::error::{os_reason, quote};
use crate::hybrid::output::Output;
use crate::hybrid::process::{Process, Program};
use crate::hybrid::report::Reply;
use crate::hybrid::runner::{BACKEND_URL_VARIABLE, Cut, DEATH_LIMIT, GRACE, Runner, end};

/// How long it may take to end by itself once its stdin is closed.
const END_GRACE: Duration = Duration::from_secs(1);

/// A process that takes requests. Dropping it kills the process and all its descendants.
pub(super) struct Live {
    process: Process,
    output: Output,
    stdin: Option<pipe::Sender>,
    lines: Lines,
    /// Its stdout is closed: it can answer nothing more.
    is_mute: bool,
    /// It ended right after an answer, in this way.
    end: Option<HybridError>,
    timeout: Duration,
    rules: Rules,
    tally: Arc<Mutex<Tally>>,
}

impl Live {
    pub(super) fn start(
        call: &Runner,
        directory: &Path,
        backend_url: Option<String>,
        rules: Rules,
        tally: Arc<Mutex<Tally>>,
    ) -> Result<Self, HybridError> {
        let pipe_error =
            |error: io::Error| HybridError::Start { program: call.program.clone(), reason: os_reason(&error) };
        let (theirs, ours) = io::pipe().map_err(pipe_error)?;
        let stdin = pipe::Sender::from_owned_fd(ours.into()).map_err(pipe_error)?;
        let program = Program {
            program: &call.program,
            args: args(call),
            directory,
            variable: (BACKEND_URL_VARIABLE, backend_url),
            supervisor: call.supervisor.as_deref(),
        };
        let (process, output) = Process::start(&program, Some(theirs), call.sink.clone())?;
        let (stdin, lines) = (Some(stdin), Lines::default());
        let timeout = call.timeout;
        Ok(Self { process, output, stdin, lines, is_mute: false, end: None, timeout, rules, tally })
    }

    /// Empties the pipes while nothing is asked. Returns when the process has ended, with the way it did; can be dropped
    /// before that.
    pub(super) async fn idle(&mut self) -> HybridError {
        loop {
            tokio::select! {
                bytes = self.output.next_stdout() => self.push(&bytes),
                status = self.process.ended() => return self.ended(status),
            }
            // Nobody asked.
            self.take_answer(None);
        }
    }

    /// Writes one request and waits for its answer. The outer error is the end of the process; the inner one its answer.
    pub(super) async fn ask(&mut self, id: u64, request: &[u8]) -> Result<Result<Reply, HybridError>, HybridError> {
        self.output.forget_lines();
        let mut rest = request;
        let late = tokio::time::sleep(self.timeout);
        tokio::pin!(late);
        loop {
            if let Some(answer) = self.take_answer(Some(id)) {
                return Ok(answer);
            }
            if self.is_mute {
                return Err(self.hung_up("stdout").await);
            }
            tokio::select! {
                bytes = self.output.next_stdout() => self.push(&bytes),
                written = write(&mut self.stdin, rest), if !rest.is_empty() => match written {
                    Ok(n_written) => rest = &rest[n_written..],
                    Err(_) => return Err(self.hung_up("stdin").await),
                },
                status = self.process.ended() => {
                    let end = self.ended(status);
                    let answer = self.take_answer(Some(id)).ok_or_else(|| end.clone());
                    self.end = Some(end);
                    return answer;
                }
                () = &mut late => {
                    end(&mut self.process, &mut self.output, Cut::Late).await;
                    let (_, stderr) = self.output.finish();
                    return Err(HybridError::TimedOut { after: self.timeout, stderr });
                }
            }
        }
    }

    /// How it ended after its last answer, if it did.
    pub(super) fn take_end(&mut self) -> Option<HybridError> {
        self.end.take()
    }

    /// Closes its stdin, on which it is to end; kills it when it does not. Returns how it ended by itself.
    pub(super) async fn close(mut self) -> Option<HybridError> {
        self.stdin = None;
        let end = self.ends_within(END_GRACE).await;
        if end.is_none() {
            self.kill().await;
        }
        end
    }

    fn push(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            self.is_mute = true;
            self.lines.end_line();
        } else {
            self.lines.push(bytes);
        }
    }

    /// Goes through the lines that have come up to the answer to `asked`, if it is there.
    fn take_answer(&mut self, asked: Option<u64>) -> Option<Result<Reply, HybridError>> {
        while let Some(line) = self.lines.next() {
            let text = || quote(String::from_utf8_lossy(&line));
            match protocol::read(&line, asked) {
                Line::Answer(answer) => return Some(answer),
                Line::Other(answered) => {
                    tracing::debug!(target: "onebit::provider", "an answer that nobody waits for: {}", text());
                    self.tally.lock().n_unasked += 1;
                    if let (Some(asked), Rules::Checking) = (asked, self.rules) {
                        return Some(Err(HybridError::WrongId { answered, asked }));
                    }
                }
                Line::Noise => {
                    tracing::debug!(target: "onebit::provider", "no answer: {}", text());
                    self.tally.lock().n_noise += 1;
                }
            }
        }
        None
    }

    /// The way it ended, in words; what it still said is in `lines` then.
    fn ended(&mut self, status: Result<ExitStatus, HybridError>) -> HybridError {
        let (stdout, stderr) = self.output.finish();
        self.lines.push(&stdout);
        self.lines.end_line();
        match status {
            Err(error) => error,
            Ok(status) => match (status.code(), status.signal()) {
                (Some(code), _) => HybridError::Exited { code, stderr },
                (None, signal) => HybridError::Killed { signal: signal.unwrap_or(0), stderr },
            },
        }
    }

    /// A closed pipe mostly means that it has ended, which is told in a moment and says more.
    async fn hung_up(&mut self, pipe: &'static str) -> HybridError {
        if let Some(end) = self.ends_within(GRACE).await {
            return end;
        }
        self.kill().await;
        let (_, stderr) = self.output.finish();
        HybridError::HungUp { pipe, stderr }
    }

    async fn kill(&mut self) {
        self.process.kill().await;
        self.ends_within(DEATH_LIMIT).await;
    }

    async fn ends_within(&mut self, limit: Duration) -> Option<HybridError> {
        let Self { process, output, .. } = self;
        let ended = async {
            tokio::select! {
                status = process.ended() => status,
                never = output.pump() => match never {},
            }
        };
        let status = tokio::time::timeout(limit, ended).await.ok()?;
        Some(self.ended(status))
    }
}

async fn write(stdin: &mut Option<pipe::Sender>, bytes: &[u8]) -> io::Result<usize> {
    let stdin = stdin.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
    stdin.write(bytes).await
}

fn args(call: &Runner) -> Vec<OsString> {
    let mut args: Vec<OsString> = vec!["--model".into(), call.model.clone().into()];
    if let Some(elfs) = &call.elfs {
        args.extend(["--elfs".into(), elfs.clone().into()]);
    }
    args.push("--resident".into());
    args
}
