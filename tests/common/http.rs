//! HTTP/1.1 as far as the tests need it: one request a connection, so that hanging up is closing a socket.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// No reply keeps a test waiting longer than this between two bytes.
const READ_LIMIT: Duration = Duration::from_secs(300);

/// A request that was sent. Dropping it hangs up.
pub struct Exchange {
    stream: TcpStream,
    received: Vec<u8>,
}

/// A whole reply.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub content_type: String,
    pub body: String,
}

impl Exchange {
    /// Connects and sends; a body makes it a POST.
    pub fn open(address: SocketAddr, path: &str, body: Option<&Value>) -> io::Result<Self> {
        let method = if body.is_some() { "POST" } else { "GET" };
        Self::send(address, method, path, body.map(Value::to_string).unwrap_or_default().as_bytes())
    }

    fn send(address: SocketAddr, method: &str, path: &str, body: &[u8]) -> io::Result<Self> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(READ_LIMIT))?;
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
            body.len()
        )?;
        stream.write_all(body)?;
        Ok(Self { stream, received: Vec::new() })
    }

    /// Reads until `text` has arrived.
    pub fn read_until(&mut self, text: &str) -> io::Result<()> {
        while !self.received.windows(text.len()).any(|window| window == text.as_bytes()) {
            let mut chunk = [0; 4096];
            match self.stream.read(&mut chunk)? {
                0 => return Err(io::Error::other(format!("the reply ended without {text:?}"))),
                n_read => self.received.extend_from_slice(&chunk[..n_read]),
            }
        }
        Ok(())
    }

    /// Reads to the end.
    pub fn finish(mut self) -> io::Result<Reply> {
        self.stream.read_to_end(&mut self.received)?;
        Reply::parse(&self.received).ok_or_else(|| {
            io::Error::other(format!("not an HTTP reply: {:?}", String::from_utf8_lossy(&self.received)))
        })
    }
}

/// Sends any method and body, and reads to the end.
pub fn raw(address: SocketAddr, method: &str, path: &str, body: &[u8]) -> io::Result<Reply> {
    Exchange::send(address, method, path, body)?.finish()
}

/// Sends and reads to the end.
pub fn exchange(address: SocketAddr, path: &str, body: Option<&Value>) -> io::Result<Reply> {
    Exchange::open(address, path, body)?.finish()
}

impl Reply {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let head_len = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
        let head = std::str::from_utf8(&bytes[..head_len]).ok()?;
        let status = head.split(' ').nth(1)?.parse().ok()?;
        let header = |name: &str| {
            let lines = head.lines().filter_map(|line| line.split_once(':'));
            lines.into_iter().find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
        };
        let body = &bytes[head_len + 4..];
        let body = match header("transfer-encoding") {
            Some("chunked") => join_chunks(body)?,
            _ => body.get(..header("content-length")?.parse().ok()?)?.to_vec(),
        };
        let content_type = header("content-type").unwrap_or_default().to_owned();
        Some(Self { status, content_type, body: String::from_utf8(body).ok()? })
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error} in {:?}", self.body))
    }

    pub fn is_event_stream(&self) -> bool {
        self.content_type.starts_with("text/event-stream")
    }

    /// The data of each server-sent event; comments are left out.
    pub fn events(&self) -> Vec<&str> {
        self.body.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).collect()
    }
}

/// `None` unless the last chunk, of length 0, is there.
fn join_chunks(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut joined = Vec::new();
    loop {
        let line_len = rest.windows(2).position(|window| window == b"\r\n")?;
        let chunk_len = usize::from_str_radix(std::str::from_utf8(&rest[..line_len]).ok()?, 16).ok()?;
        rest = &rest[line_len + 2..];
        if chunk_len == 0 {
            return Some(joined);
        }
        joined.extend_from_slice(rest.get(..chunk_len)?);
        rest = rest.get(chunk_len + 2..)?;
    }
}
