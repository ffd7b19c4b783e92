//! The provider's two pipes, emptied while it runs so that it never waits for us, in bounded memory.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fs::File;
use std::io::{PipeReader, Read};
use std::os::fd::OwnedFd;

use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

use super::report::{LineSink, provider_line};

/// Bytes of stdout that are kept: the last ones, where the reply is.
const STDOUT_KEPT: usize = 64 << 10;
/// Lines of stderr that are kept for the reason.
const STDERR_KEPT: usize = 8;
/// Bytes of one line of stderr that are kept and forwarded.
const LINE_KEPT: usize = 1024;
/// Bytes taken from a pipe after the provider's end. A pipe holds no more (`/proc/sys/fs/pipe-max-size` is 1 MiB), so
/// what comes after them was written by a process that outlived it.
const LEFTOVER: usize = 1 << 20;

/// Both pipes and what is kept of them.
pub(super) struct Output {
    stdout: Drain,
    stderr: Drain,
    tail: Tail,
    lines: Lines,
}

impl Output {
    /// Takes the reading ends; needs a tokio runtime. Lines of stderr go on to `sink`.
    pub(super) fn new(stdout: PipeReader, stderr: PipeReader, sink: LineSink) -> std::io::Result<Self> {
        let lines = Lines { sink, line: Vec::new(), last: VecDeque::new() };
        Ok(Self { stdout: Drain::new(stdout)?, stderr: Drain::new(stderr)?, tail: Tail(Vec::new()), lines })
    }

    /// Empties both pipes until dropped, also after their end. Nothing is lost when the future is dropped.
    pub(super) async fn pump(&mut self) -> Infallible {
        loop {
            tokio::select! {
                bytes = self.stdout.next() => self.tail.push(bytes),
                bytes = self.stderr.next() => self.lines.push(bytes),
            }
        }
    }

    /// As [`pump`](Self::pump) until there is more of stdout, which goes to the caller; no bytes, once, at its end.
    pub(super) async fn next_stdout(&mut self) -> Vec<u8> {
        loop {
            tokio::select! {
                bytes = self.stdout.next() => return bytes.to_vec(),
                bytes = self.stderr.next() => self.lines.push(bytes),
            }
        }
    }

    /// The lines of stderr so far belong to something that is over, and explain nothing that comes.
    pub(super) fn forget_lines(&mut self) {
        self.lines.last.clear();
    }

    /// Takes what is in the pipes now that the writers have gone, without waiting for those that have not.
    /// Returns at least the last [`STDOUT_KEPT`] bytes of stdout and the last lines of stderr.
    pub(super) fn finish(&mut self) -> (Vec<u8>, Vec<String>) {
        let Self { stdout, stderr, tail, lines } = self;
        stdout.rest(|bytes| tail.push(bytes));
        stderr.rest(|bytes| lines.push(bytes));
        (std::mem::take(&mut tail.0), lines.finish())
    }
}

/// One pipe; `None` after its end.
struct Drain {
    pipe: Option<pipe::Receiver>,
    chunk: Vec<u8>,
}

impl Drain {
    fn new(reader: PipeReader) -> std::io::Result<Self> {
        let pipe = pipe::Receiver::from_owned_fd(OwnedFd::from(reader))?;
        Ok(Self { pipe: Some(pipe), chunk: vec![0; 16 << 10] })
    }

    /// The next bytes; none once at the end, then never returns.
    async fn next(&mut self) -> &[u8] {
        let Some(pipe) = &mut self.pipe else { return std::future::pending().await };
        let n_read = pipe.read(&mut self.chunk).await.unwrap_or(0);
        if n_read == 0 {
            self.pipe = None;
        }
        &self.chunk[..n_read]
    }

    /// Reads the descriptor itself: tokio only tries when its event loop has heard of the bytes.
    fn rest(&mut self, mut take: impl FnMut(&[u8])) {
        let Some(Ok(descriptor)) = self.pipe.take().map(pipe::Receiver::into_nonblocking_fd) else { return };
        let mut pipe = File::from(descriptor).take(LEFTOVER as u64);
        while let Ok(n_read @ 1..) = pipe.read(&mut self.chunk) {
            take(&self.chunk[..n_read]);
        }
    }
}

/// The last bytes of a stream.
struct Tail(Vec<u8>);

impl Tail {
    fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
        if self.0.len() > 2 * STDOUT_KEPT {
            self.0.drain(..self.0.len() - STDOUT_KEPT);
        }
    }
}

/// Splits stderr into lines, forwards each and keeps the last few.
struct Lines {
    sink: LineSink,
    /// The line that has not ended yet, up to [`LINE_KEPT`] bytes of it.
    line: Vec<u8>,
    last: VecDeque<String>,
}

impl Lines {
    fn push(&mut self, bytes: &[u8]) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let text = part.strip_suffix(b"\n").unwrap_or(part);
            let n_room = LINE_KEPT - self.line.len();
            self.line.extend_from_slice(&text[..text.len().min(n_room)]);
            if part.len() != text.len() {
                self.end_line();
            }
        }
    }

    fn end_line(&mut self) {
        let text = String::from_utf8_lossy(&self.line).trim_end().to_owned();
        self.line.clear();
        if text.is_empty() {
            return;
        }
        self.sink.say(&provider_line(&text));
        tracing::debug!(target: "onebit::provider", "{text}");
        if self.last.len() == STDERR_KEPT {
            self.last.pop_front();
        }
        self.last.push_back(text);
    }

    fn finish(&mut self) -> Vec<String> {
        self.end_line();
        std::mem::take(&mut self.last).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use std::sync::Arc;

    #[test]
    fn lines_are_forwarded_cut_and_counted() {
        let said = Arc::new(Mutex::new(Vec::new()));
        let sink = LineSink::new({
            let said = said.clone();
            move |line| said.lock().push(line.to_owned())
        });
        let mut lines = Lines { sink, line: Vec::new(), last: VecDeque::new() };
        for bytes in [&b"one\r\ntw"[..], b"o\n\n", b"\xff\x1b[31m\n", &[b'x'; 2_000_000], b"tail\nlast"] {
            lines.push(bytes);
        }
        let last = lines.finish();
        assert_eq!(last.len(), 5);
        assert_eq!((&*last[0], &*last[1], &*last[4]), ("one", "two", "last"));
        assert_eq!(last[3].len(), LINE_KEPT);
        let said = said.lock();
        assert_eq!((&*said[0], &*said[2]), ("provider: one", "provider: \u{fffd}\\u{1b}[31m"));
    }

    #[test]
    fn the_tail_is_the_tail() {
        let mut tail = Tail(Vec::new());
        for n in 0..300_000u32 {
            tail.push(format!("{n}\n").as_bytes());
        }
        assert!(tail.0.len() <= 2 * STDOUT_KEPT && tail.0.ends_with(b"299998\n299999\n"));
    }
}
