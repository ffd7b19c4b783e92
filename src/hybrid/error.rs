//! Why a handoff did not happen. Every variant's text is one line that can stand as `<reason>` in the fallback line.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::Signal;

/// Longest text quoted from outside (a reply, stderr lines, an engine's reason), in characters.
const MAX_QUOTE: usize = 400;

/// Why the provider's work could not be used.
///
/// Texts that come from outside (stderr, stdout, paths) are kept as they were; `Display` quotes them with control
/// characters escaped and cut to a bounded length, so it never spans lines.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum HybridError {
    /// Nobody named a provider.
    #[error("no prefill provider (name one with --prefill-provider or ONEBIT_HYBRID_PREFILL)")]
    NoProvider,
    /// A one-token prompt for a model that cannot step back: the one token is evaluated here anyway.
    #[error("the prompt has one token, which is evaluated here: nothing to hand over")]
    NothingToHandOver,
    /// The slot directory cannot be made.
    #[error("cannot use the slot directory {}: {reason}", quote(.path.to_string_lossy()))]
    SlotDir {
        /// The directory, or the one it was to be made in.
        path: PathBuf,
        /// The operating system's word.
        reason: String,
    },
    /// The prompt's ids cannot be written (a full disk, say).
    #[error("cannot write the prompt's ids into the slot directory: {reason}")]
    Ids {
        /// The operating system's word.
        reason: String,
    },
    /// The provider's program cannot be executed.
    #[error("cannot start the provider {}: {reason}", quote(.program.to_string_lossy()))]
    Start {
        /// The program as it was looked for.
        program: PathBuf,
        /// The operating system's word.
        reason: String,
    },
    /// The supervisor (see [`supervisor`](super::supervisor)) cannot be started, or ended before the provider.
    #[error("the provider's supervisor failed: {0}")]
    Supervisor(String),
    /// An exit status other than 0.
    #[error("the provider exited with status {code}{}", tail(.stderr))]
    Exited {
        /// The status.
        code: i32,
        /// The last lines it wrote to stderr.
        stderr: Vec<String>,
    },
    /// A signal ended it.
    #[error("the provider was killed by signal {signal}{}{}", signal_name(*.signal), tail(.stderr))]
    Killed {
        /// The signal's number.
        signal: i32,
        /// The last lines it wrote to stderr.
        stderr: Vec<String>,
    },
    /// The deadline passed; the whole process group was ended.
    #[error("the provider did not finish within {} s{}", .after.as_secs_f64(), tail(.stderr))]
    TimedOut {
        /// The deadline.
        after: Duration,
        /// The last lines it wrote to stderr.
        stderr: Vec<String>,
    },
    /// Nothing on stdout.
    #[error("the provider wrote no reply to stdout")]
    NoReply,
    /// The last line on stdout is not JSON.
    #[error("the provider's reply is not JSON: {}", quote(.0))]
    NotJson(String),
    /// The reply is JSON, but not the contract's object.
    #[error("the provider's reply is not what the contract says: {}", quote(.0))]
    BadReply(String),
    /// `n_tokens` is not the number of ids in the tokens file.
    #[error("the provider evaluated {evaluated} tokens, {asked} were asked")]
    WrongCount {
        /// `n_tokens` of the reply.
        evaluated: u64,
        /// Ids in the tokens file.
        asked: usize,
    },
    /// No file under the name given by `--out`.
    #[error("the provider wrote no state file")]
    NoStateFile,
    /// What stands under that name is no use.
    #[error("the provider's state file {0}")]
    StateFile(String),
    /// The engine refused the state; the sequence is empty again.
    #[error("{}", quote(.0))]
    Refused(String),
    /// A resident provider answered the request with an error.
    #[error("the provider answers: {}", quote(.0))]
    Answered(String),
    /// A resident provider can take no more requests, or answer none.
    #[error("the provider closed its {pipe}{}", tail(.stderr))]
    HungUp {
        /// `stdin` or `stdout`.
        pipe: &'static str,
        /// The last lines it wrote to stderr.
        stderr: Vec<String>,
    },
    /// A resident provider answered, under an id that is not the request's. Only `onebit provider check` makes it a reason.
    #[error("the provider answers under the id {}, where {asked} was asked", quote(.answered))]
    WrongId {
        /// The `id` of the answer, as JSON.
        answered: String,
        /// The request's.
        asked: u64,
    },
    /// A resident provider has failed and is not started again yet.
    #[error("the provider is started again in {:.1} s: {reason}", .pause.as_secs_f64())]
    Resting {
        /// From now to the next start.
        pause: Duration,
        /// Why it failed.
        reason: Box<HybridError>,
    },
    /// The server is going down, or the client has gone. Nothing is prefilled after this one.
    #[error("the handoff was stopped")]
    Stopped,
}

/// The operating system's sentence without Rust's ` (os error 2)`.
pub(super) fn os_reason(error: &io::Error) -> String {
    let text = error.to_string();
    match text.find(" (os error ") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}

/// `text` on one line: control characters and line separators escaped, at most [`MAX_QUOTE`] characters.
pub(super) fn quote(text: impl AsRef<str>) -> String {
    let mut quoted = String::new();
    for (n, c) in text.as_ref().trim_end().chars().enumerate() {
        if n == MAX_QUOTE {
            quoted.push_str("...");
            break;
        }
        // The separators and direction overrides are no control characters, yet a terminal or log viewer obeys them.
        if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}') {
            quoted.extend(c.escape_default());
        } else {
            quoted.push(c);
        }
    }
    quoted
}

/// `: a | b | c`, as many of the last lines as fit into one quote; nothing without lines.
fn tail(lines: &[String]) -> String {
    let mut kept: Vec<String> = Vec::new();
    let mut n_chars = 0;
    for line in lines.iter().rev().map(quote) {
        n_chars += line.chars().count() + 3;
        if n_chars > MAX_QUOTE && !kept.is_empty() {
            break;
        }
        kept.push(line);
    }
    if kept.is_empty() {
        return String::new();
    }
    kept.reverse();
    format!(": {}", kept.join(" | "))
}

/// ` (SIGKILL)`; nothing for a signal without a common name.
fn signal_name(number: i32) -> String {
    const NAMES: [(Signal, &str); 12] = [
        (Signal::HUP, "SIGHUP"),
        (Signal::INT, "SIGINT"),
        (Signal::QUIT, "SIGQUIT"),
        (Signal::ILL, "SIGILL"),
        (Signal::TRAP, "SIGTRAP"),
        (Signal::ABORT, "SIGABRT"),
        (Signal::BUS, "SIGBUS"),
        (Signal::FPE, "SIGFPE"),
        (Signal::KILL, "SIGKILL"),
        (Signal::SEGV, "SIGSEGV"),
        (Signal::PIPE, "SIGPIPE"),
        (Signal::TERM, "SIGTERM"),
    ];
    let known = NAMES.iter().find(|(signal, _)| signal.as_raw() == number);
    known.map_or_else(String::new, |(_, name)| format!(" ({name})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(error: HybridError, expected: &str) {
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn reasons_word_for_word() {
        let stderr = || vec!["loading".to_owned(), "no NPU\tfound".to_owned()];
        check(
            HybridError::NoProvider,
            "no prefill provider (name one with --prefill-provider or ONEBIT_HYBRID_PREFILL)",
        );
        check(
            HybridError::Start { program: "/x/y".into(), reason: os_reason(&io::Error::from_raw_os_error(2)) },
            "cannot start the provider /x/y: No such file or directory",
        );
        check(
            HybridError::Exited { code: 3, stderr: stderr() },
            r"the provider exited with status 3: loading | no NPU\tfound",
        );
        check(HybridError::Exited { code: 3, stderr: vec![] }, "the provider exited with status 3");
        check(HybridError::Killed { signal: 9, stderr: vec![] }, "the provider was killed by signal 9 (SIGKILL)");
        check(HybridError::Killed { signal: 63, stderr: vec![] }, "the provider was killed by signal 63");
        let timed_out = |after| HybridError::TimedOut { after, stderr: vec![] };
        check(timed_out(Duration::from_secs(120)), "the provider did not finish within 120 s");
        check(timed_out(Duration::from_millis(1500)), "the provider did not finish within 1.5 s");
        check(HybridError::WrongCount { evaluated: 21, asked: 22 }, "the provider evaluated 21 tokens, 22 were asked");
        check(HybridError::NotJson("a\u{1b}[2Jb\nc".into()), r"the provider's reply is not JSON: a\u{1b}[2Jb\nc");
    }

    #[test]
    fn a_reason_is_bounded_and_keeps_the_last_lines() {
        let stderr: Vec<String> = (0..8).map(|n| format!("{n} {}", "x".repeat(150))).collect();
        let reason = HybridError::Exited { code: 1, stderr }.to_string();
        assert!(reason.chars().count() < 500 && reason.contains(": 6 xxx") && reason.contains(" | 7 xxx"), "{reason}");
        let reason = HybridError::Exited { code: 1, stderr: vec!["y".repeat(9000)] }.to_string();
        assert!(reason.chars().count() < 500 && reason.ends_with("..."), "{reason}");
    }
}
