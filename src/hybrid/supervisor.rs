//! A small process between the server and the provider, so that the provider cannot outlive the server.
//!
//! A server that gets SIGKILL can clean up nothing, and a grandchild that called `setsid` is in no group we know. So the
//! `onebit` binary runs itself once more as `onebit __supervise-provider PROGRAM ARGS...`: that process becomes the
//! reaper of its descendants (`PR_SET_CHILD_SUBREAPER`, Linux), runs the program in a process group of its own, and
//! when the program ends, or the server is gone, or a signal says so, it kills every descendant, however deep.
//!
//! Its stdin is a socket to the server, the lifeline: the end of file means that the server is gone or wants everything
//! dead; the byte `t` means SIGTERM for the group. Over it the supervisor tells what happens, one [`Message`] a line, the
//! last one only when all descendants are dead. Stdout and stderr are the provider's own. A provider that gets requests on
//! its stdin (`onebit __supervise-resident-provider`) has that pipe from the lifeline too: its descriptor is the first
//! message.

use std::ffi::OsString;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::time::Duration;

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitOptions};
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::signal::unix::{Signal as SignalStream, SignalKind, signal};
use tokio::time::{Instant, timeout};

/// First argument of the process that is to be a supervisor.
pub const WORD: &str = "__supervise-provider";

/// The same for one whose provider gets a pipe as its stdin, which [`pass_stdin`] has sent ahead.
pub(super) const WORD_STDIN: &str = "__supervise-resident-provider";

/// On the lifeline: send SIGTERM to the provider's group.
pub(super) const TERMINATE: u8 = b't';

/// How long killed processes may take to die before they are left to the kernel (one stuck in a driver call cannot die).
const DEATH_LIMIT: Duration = Duration::from_secs(3);

/// Becomes a supervisor if the first argument says so, and returns the exit code to end with.
///
/// To be called first thing in `main` of a binary whose path is given as
/// [`HybridConfig::supervisor`](super::HybridConfig::supervisor):
///
/// ```no_run
/// fn main() -> std::process::ExitCode {
///     if let Some(code) = onebit::hybrid::supervisor::run_if_asked() {
///         return code;
///     }
///     // the program itself
/// #   std::process::ExitCode::SUCCESS
/// }
/// ```
///
/// The code is the provider's own; 128 + N when signal N ended it; 127 when it cannot be started.
pub fn run_if_asked() -> Option<ExitCode> {
    let mut args = std::env::args_os().skip(1);
    let word = args.next().filter(|word| word == WORD || word == WORD_STDIN)?;
    let name = word.to_string_lossy();
    let Some(program) = args.next() else {
        eprintln!("onebit {name}: for onebit's own use; needs a program");
        return Some(ExitCode::from(2));
    };
    let code = match supervise(program, args.collect(), word == WORD_STDIN) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("onebit {name}: {error}");
            125
        }
    };
    Some(ExitCode::from(code))
}

fn supervise(program: OsString, args: Vec<OsString>, has_stdin: bool) -> io::Result<u8> {
    let stdin = if has_stdin { Stdio::from(receive_stdin()?) } else { Stdio::null() };
    // No threads: a runtime of the current thread is little more than one epoll descriptor.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut lifeline = Lifeline::new()?;
        let mut signals = Signals::new()?;
        become_reaper()?;
        let started = Command::new(&program).args(args).process_group(0).stdin(stdin).spawn();
        let provider = match started {
            // Waited for below, together with the orphans.
            Ok(child) => Pid::from_child(&child),
            Err(error) => {
                lifeline.tell(Message::NotStarted(error.raw_os_error().unwrap_or(0)));
                return Ok(127);
            }
        };
        // A resident provider that closes its stdout is at its end, which the server must see: so it is not ours too.
        if has_stdin && let Ok(nowhere) = std::fs::File::options().write(true).open("/dev/null") {
            let _ = rustix::stdio::dup2_stdout(nowhere);
        }
        lifeline.tell(Message::Started(provider.as_raw_pid()));
        until_over(provider, &mut lifeline, &mut signals).await;
        let status = end_everything(provider, &mut signals).await;
        lifeline.tell(match status.signal() {
            Some(signal) => Message::Killed(signal),
            None => Message::Exited(status.code().unwrap_or(-1)),
        });
        Ok(status.code().or(status.signal().map(|signal| 128 + signal)).map_or(255, |code| code as u8))
    })
}

/// Sends what is to be the provider's stdin over the lifeline, before the supervisor is started.
pub(super) fn pass_stdin(lifeline: &StdUnixStream, stdin: &impl AsFd) -> io::Result<()> {
    let descriptors = [stdin.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut message = SendAncillaryBuffer::new(&mut space);
    message.push(SendAncillaryMessage::ScmRights(&descriptors));
    // A descriptor travels with at least one byte.
    sendmsg(lifeline, &[IoSlice::new(b"i")], &mut message, SendFlags::empty())?;
    Ok(())
}

/// It is there already when we start, so this does not wait.
fn receive_stdin() -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut message = RecvAncillaryBuffer::new(&mut space);
    recvmsg(io::stdin(), &mut [IoSliceMut::new(&mut [0])], &mut message, RecvFlags::empty())?;
    let received = message.drain().find_map(|part| match part {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    let stdin = received.ok_or_else(|| io::Error::other("the provider's stdin did not arrive"))?;
    // Of us, only the provider gets it, as descriptor 0: else its end would not be seen.
    fcntl_setfd(&stdin, FdFlags::CLOEXEC)?;
    Ok(stdin)
}

#[cfg(target_os = "linux")]
fn become_reaper() -> io::Result<()> {
    Ok(rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?)
}

#[cfg(not(target_os = "linux"))]
fn become_reaper() -> io::Result<()> {
    Ok(())
}

/// Returns when the provider has ended, or has to.
async fn until_over(provider: Pid, lifeline: &mut Lifeline, signals: &mut Signals) {
    while !has_ended(provider) {
        tokio::select! {
            news = signals.next() => match news {
                News::Child => {}
                News::End => return,
            },
            command = lifeline.command() => match command {
                Some(TERMINATE) => drop(rustix::process::kill_process_group(provider, Signal::TERM)),
                Some(_) => {}
                None => return,
            },
        }
    }
}

/// Whether the provider is a zombie: as long as nobody has waited for it, its number and its group's stay its own.
fn has_ended(provider: Pid) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    !matches!(rustix::process::waitid(WaitId::Pid(provider), options), Ok(None))
}

/// Kills the provider's group, then whoever is left, round by round: the children of a killed process become ours.
/// Returns the provider's status when nobody is left, or after [`DEATH_LIMIT`].
async fn end_everything(provider: Pid, signals: &mut Signals) -> ExitStatus {
    // A group is killed at one stroke; what forks all the time could otherwise stay ahead of us for long.
    let _ = rustix::process::kill_process_group(provider, Signal::KILL);
    let deadline = Instant::now() + DEATH_LIMIT;
    let mut provider_status = ExitStatus::from_raw(Signal::KILL.as_raw());
    while Instant::now() < deadline {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) if pid == provider => provider_status = ExitStatus::from_raw(status.as_raw()),
            Ok(Some(_)) => {}
            Err(_) => break,
            Ok(None) => {
                kill_children();
                // The bound is for children that became ours after we looked.
                let _ = timeout(Duration::from_millis(10), signals.child.recv()).await;
            }
        }
    }
    provider_status
}

/// SIGKILL for every process whose parent we are.
fn kill_children() {
    let our_pid = rustix::process::getpid();
    // `/proc/self/task/*/children` would name them, but not on every kernel, and it may skip some while others die.
    let Ok(processes) = std::fs::read_dir("/proc") else { return };
    let pids = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    for pid in pids.filter_map(Pid::from_raw) {
        if parent_of(pid) == Some(our_pid) {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
    }
}

/// Field 4 of `/proc/PID/stat`, counted after the name, which is in parentheses and may hold any byte (proc_pid_stat(5)).
fn parent_of(pid: Pid) -> Option<Pid> {
    let stat = std::fs::read(format!("/proc/{}/stat", pid.as_raw_pid())).ok()?;
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    let fields = std::str::from_utf8(&stat[name_end + 1..]).ok()?;
    Pid::from_raw(fields.split_ascii_whitespace().nth(1)?.parse().ok()?)
}

/// The signals we act on; set up before the provider starts so that none is missed.
struct Signals {
    child: SignalStream,
    term: SignalStream,
    int: SignalStream,
    hup: SignalStream,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            child: signal(SignalKind::child())?,
            term: signal(SignalKind::terminate())?,
            int: signal(SignalKind::interrupt())?,
            hup: signal(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) -> News {
        tokio::select! {
            _ = self.child.recv() => News::Child,
            _ = self.term.recv() => News::End,
            _ = self.int.recv() => News::End,
            _ = self.hup.recv() => News::End,
        }
    }
}

enum News {
    /// A child of ours has ended, or several.
    Child,
    /// We are to end.
    End,
}

/// The socket on our stdin.
struct Lifeline(UnixStream);

impl Lifeline {
    fn new() -> io::Result<Self> {
        let stdin = StdUnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        stdin.set_nonblocking(true)?;
        Ok(Self(UnixStream::from_std(stdin)?))
    }

    /// The next command, `None` at the end. Can be dropped without losing one.
    async fn command(&mut self) -> Option<u8> {
        self.0.read_u8().await.ok()
    }

    /// Short enough for any socket's buffer. When it does not arrive, the server is gone, and the end of file says so.
    fn tell(&self, message: Message) {
        let _ = rustix::io::write(&self.0, message.to_line().as_bytes());
    }
}

/// What a supervisor tells over the lifeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// The provider runs, under this process id, which is its group's too.
    Started(i32),
    /// It cannot be started: the `errno`, 0 when there is none.
    NotStarted(i32),
    /// It ended with this status, and all its descendants are dead.
    Exited(i32),
    /// This signal ended it, and all its descendants are dead.
    Killed(i32),
}

impl Message {
    fn to_line(self) -> String {
        match self {
            Message::Started(pid) => format!("started {pid}\n"),
            Message::NotStarted(errno) => format!("not-started {errno}\n"),
            Message::Exited(code) => format!("exited {code}\n"),
            Message::Killed(signal) => format!("killed {signal}\n"),
        }
    }

    pub(super) fn parse(line: &[u8]) -> Option<Self> {
        let (word, number) = std::str::from_utf8(line).ok()?.trim_end().split_once(' ')?;
        let number = number.parse().ok()?;
        match word {
            "started" => Some(Message::Started(number)),
            "not-started" => Some(Message::NotStarted(number)),
            "exited" => Some(Message::Exited(number)),
            "killed" => Some(Message::Killed(number)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_the_way() {
        for message in [Message::Started(12), Message::NotStarted(2), Message::Exited(0), Message::Killed(9)] {
            assert_eq!(Message::parse(message.to_line().as_bytes()), Some(message));
        }
        for line in [&b""[..], b"exited", b"exited x\n", b"hello 1\n", b"\xff 1\n"] {
            assert_eq!(Message::parse(line), None);
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn our_parent_is_our_parent() {
        assert_eq!(parent_of(rustix::process::getpid()), rustix::process::getppid());
        assert_eq!(parent_of(Pid::from_raw(i32::MAX).unwrap()), None);
    }
}
