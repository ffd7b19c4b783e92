//! A backend without a model, and a small HTTP client, for the tests of this module.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::{StreamExt, stream};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::EventStream;
use crate::{
    engine::{
        ChatPrompt, ChatRequest, EngineError, Event, FinishReason, GenerateOptions, ModelInfo, Piece, PromptReport,
        Report,
    },
    llama::Token,
};

/// What a [`Script`] does for each generation.
#[derive(Clone)]
pub enum Play {
    /// These items.
    Items(Vec<Result<Event, EngineError>>),
    /// These, then nothing for ever.
    ThenHang(Vec<Result<Event, EngineError>>),
    /// After a while, these.
    Late(Duration, Vec<Result<Event, EngineError>>),
    /// These, then a panic.
    ThenPanic(Vec<Result<Event, EngineError>>),
}

/// Prompt and options of a generation.
type Asked = (Vec<Token>, GenerateOptions);

/// A model of 256 tokens, the bytes, which plays a script instead of thinking.
#[derive(Clone)]
pub struct Script {
    info: Arc<ModelInfo>,
    play: Play,
    seen: Arc<Mutex<Vec<Asked>>>,
    n_running: Arc<AtomicUsize>,
}

impl Script {
    pub fn new(play: Play) -> Self {
        Self { info: Arc::new(info()), play, seen: Arc::default(), n_running: Arc::default() }
    }

    /// The same with `n_slots` slots.
    pub fn with_slots(mut self, n_slots: u32) -> Self {
        self.info = Arc::new(ModelInfo { n_slots, ..(*self.info).clone() });
        self
    }

    /// The same with another context.
    pub fn with_context(mut self, n_ctx: u32) -> Self {
        Arc::make_mut(&mut self.info).n_ctx = n_ctx;
        self
    }

    pub fn info(&self) -> &ModelInfo {
        &self.info
    }

    pub fn tokenize(&self, text: &str) -> Result<Vec<Token>, EngineError> {
        Ok(text.bytes().map(|byte| Token(byte.into())).collect())
    }

    pub fn apply_template(&self, request: &ChatRequest) -> Result<ChatPrompt, EngineError> {
        let messages = request.messages.as_array().unwrap();
        let line = |message: &Value| format!("{}:{}\n", message["role"].as_str().unwrap(), message["content"]);
        Ok(ChatPrompt {
            prompt: messages.iter().map(line).collect(),
            grammar: None,
            stop: vec!["<end>".into()],
            preserved_tokens: vec![Token(7)],
            parser_params: Value::Null,
        })
    }

    pub fn generate(&self, prompt: Vec<Token>, options: GenerateOptions) -> Result<EventStream, EngineError> {
        self.seen.lock().push((prompt, options));
        self.n_running.fetch_add(1, Ordering::SeqCst);
        let running = Running(self.n_running.clone());
        let (items, rest): (_, EventStream) = match self.play.clone() {
            Play::Items(items) => (items, stream::empty().boxed()),
            Play::ThenHang(items) => (items, stream::pending().boxed()),
            Play::Late(wait, items) => {
                let late = async move {
                    tokio::time::sleep(wait).await;
                    stream::iter(items)
                };
                (Vec::new(), stream::once(late).flatten().boxed())
            }
            Play::ThenPanic(items) => (items, stream::once(async { panic!("as the script says") }).boxed()),
        };
        Ok(Box::pin(stream::iter(items).chain(rest).inspect(move |_| _ = &running)))
    }

    /// The prompt and options of the one generation there was.
    pub fn seen(&self) -> Asked {
        let seen = self.seen.lock();
        assert_eq!(seen.len(), 1, "one generation");
        seen[0].clone()
    }

    /// Those of all generations.
    pub fn all_seen(&self) -> Vec<Asked> {
        self.seen.lock().clone()
    }

    pub fn n_started(&self) -> usize {
        self.seen.lock().len()
    }

    /// Waits until `n` generations are alive.
    pub async fn until_running(&self, n: usize) {
        let wait = async {
            while self.n_running.load(Ordering::SeqCst) != n {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(5), wait).await.expect("the number of running generations changes");
    }
}

struct Running(Arc<AtomicUsize>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn info() -> ModelInfo {
    ModelInfo {
        path: "/models/tiny-Q4_1.gguf".into(),
        description: "tiny".into(),
        architecture: "llama".into(),
        file_type: "Q4_1".into(),
        n_ctx: 64,
        n_slots: 1,
        generates: true,
        embeddings: None,
        n_ubatch: 64,
        n_ctx_train: 64,
        n_vocab: 256,
        vocab_type: 2,
        n_embd: 8,
        n_params: 1000,
        n_bytes: 4000,
        n_swa: 0,
        can_step_back: true,
        has_chat_template: true,
        adds_bos: false,
        device: "CPU".into(),
        state_bytes_full: 0,
        loaded_at: 1_790_000_000,
    }
}

/// The report of a generation that ran into an end token.
pub fn report(n_prompt: usize, n_generated: usize) -> Report {
    let prompt = PromptReport {
        n_prompt,
        n_cached: 0,
        restore: None,
        evaluate: Duration::from_millis(60),
        argmax: Token::default(),
    };
    Report {
        finish: FinishReason::EndOfText,
        prompt,
        n_generated,
        generate: Duration::from_millis(10),
        external_prefill: None,
        seed: 1,
    }
}

pub fn prompt() -> Result<Event, EngineError> {
    Ok(Event::Prompt(report(3, 0).prompt))
}

pub fn piece(text: &str) -> Result<Event, EngineError> {
    Ok(Event::Piece(Piece { text: text.into(), tokens: vec![Token(1)], ..Piece::default() }))
}

pub fn done(n_generated: usize) -> Result<Event, EngineError> {
    Ok(Event::Done(report(3, n_generated)))
}

/// A reply as it came over the wire.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    /// Status line and headers, in lower case.
    pub head: String,
    pub body: String,
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error} in {:?}", self.body))
    }

    /// The data of each SSE frame; comments are left out.
    pub fn frames(&self) -> Vec<&str> {
        let frames = self.body.strip_suffix("\n\n").unwrap_or(&self.body).split("\n\n");
        frames.filter(|frame| !frame.starts_with(':')).map(|frame| frame.strip_prefix("data: ").unwrap()).collect()
    }
}

/// Opens a connection and sends a request. HTTP/1.0, so that a streamed body comes as it is and ends with the
/// connection.
pub async fn send(address: std::net::SocketAddr, method: &str, path: &str, body: &[u8]) -> TcpStream {
    send_with(address, method, path, &["Host: localhost"], body).await
}

/// [`send`] with these header lines.
pub async fn send_with(
    address: std::net::SocketAddr,
    method: &str,
    path: &str,
    headers: &[&str],
    body: &[u8],
) -> TcpStream {
    let mut socket = TcpStream::connect(address).await.unwrap();
    let headers: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
    let head = format!("{method} {path} HTTP/1.0\r\n{headers}Content-Length: {}\r\n\r\n", body.len());
    socket.write_all(head.as_bytes()).await.unwrap();
    socket.write_all(body).await.unwrap();
    socket
}

/// Reads the reply up to the end of the connection.
pub async fn receive(mut socket: TcpStream) -> Reply {
    let mut bytes = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(20), socket.read_to_end(&mut bytes)).await;
    read.expect("the reply ends").expect("the connection is not reset");
    let text = String::from_utf8(bytes).expect("replies are UTF-8");
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no reply but {text:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Reply { status, head: head.to_lowercase(), body: body.to_owned() }
}
