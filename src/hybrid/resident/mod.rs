//! A provider that stays: started once, it gets one request after the other on its stdin (docs/hybrid.md, version 1.1).
//!
//! Reading order: this file (the handle), `worker` (the task that owns the process, and when it is started again), `live`
//! (one process: a request and its answer), `protocol` (the lines).

mod live;
mod protocol;
mod worker;

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::HybridError;
use super::runner::{Finished, Runner};
use super::slot_dir::RunDir;
use worker::{Ask, Worker};

/// A resident provider. Requests are worked on one by one, in the order they came. Dropping it ends the process.
pub(super) struct Resident {
    call: Runner,
    rules: Rules,
    stop: CancellationToken,
    worker: Mutex<Option<Handle>>,
    /// One permit, for the request that is being worked on: others that wait and are given up leave no files behind.
    turn: Arc<Semaphore>,
    tally: Arc<Mutex<Tally>>,
}

/// Has no bound of its own: who asks waits for the answer, or has gone, and then the request is passed over.
struct Handle {
    asks: mpsc::UnboundedSender<Ask>,
    task: JoinHandle<()>,
}

/// How strictly the protocol is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rules {
    /// What is no answer is passed over, and a process that died is started again after a pause.
    Serving,
    /// An answer under another id is a failure at once, and there is no pause: for the conformance kit.
    Checking,
}

/// What became of the process so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    /// How often it was started.
    pub n_starts: usize,
    /// Lines on stdout that are no answers.
    pub n_noise: usize,
    /// Answers that nobody had asked for.
    pub n_unasked: usize,
    /// How it ended while it was wanted, the last time.
    pub failure: Option<HybridError>,
    /// How it ended when its stdin was closed; `None` when it had to be killed, or did not run.
    pub end: Option<HybridError>,
}

impl Resident {
    pub(super) fn new(call: Runner, rules: Rules) -> Self {
        Self {
            call,
            rules,
            stop: CancellationToken::new(),
            worker: Mutex::new(None),
            turn: Arc::new(Semaphore::new(1)),
            tally: Arc::default(),
        }
    }

    pub(super) fn tally(&self) -> Tally {
        self.tally.lock().clone()
    }

    /// Has the provider evaluate the ids in `run_dir`, which are `n_asked`; starts it if need be.
    ///
    /// The protocol cannot call a request back. After `cancel` (or when this is dropped) the answer is waited for all the
    /// same, but not here: the files stay as long as the provider works on them, and the next request's turn comes then.
    pub(super) async fn run(
        &self,
        run_dir: &RunDir,
        n_asked: usize,
        backend_url: Option<String>,
        cancel: &CancellationToken,
    ) -> Result<Finished, HybridError> {
        let turn = tokio::select! {
            turn = self.turn.clone().acquire_owned() => turn.map_err(|_closed| HybridError::Stopped)?,
            () = cancel.cancelled() => return Err(HybridError::Stopped),
        };
        let (reply, answer) = oneshot::channel();
        self.send(Ask { run_dir: run_dir.clone(), n_asked, backend_url, reply, turn })?;
        tokio::select! {
            answer = answer => answer.unwrap_or_else(|_| Err(self.gone())),
            () = cancel.cancelled() => Err(HybridError::Stopped),
        }
    }

    /// Closes the provider's stdin, gives it a moment, and kills what is left. Takes no more requests.
    pub(super) async fn close(&self) {
        self.stop.cancel();
        let handle = self.worker.lock().take();
        if let Some(handle) = handle {
            let _ = handle.task.await;
        }
    }

    /// To the worker, which is started by the first request: only then is there surely a runtime.
    fn send(&self, ask: Ask) -> Result<(), HybridError> {
        let mut worker = self.worker.lock();
        if self.stop.is_cancelled() {
            return Err(HybridError::Stopped);
        }
        // One that is gone went with its runtime, or by a panic.
        let handle = worker.take().filter(|handle| !handle.asks.is_closed());
        let handle = handle.unwrap_or_else(|| {
            let (asks, receiver) = mpsc::unbounded_channel();
            let worker = Worker::new(self.call.clone(), self.rules, self.stop.clone(), self.tally.clone());
            Handle { asks, task: tokio::spawn(worker.run(receiver)) }
        });
        let sent = handle.asks.send(ask);
        *worker = Some(handle);
        sent.map_err(|_| self.gone())
    }

    /// Why the worker does not answer: it was told to end, or that is a fault of ours, which the client need not feel.
    fn gone(&self) -> HybridError {
        match self.stop.is_cancelled() {
            true => HybridError::Stopped,
            false => HybridError::Supervisor("the task that speaks to it has ended".to_owned()),
        }
    }
}

impl Drop for Resident {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

#[cfg(test)]
mod tests;
