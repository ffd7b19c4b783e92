//! One run of the provider as a process, with a supervisor or without, and how to end it.

use std::ffi::OsString;
use std::io::{self, PipeReader};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};

use rustix::process::{Pid, Signal};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};

use super::error::{HybridError, os_reason};
use super::output::Output;
use super::report::LineSink;
use super::supervisor::{self, Message};

/// What to run.
pub(super) struct Program<'a> {
    /// Absolute, or a bare name to be looked up in `PATH`.
    pub program: &'a Path,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Its working directory.
    pub directory: &'a Path,
    /// A variable for its environment; with `None` it is taken out.
    pub variable: (&'static str, Option<String>),
    /// The binary that supervises it; `None` starts it directly.
    pub supervisor: Option<&'a Path>,
}

/// A provider that runs. Dropping it kills its process group; with a supervisor, all its descendants.
pub(super) enum Process {
    Supervised(Supervised),
    Direct(Direct),
}

impl Process {
    /// Starts it with its output going to the returned [`Output`], and `stdin` as its stdin; without, that is empty. Needs a
    /// tokio runtime.
    ///
    /// Errors: `Start` and `Supervisor`, of which a supervisor may report the first only later, in [`Process::ended`].
    pub(super) fn start(
        what: &Program<'_>,
        stdin: Option<PipeReader>,
        sink: LineSink,
    ) -> Result<(Self, Output), HybridError> {
        let pipes = || -> io::Result<_> { Ok((io::pipe()?, io::pipe()?)) };
        let ((stdout, to_stdout), (stderr, to_stderr)) = pipes().map_err(|error| what.start_error(&error))?;
        let output = Output::new(stdout, stderr, sink).map_err(|error| what.start_error(&error))?;
        let mut command = match what.supervisor {
            None => Command::new(what.program),
            Some(supervisor) => {
                let mut command = Command::new(supervisor);
                command.arg(if stdin.is_some() { supervisor::WORD_STDIN } else { supervisor::WORD }).arg(what.program);
                command
            }
        };
        // A group of its own keeps a Ctrl-C in the server's terminal, which the server handles, away from it.
        command.args(&what.args).current_dir(what.directory).process_group(0).stdout(to_stdout).stderr(to_stderr);
        match &what.variable {
            (name, Some(value)) => command.env(name, value),
            (name, None) => command.env_remove(name),
        };
        let process = match what.supervisor {
            None => Process::Direct(Direct::start(command, stdin).map_err(|error| what.start_error(&error))?),
            Some(_) => Process::Supervised(
                Supervised::start(command, stdin, what.program.to_owned(), what.directory.to_owned())
                    .map_err(|error| HybridError::Supervisor(format!("it does not start: {}", os_reason(&error))))?,
            ),
        };
        Ok((process, output))
    }

    /// Waits for the provider's end and that of its group (with a supervisor, of all its descendants). Can be dropped
    /// and called again, until it has returned once.
    ///
    /// Errors: `Start` and `Supervisor`.
    pub(super) async fn ended(&mut self) -> Result<ExitStatus, HybridError> {
        match self {
            Process::Supervised(supervised) => supervised.ended().await,
            Process::Direct(direct) => direct.ended().await,
        }
    }

    /// Asks the process group to end (SIGTERM).
    pub(super) async fn terminate(&mut self) {
        match self {
            Process::Supervised(supervised) => drop(supervised.lifeline.write_all(&[supervisor::TERMINATE]).await),
            Process::Direct(direct) => direct.signal(Signal::TERM),
        }
    }

    /// Ends it at once (SIGKILL).
    pub(super) async fn kill(&mut self) {
        match self {
            Process::Supervised(supervised) => drop(supervised.lifeline.shutdown().await),
            Process::Direct(direct) => direct.signal(Signal::KILL),
        }
    }
}

impl Program<'_> {
    fn start_error(&self, error: &io::Error) -> HybridError {
        HybridError::Start { program: self.program.to_owned(), reason: os_reason(error) }
    }
}

/// Behind a supervisor. Dropping closes the lifeline, upon which the supervisor kills everything.
pub(super) struct Supervised {
    program: PathBuf,
    lifeline: UnixStream,
    /// What came over the lifeline and is no whole line yet.
    received: Vec<u8>,
    /// The provider's process id, and its group's, once known.
    provider: Option<Pid>,
    /// The run's directory, which nobody else works in.
    directory: PathBuf,
    /// Not killed when dropped: it has work to do then. Tokio reaps it.
    _supervisor: Child,
}

impl Supervised {
    fn start(
        mut command: Command,
        stdin: Option<PipeReader>,
        program: PathBuf,
        directory: PathBuf,
    ) -> io::Result<Self> {
        let (ours, theirs) = StdUnixStream::pair()?;
        if let Some(stdin) = stdin {
            supervisor::pass_stdin(&ours, &stdin)?;
        }
        ours.set_nonblocking(true)?;
        let lifeline = UnixStream::from_std(ours)?;
        let child = command.stdin(Stdio::from(OwnedFd::from(theirs))).spawn()?;
        Ok(Self { program, lifeline, received: Vec::new(), provider: None, directory, _supervisor: child })
    }

    async fn ended(&mut self) -> Result<ExitStatus, HybridError> {
        loop {
            while let Some(length) = self.received.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.received.drain(..=length).collect();
                match Message::parse(&line) {
                    Some(Message::Started(pid)) => self.provider = Pid::from_raw(pid),
                    Some(Message::NotStarted(errno)) => {
                        let reason = os_reason(&io::Error::from_raw_os_error(errno));
                        return Err(HybridError::Start { program: self.program.clone(), reason });
                    }
                    Some(Message::Exited(code)) => return Ok(ExitStatus::from_raw(code << 8)),
                    Some(Message::Killed(signal)) => return Ok(ExitStatus::from_raw(signal)),
                    None => return Err(HybridError::Supervisor("it speaks in riddles".to_owned())),
                }
            }
            if self.lifeline.read_buf(&mut self.received).await.unwrap_or(0) == 0 {
                // Somebody killed it. What we can still reach of the provider is its group, if we were told of it, and
                // whoever still works in the run's directory.
                if let Some(provider) = self.provider {
                    let _ = rustix::process::kill_process_group(provider, Signal::KILL);
                }
                kill_those_in(&self.directory);
                return Err(HybridError::Supervisor("it ended before the provider".to_owned()));
            }
        }
    }
}

/// SIGKILL for every process whose working directory is this one, twice, for those that were being forked.
fn kill_those_in(directory: &Path) {
    for _ in 0..2 {
        let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok().and_then(Pid::from_raw));
        for pid in pids {
            let working = std::fs::read_link(format!("/proc/{}/cwd", pid.as_raw_pid()));
            if working.is_ok_and(|working| working == directory) {
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
        }
    }
}

/// Our own child and the leader of its process group, which is killed when this is dropped.
pub(super) struct Direct {
    child: Child,
    group: Option<Pid>,
}

impl Direct {
    fn start(mut command: Command, stdin: Option<PipeReader>) -> io::Result<Self> {
        let child = command.stdin(stdin.map_or_else(Stdio::null, Stdio::from)).spawn()?;
        let group = child.id().and_then(|pid| Pid::from_raw(pid as i32));
        Ok(Self { child, group })
    }

    async fn ended(&mut self) -> Result<ExitStatus, HybridError> {
        let status = self.child.wait().await;
        // The leader is reaped, yet its number stays taken while the group has a member; without one this finds nobody.
        self.signal(Signal::KILL);
        self.group = None;
        status.map_err(|error| HybridError::Supervisor(os_reason(&error)))
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = self.group {
            let _ = rustix::process::kill_process_group(group, signal);
        }
    }
}

impl Drop for Direct {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}
