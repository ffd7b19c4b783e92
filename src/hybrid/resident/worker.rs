//! The task that owns the process: takes requests, starts it, waits before it starts it again, ends it.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::live::Live;
use super::{Rules, Tally, protocol};
use crate::hybrid::HybridError;
use crate::hybrid::runner::{Finished, Runner};
use crate::hybrid::slot_dir::RunDir;

/// The pause after a first failure; each one in a row doubles it.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// A request, and where its outcome goes. Nobody listens there any more when the client has gone.
pub(super) struct Ask {
    pub run_dir: RunDir,
    pub n_asked: usize,
    /// For the environment of a process that is started for this.
    pub backend_url: Option<String>,
    pub reply: oneshot::Sender<Result<Finished, HybridError>>,
    /// Given back when it is done.
    pub turn: OwnedSemaphorePermit,
}

pub(super) struct Worker {
    call: Runner,
    rules: Rules,
    stop: CancellationToken,
    tally: Arc<Mutex<Tally>>,
    live: Option<Live>,
    rest: Rest,
    /// The last id that was used; they are never used twice.
    last_id: u64,
}

impl Worker {
    pub(super) fn new(call: Runner, rules: Rules, stop: CancellationToken, tally: Arc<Mutex<Tally>>) -> Self {
        Self { call, rules, stop, tally, live: None, rest: Rest::default(), last_id: 0 }
    }

    pub(super) async fn run(mut self, mut asks: mpsc::UnboundedReceiver<Ask>) {
        while let Some(ask) = self.next(&mut asks).await {
            let Ask { run_dir, n_asked, backend_url, reply, turn: _turn } = ask;
            if reply.is_closed() {
                continue;
            }
            let outcome = self.answer(&run_dir, n_asked, backend_url).await;
            // Who asked has the files to himself again; when he is gone, they go.
            drop(run_dir);
            let _ = reply.send(outcome);
        }
        if let Some(live) = self.live.take() {
            let end = live.close().await;
            self.tally.lock().end = end;
        }
    }

    /// The next request; empties the pipes until it comes, and sees the process end. `None` when all is over.
    async fn next(&mut self, asks: &mut mpsc::UnboundedReceiver<Ask>) -> Option<Ask> {
        loop {
            let live = &mut self.live;
            let ended = async {
                match live {
                    Some(live) => live.idle().await,
                    None => std::future::pending().await,
                }
            };
            // In no fixed order: a process that prints all the time must not keep a request out.
            tokio::select! {
                () = self.stop.cancelled() => return None,
                failure = ended => self.failed(&failure),
                ask = asks.recv() => return ask,
            }
        }
    }

    async fn answer(
        &mut self,
        run_dir: &RunDir,
        n_asked: usize,
        backend_url: Option<String>,
    ) -> Result<Finished, HybridError> {
        let started = Instant::now();
        if self.rules == Rules::Serving {
            self.rest.is_over()?;
        }
        self.last_id += 1;
        let id = self.last_id;
        let line = protocol::request(id, run_dir)?;
        let mut live = match self.live.take() {
            Some(live) => live,
            None => self.start(run_dir, backend_url)?,
        };
        let answer = tokio::select! {
            answer = live.ask(id, &line) => answer,
            () = self.stop.cancelled() => {
                self.live = Some(live);
                return Err(HybridError::Stopped);
            }
        };
        match answer {
            Ok(reply) => {
                let finished = reply.and_then(|reply| reply.expect(n_asked));
                if finished.is_ok() {
                    self.rest = Rest::default();
                }
                match live.take_end() {
                    Some(end) => self.failed(&end),
                    None => self.live = Some(live),
                }
                Ok(Finished { reply: finished?, elapsed: started.elapsed() })
            }
            Err(failure) => {
                self.failed(&failure);
                Err(failure)
            }
        }
    }

    /// It works in the slot directory, which stays while runs come and go.
    fn start(&mut self, run_dir: &RunDir, backend_url: Option<String>) -> Result<Live, HybridError> {
        self.tally.lock().n_starts += 1;
        let directory = run_dir.path().parent().unwrap_or(Path::new("/"));
        let live = Live::start(&self.call, directory, backend_url, self.rules, self.tally.clone());
        live.inspect_err(|failure| self.failed(failure))
    }

    /// The process is gone.
    fn failed(&mut self, failure: &HybridError) {
        self.live = None;
        self.rest.failed(failure);
        self.tally.lock().failure = Some(failure.clone());
    }
}

/// The pause before a process that failed is started again, so that one which cannot work costs little.
#[derive(Default)]
struct Rest {
    /// In a row, without a good answer between them.
    n_failures: u32,
    until: Option<(Instant, HybridError)>,
}

impl Rest {
    fn failed(&mut self, reason: &HybridError) {
        let pause = FIRST_PAUSE.saturating_mul(1 << self.n_failures.min(16)).min(LONGEST_PAUSE);
        self.n_failures += 1;
        self.until = Some((Instant::now() + pause, reason.clone()));
    }

    /// Errors: `Resting`.
    fn is_over(&self) -> Result<(), HybridError> {
        match &self.until {
            Some((until, reason)) if *until > Instant::now() => {
                let pause = until.saturating_duration_since(Instant::now());
                Err(HybridError::Resting { pause, reason: Box::new(reason.clone()) })
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_limit() {
        let mut rest = Rest::default();
        assert_eq!(rest.is_over(), Ok(()));
        let mut pauses = Vec::new();
        for _ in 0..9 {
            let before = Instant::now();
            rest.failed(&HybridError::NoReply);
            let (until, _) = rest.until.clone().unwrap();
            // What passed between the two clocks is left out by rounding down.
            pauses.push((until - before).as_millis() / 500);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert!(matches!(rest.is_over(), Err(HybridError::Resting { .. })));
        rest.n_failures = u32::MAX - 1;
        rest.failed(&HybridError::NoReply);
    }
}
