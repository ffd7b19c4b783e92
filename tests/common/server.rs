//! The real `onebit serve`, as a process of its own.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::http::{self, Exchange, Reply};
use super::model;
use super::process::{SOON, resident_mebibytes, until, wait_for};
use super::request::{Answer, Request};

/// Longer than the ten seconds that a server may take to end.
const END_LIMIT: Duration = Duration::from_secs(30);

const LISTENING: &str = "onebit serve: listening on http://";
const HYBRID: &str = "onebit serve: hybrid: ";
const FALLBACK_END: &str = "; the backend prefills this request itself";

/// A server to be started. None of this process's `ONEBIT_*` variables reach it.
pub struct Setup {
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
}

impl Setup {
    /// `onebit serve` with these arguments and nothing else.
    pub fn bare<A: Into<OsString>>(args: impl IntoIterator<Item = A>) -> Self {
        Self { args: args.into_iter().map(Into::into).collect(), env: Vec::new() }
    }

    /// The tiny model on a free port. One thread, because the tests run side by side.
    pub fn device(device: &str) -> Self {
        Self::bare(["--port", "0", "--threads", "1", "--device", device])
            .env("ONEBIT_PREFILL_THREADS", "1")
            .flag("--model", model::tiny())
    }

    pub fn cpu() -> Self {
        Self::device("cpu")
    }

    /// One more argument.
    pub fn arg(mut self, value: impl Into<OsString>) -> Self {
        self.args.push(value.into());
        self
    }

    /// More arguments.
    pub fn args(mut self, values: &[&str]) -> Self {
        self.args.extend(values.iter().map(OsString::from));
        self
    }

    /// A flag with its value. Of two with the same name, clap takes none: see [`Self::replace`].
    pub fn flag(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.args.extend([name.into(), value.into()]);
        self
    }

    /// Another value for a flag that was given.
    pub fn replace(mut self, name: &str, value: impl Into<OsString>) -> Self {
        let position = self.args.iter().position(|arg| arg == name).expect("the flag was given");
        self.args[position + 1] = value.into();
        self
    }

    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.env.push((name.into(), value.as_ref().to_owned()));
        self
    }

    fn spawn(self) -> Running {
        let mut command = Command::new(env!("CARGO_BIN_EXE_onebit"));
        let ours = std::env::vars_os().map(|(name, _)| name);
        for name in ours.filter(|name| name.as_encoded_bytes().starts_with(b"ONEBIT_")) {
            command.env_remove(name);
        }
        command.arg("serve").args(self.args).envs(self.env);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        Running::new(command.spawn().unwrap())
    }

    /// Starts it and waits until it is ready.
    pub fn start(self) -> Server {
        let mut server = self.listen();
        wait_for("the server is ready", SOON, || {
            server.running.assert_alive();
            let reply = http::exchange(server.address, "/health", None).ok()?;
            assert!(matches!(reply.status, 200 | 503), "{reply:?}");
            (reply.status == 200).then_some(())
        });
        server
    }

    /// Starts it and waits until its port is open, which it is before the model is loaded.
    pub fn listen(self) -> Server {
        let mut running = self.spawn();
        let lines = running.lines.clone();
        let address: SocketAddr = wait_for("the server listens", SOON, || {
            running.assert_alive();
            lines.lock().iter().find_map(|line| line.strip_prefix(LISTENING)?.parse().ok())
        });
        Server { address, running, n_lines_seen: Mutex::new(0) }
    }

    /// Starts it and waits for its end, which is to come by itself: the exit code, and what it said.
    pub fn run(self) -> (Option<i32>, Vec<String>) {
        let mut running = self.spawn();
        let status = running.wait();
        let lines = running.lines.lock().clone();
        (status.code(), lines)
    }
}

/// A child and what it writes to stderr. Dropping it kills it, and shows what it said if a test is failing.
struct Running {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
    reader: Option<JoinHandle<()>>,
}

impl Running {
    fn new(mut child: Child) -> Self {
        let stderr = BufReader::new(child.stderr.take().expect("it is piped"));
        let lines = Arc::new(Mutex::new(Vec::new()));
        let reader = std::thread::spawn({
            let lines = lines.clone();
            move || {
                for line in stderr.split(b'\n').map_while(Result::ok) {
                    lines.lock().push(String::from_utf8_lossy(&line).into_owned());
                }
            }
        });
        Self { child, lines, reader: Some(reader) }
    }

    fn assert_alive(&mut self) {
        assert_eq!(self.child.try_wait().unwrap(), None, "the server has ended");
    }

    /// The status, once everything that it wrote is in `lines`.
    fn wait(&mut self) -> ExitStatus {
        let status = wait_for("the server ends", END_LIMIT, || {
            let mebibytes = resident_mebibytes(self.child.id());
            assert!(mebibytes < 1024, "the server takes {mebibytes} MiB");
            self.child.try_wait().unwrap()
        });
        if let Some(reader) = self.reader.take() {
            // The end of its stderr: nobody that it started holds it any more.
            until("the end of stderr", SOON, || reader.is_finished());
            reader.join().unwrap();
        }
        status
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- the server said:\n{}\n---", self.lines.lock().join("\n"));
        }
    }
}

/// A server that listens.
pub struct Server {
    pub address: SocketAddr,
    running: Running,
    n_lines_seen: Mutex<usize>,
}

/// The line that each request to a hybrid server leaves on stderr.
#[derive(Clone, Debug, PartialEq)]
pub enum HybridLine {
    /// The prompt came from the provider.
    Handoff { n_prompt: usize },
    /// It did not, for this reason.
    Fallback(String),
}

impl HybridLine {
    fn parse(line: &str) -> Option<Self> {
        let text = line.strip_prefix(HYBRID)?;
        if let Some(reason) = text.strip_suffix(FALLBACK_END) {
            return Some(Self::Fallback(reason.to_owned()));
        }
        Some(Self::handoff(line).unwrap_or_else(|| panic!("neither of the two lines: {line:?}")))
    }

    /// The line is read into its numbers and written again, which must give the same.
    fn handoff(line: &str) -> Option<Self> {
        let digits = |word: &str| word.bytes().all(|byte| byte.is_ascii_digit()).then(|| word.parse().ok()).flatten();
        let numbers: Vec<usize> = line.split([' ', ',']).filter(|word| !word.is_empty()).filter_map(digits).collect();
        let [n_prompt, prefill, restore, first_byte] = numbers[..] else { return None };
        let written = format!(
            "onebit serve: hybrid: {n_prompt} prompt tokens: \
             prefill {prefill} ms, restore {restore} ms, first byte {first_byte} ms"
        );
        assert_eq!(line, written);
        // The sum of it all; each number is rounded.
        assert!(first_byte + 1 >= prefill + restore, "{line}");
        Some(Self::Handoff { n_prompt })
    }
}

impl Server {
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn pid(&self) -> i32 {
        Pid::from_child(&self.running.child).as_raw_pid()
    }

    /// Asks and reads the answer, which is to be a good one.
    pub fn ask(&self, request: &Request) -> Answer {
        Answer::read(&self.post(request.path, &request.body))
    }

    pub fn post(&self, path: &str, body: &Value) -> Reply {
        http::exchange(self.address, path, Some(body)).unwrap()
    }

    /// Sends a request and leaves the reply to be read, or not.
    pub fn send(&self, request: &Request) -> Exchange {
        Exchange::open(self.address, request.path, Some(&request.body)).unwrap()
    }

    /// The next line of a request, waiting for it if need be.
    pub fn hybrid_line(&self) -> HybridLine {
        let mut n_seen = self.n_lines_seen.lock();
        wait_for("a line about a handoff", SOON, || {
            let lines = self.running.lines.lock();
            let (n, line) =
                lines.iter().enumerate().skip(*n_seen).find_map(|(n, line)| Some((n, HybridLine::parse(line)?)))?;
            *n_seen = n + 1;
            Some(line)
        })
    }

    /// Everything on stderr so far.
    pub fn said(&self) -> Vec<String> {
        self.running.lines.lock().clone()
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.running.child), signal).unwrap();
    }

    /// Waits for its end; panics if a request left a line that nobody has asked for.
    pub fn wait(mut self) -> ExitStatus {
        let status = self.running.wait();
        let lines = self.running.lines.lock();
        let unseen: Vec<_> =
            lines.iter().skip(*self.n_lines_seen.lock()).filter(|line| line.starts_with(HYBRID)).collect();
        assert!(unseen.is_empty(), "more lines than requests: {unseen:?}");
        status
    }

    /// SIGTERM, and the orderly end that is to follow.
    pub fn stop(self) {
        self.signal(Signal::TERM);
        let status = self.wait();
        assert_eq!(status.code(), Some(0), "{status}");
    }

    /// SIGKILL.
    pub fn kill(self) {
        self.signal(Signal::KILL);
        self.wait();
    }
}
