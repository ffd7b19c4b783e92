//! The lines that pass between us and a resident provider: requests out, answers in, and whatever else it prints.

use std::collections::VecDeque;
use std::path::Path;

use serde_json::{Value, json};

use crate::hybrid::error::HybridError;
use crate::hybrid::report::Reply;
use crate::hybrid::slot_dir::RunDir;

/// Bytes of one line of stdout. An answer takes a hundred; what a longer line has beyond them is dropped.
const LINE_LIMIT: usize = 64 << 10;

/// The line that asks for the ids in `run_dir` to be evaluated. Paths are absolute.
///
/// Errors: `Ids` for a path that JSON cannot hold.
pub(super) fn request(id: u64, run_dir: &RunDir) -> Result<Vec<u8>, HybridError> {
    let text = |path: &Path| {
        let reason = || format!("{} is not UTF-8, which a resident provider's requests are", path.display());
        path.to_str().map(str::to_owned).ok_or_else(|| HybridError::Ids { reason: reason() })
    };
    let (tokens, out) = (text(run_dir.tokens_path())?, text(&run_dir.state_path())?);
    Ok(format!("{}\n", json!({"id": id, "tokens": tokens, "out": out})).into_bytes())
}

/// What one line of stdout is.
#[derive(Debug, PartialEq)]
pub(super) enum Line {
    /// The answer to the request that was asked for.
    Answer(Result<Reply, HybridError>),
    /// An answer under another id, which is given as JSON.
    Other(String),
    /// Anything else: a library greets.
    Noise,
}

/// Reads one line while the request `asked` is the one that is worked on; `None` between requests.
pub(super) fn read(line: &[u8], asked: Option<u64>) -> Line {
    let Ok(Value::Object(mut object)) = serde_json::from_slice(line) else { return Line::Noise };
    let id = match object.get("id") {
        Some(id) => id,
        // An answer that lost its id is no greeting.
        None if object.contains_key("n_tokens") => &Value::Null,
        None => return Line::Noise,
    };
    if asked.is_none() || id.as_u64() != asked {
        return Line::Other(id.to_string());
    }
    match object.remove("error") {
        None | Some(Value::Null) => {
            let reply = serde_json::from_value(Value::Object(object));
            Line::Answer(reply.map_err(|error| HybridError::BadReply(error.to_string())))
        }
        Some(Value::String(error)) => Line::Answer(Err(HybridError::Answered(error))),
        Some(error) => Line::Answer(Err(HybridError::Answered(error.to_string()))),
    }
}

/// Makes lines out of what comes from the pipe, in bounded memory.
#[derive(Default)]
pub(super) struct Lines {
    begun: Vec<u8>,
    whole: VecDeque<Vec<u8>>,
}

impl Lines {
    /// The lines in `bytes` are to be taken before the next call.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let text = part.strip_suffix(b"\n").unwrap_or(part);
            let n_room = LINE_LIMIT - self.begun.len();
            self.begun.extend_from_slice(&text[..text.len().min(n_room)]);
            if part.len() != text.len() {
                self.end_line();
            }
        }
    }

    /// At the end of the pipe, a line may lack its newline.
    pub(super) fn end_line(&mut self) {
        let line = std::mem::take(&mut self.begun);
        if !line.trim_ascii().is_empty() {
            self.whole.push_back(line);
        }
    }

    pub(super) fn next(&mut self) -> Option<Vec<u8>> {
        self.whole.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_and_what_is_none() {
        let check = |line: &str, expected: Line| assert_eq!(read(line.as_bytes(), Some(7)), expected, "{line}");
        let reply = Reply { n_tokens: 3, argmax: 5, prefill_ms: 1.5 };
        check(r#"{"id":7,"n_tokens":3,"argmax":5,"prefill_ms":1.5}"#, Line::Answer(Ok(reply)));
        let more = r#" {"device":"npu","n_tokens":3,"argmax":5,"prefill_ms":1.5,"id":7,"error":null} "#;
        check(more, Line::Answer(Ok(reply)));
        let failed = |text: &str| Line::Answer(Err(HybridError::Answered(text.to_owned())));
        check(r#"{"id":7,"error":"no NPU"}"#, failed("no NPU"));
        check(r#"{"id":7,"error":{"code":3},"n_tokens":3}"#, failed(r#"{"code":3}"#));
        let missing = HybridError::BadReply("missing field `argmax`".to_owned());
        check(r#"{"id":7,"n_tokens":3,"prefill_ms":1}"#, Line::Answer(Err(missing)));
        for (line, id) in [(r#"{"id":6}"#, "6"), (r#"{"id":"7"}"#, r#""7""#), (r#"{"n_tokens":3}"#, "null")] {
            check(line, Line::Other(id.to_owned()));
        }
        for line in ["", "hello", "7", "[7]", "{}", r#"{"level":"info"}"#, r#"{"id":7"#] {
            check(line, Line::Noise);
        }
        assert_eq!(read(br#"{"id":7,"error":"late"}"#, None), Line::Other("7".to_owned()));
        assert_eq!(read(b"\xff", Some(7)), Line::Noise);
    }

    #[test]
    fn lines_are_cut_and_blank_ones_are_none() {
        let mut lines = Lines::default();
        for bytes in [&b"one\r\n\ntw"[..], b"o\n", &[b'x'; 200_000], b"\nthree"] {
            lines.push(bytes);
        }
        lines.end_line();
        let all: Vec<Vec<u8>> = std::iter::from_fn(|| lines.next()).collect();
        assert_eq!(all.iter().map(Vec::len).collect::<Vec<_>>(), [4, 3, LINE_LIMIT, 5]);
        assert_eq!((&*all[0], &*all[1], &*all[3]), (&b"one\r"[..], &b"two"[..], &b"three"[..]));
    }
}
