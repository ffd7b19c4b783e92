//! What the provider says and what we say: its JSON line, the two lines on stderr, and where lines go.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;

use super::error::{HybridError, quote};

/// The provider's answer: the one JSON line on its stdout.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
pub(super) struct Reply {
    /// Tokens it evaluated, which are the tokens in the state file.
    pub n_tokens: u64,
    /// The id that its logits rank first after the last of them.
    pub argmax: i32,
    /// How long it says it took, in milliseconds. We measure the whole run ourselves.
    pub prefill_ms: f64,
}

impl Reply {
    /// Reads the last line that is not blank: libraries greet on stdout, and a provider cannot always help it.
    ///
    /// Errors: `NoReply`, `NotJson`, `BadReply`.
    pub(super) fn parse(stdout: &[u8]) -> Result<Self, HybridError> {
        let last = stdout.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii).rfind(|line| !line.is_empty());
        let line = last.ok_or(HybridError::NoReply)?;
        let value: serde_json::Value = serde_json::from_slice(line)
            .map_err(|_| HybridError::NotJson(String::from_utf8_lossy(line).into_owned()))?;
        if !value.is_object() {
            return Err(HybridError::BadReply(format!("{value} is no object")));
        }
        serde_json::from_value(value).map_err(|error| HybridError::BadReply(error.to_string()))
    }

    /// Errors: `WrongCount` unless exactly `asked` tokens were evaluated.
    pub(super) fn expect(self, asked: usize) -> Result<Self, HybridError> {
        if self.n_tokens != asked as u64 {
            return Err(HybridError::WrongCount { evaluated: self.n_tokens, asked });
        }
        Ok(self)
    }
}

/// The numbers of one handoff.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct HandoffTimes {
    /// Tokens of the whole prompt.
    pub n_prompt: usize,
    /// The provider's run, from starting it to its end, as measured here.
    pub prefill: Duration,
    /// The engine's checks of the file, and its load.
    pub restore: Duration,
    /// From the moment the request got its turn to the first text of the answer.
    pub first_byte: Duration,
}

/// The line for a handoff that worked.
pub(super) fn handoff_line(times: &HandoffTimes) -> String {
    format!(
        "onebit serve: hybrid: {} prompt tokens: prefill {} ms, restore {} ms, first byte {} ms",
        times.n_prompt,
        whole_ms(times.prefill),
        whole_ms(times.restore),
        whole_ms(times.first_byte)
    )
}

/// The line for a handoff that did not.
pub(super) fn fallback_line(reason: &HybridError) -> String {
    format!("onebit serve: hybrid: {reason}; the backend prefills this request itself")
}

/// A line for a choice between two ways; another word than in the two lines, one of which programs expect for each request.
pub(super) fn choice_line(n_prompt: usize, what: &str, why: &str) -> String {
    format!("onebit serve: handoff: {n_prompt} prompt tokens: {what} ({why})")
}

/// A line of the provider's stderr as it is shown on ours.
pub(super) fn provider_line(line: &str) -> String {
    format!("provider: {}", quote(line))
}

fn whole_ms(duration: Duration) -> u64 {
    (duration.as_secs_f64() * 1e3).round() as u64
}

/// Where lines for the operator go: this process's stderr by default, anything else for tests and library callers.
#[derive(Clone)]
pub struct LineSink(Arc<dyn Fn(&str) + Send + Sync>);

impl LineSink {
    /// Calls `write` with each line, without its newline. It is called from async tasks, so it must not block for long.
    pub fn new(write: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self(Arc::new(write))
    }

    /// This process's stderr.
    pub fn stderr() -> Self {
        // One write for a line, so that lines of other threads do not mix into it; a closed stderr is not our problem.
        Self::new(|line| drop(std::io::stderr().write_all(format!("{line}\n").as_bytes())))
    }

    pub(super) fn say(&self, line: &str) {
        (self.0)(line);
    }
}

impl Default for LineSink {
    fn default() -> Self {
        Self::stderr()
    }
}

impl std::fmt::Debug for LineSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LineSink")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_lines_word_for_word() {
        let times = HandoffTimes {
            n_prompt: 22,
            prefill: Duration::from_micros(11_500),
            restore: Duration::from_micros(3_499),
            first_byte: Duration::from_micros(20_000),
        };
        assert_eq!(
            handoff_line(&times),
            "onebit serve: hybrid: 22 prompt tokens: prefill 12 ms, restore 3 ms, first byte 20 ms"
        );
        assert_eq!(
            fallback_line(&HybridError::NoStateFile),
            "onebit serve: hybrid: the provider wrote no state file; the backend prefills this request itself"
        );
    }

    #[test]
    fn replies() {
        let good = Reply { n_tokens: 22, argmax: 7, prefill_ms: 1.5 };
        let line = r#"{"n_tokens": 22, "argmax": 7, "prefill_ms": 1.5}"#;
        for stdout in [line.to_owned(), format!("{line}\n"), format!("hello\n\u{1b}[2J\n{line}\r\n\n  \n")] {
            assert_eq!(Reply::parse(stdout.as_bytes()), Ok(good), "{stdout}");
        }
        let more = r#"{"n_tokens": 22, "argmax": 7, "prefill_ms": 1, "device": "npu"}"#;
        assert_eq!(Reply::parse(more.as_bytes()).unwrap().prefill_ms, 1.0);
        assert_eq!(good.expect(22), Ok(good));
        assert_eq!(good.expect(21), Err(HybridError::WrongCount { evaluated: 22, asked: 21 }));
    }

    #[test]
    fn bad_replies() {
        let check = |stdout: &[u8], expected: &str| {
            assert_eq!(Reply::parse(stdout).unwrap_err().to_string(), expected);
        };
        check(b"", "the provider wrote no reply to stdout");
        check(b" \n\n", "the provider wrote no reply to stdout");
        check(b"done\n", "the provider's reply is not JSON: done");
        check(b"\xff{}", "the provider's reply is not JSON: \u{fffd}{}");
        check(b"22", "the provider's reply is not what the contract says: 22 is no object");
        let missing = "the provider's reply is not what the contract says: missing field `argmax`";
        check(br#"{"n_tokens": 22, "prefill_ms": 1}"#, missing);
        let reply = br#"{"n_tokens": -1, "argmax": 1, "prefill_ms": 1}"#;
        assert!(matches!(Reply::parse(reply), Err(HybridError::BadReply(_))));
    }
}
