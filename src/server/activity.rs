//! What the server does and has done, for `/slots` and `/metrics`: every generation is watched on its way to the client.
//!
//! The engine has its sequences to itself; here a request takes the first free slot, and waits while there is none, as it does
//! there. So the numbers of slots are right and their ids are names.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::StreamExt;
use parking_lot::Mutex;

use super::state::EventStream;
use crate::engine::{EngineError, Event, GenerateOptions, PromptReport, Report};

/// A handle on the server's one record.
#[derive(Clone, Default)]
pub struct Activity(Arc<Mutex<Record>>);

#[derive(Default)]
struct Record {
    slots: Vec<Slot>,
    /// Requests that are at work or wait, each with all its tasks.
    n_requests: usize,
    /// Tasks without a slot, in their order.
    waiting: VecDeque<Work>,
    n_tasks: u64,
    totals: Totals,
    since_scrape: Totals,
}

/// One slot and its task, or its last one.
#[derive(Clone, Debug, Default)]
pub struct Slot {
    pub is_processing: bool,
    pub work: Option<Work>,
}

/// What is known of a task.
#[derive(Clone, Debug)]
pub struct Work {
    pub id_task: u64,
    pub options: Arc<GenerateOptions>,
    pub n_prompt: usize,
    /// Evaluated and taken from a cache; 0 until the prompt is done.
    pub n_processed: usize,
    pub n_cached: usize,
    pub n_decoded: usize,
    pub has_new_line: bool,
    /// When the prompt was done.
    decoding_since: Option<Instant>,
}

/// Sums over tasks. An unfinished one counts with what it did.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Totals {
    pub n_prompt: u64,
    pub n_cached: u64,
    pub prompt_time: Duration,
    pub n_predicted: u64,
    pub predict_time: Duration,
    /// Of the longest sequence.
    pub n_tokens_max: u64,
}

/// What `/metrics` asks for.
pub struct Scrape {
    pub totals: Totals,
    /// Those since the scrape before.
    pub recent: Totals,
    pub n_processing: usize,
    pub n_waiting: usize,
}

impl Activity {
    /// How many tasks run at once: known with the model, before any task.
    pub fn set_slots(&self, n_slots: usize) {
        self.0.lock().slots.resize_with(n_slots, Slot::default);
    }

    /// A place for a request among those at work and `max_queue` more that wait; `None` when all are taken.
    pub fn admit(&self, max_queue: usize) -> Option<Admission> {
        let mut record = self.0.lock();
        if record.n_requests >= record.slots.len().saturating_add(max_queue) {
            return None;
        }
        record.n_requests += 1;
        Some(Admission(self.clone()))
    }

    /// A new task. It is over when this is dropped.
    pub fn begin(&self, n_prompt: usize, options: &GenerateOptions) -> Task {
        let mut record = self.0.lock();
        let id_task = record.n_tasks;
        record.n_tasks += 1;
        record.waiting.push_back(Work {
            id_task,
            options: Arc::new(options.clone()),
            n_prompt,
            n_processed: 0,
            n_cached: 0,
            n_decoded: 0,
            has_new_line: false,
            decoding_since: None,
        });
        record.fill_slots();
        Task { record: self.clone(), id_task }
    }

    pub fn slots(&self) -> Vec<Slot> {
        self.0.lock().slots.clone()
    }

    /// Takes the numbers; the recent ones begin anew.
    pub fn scrape(&self) -> Scrape {
        let mut record = self.0.lock();
        Scrape {
            totals: record.totals,
            recent: std::mem::take(&mut record.since_scrape),
            n_processing: record.slots.iter().filter(|slot| slot.is_processing).count(),
            n_waiting: record.waiting.len(),
        }
    }
}

/// A request's place, given back when dropped.
pub struct Admission(Activity);

impl Drop for Admission {
    fn drop(&mut self) {
        self.0.0.lock().n_requests -= 1;
    }
}

impl Record {
    fn fill_slots(&mut self) {
        for slot in self.slots.iter_mut().filter(|slot| !slot.is_processing) {
            let Some(work) = self.waiting.pop_front() else { return };
            *slot = Slot { is_processing: true, work: Some(work) };
        }
    }

    fn work(&mut self, id_task: u64) -> Option<&mut Work> {
        let in_slots = self.slots.iter_mut().filter_map(|slot| slot.work.as_mut());
        in_slots.chain(&mut self.waiting).find(|work| work.id_task == id_task)
    }

    fn add(&mut self, change: impl Fn(&mut Totals)) {
        change(&mut self.totals);
        change(&mut self.since_scrape);
    }

    fn prompt_done(&mut self, id_task: u64, report: &PromptReport) {
        let n_processed = report.n_prompt - report.n_cached;
        if let Some(work) = self.work(id_task) {
            (work.n_processed, work.n_cached) = (n_processed, report.n_cached);
            work.decoding_since = Some(Instant::now());
        }
        self.add(|totals| {
            totals.n_prompt += n_processed as u64;
            totals.n_cached += report.n_cached as u64;
            totals.prompt_time += report.evaluate;
        });
    }

    /// `None` when the task ended before its report.
    fn decoded(&mut self, id_task: u64, report: Option<&Report>) {
        let Some(work) = self.work(id_task) else { return };
        let (n_decoded, time) = match (report, work.decoding_since.take()) {
            (Some(report), _) => (report.n_generated, report.generate),
            (None, Some(since)) => (work.n_decoded, since.elapsed()),
            (None, None) => return,
        };
        work.n_decoded = n_decoded;
        let n_tokens = (work.n_prompt + n_decoded) as u64;
        self.add(|totals| {
            totals.n_predicted += n_decoded as u64;
            totals.predict_time += time;
            totals.n_tokens_max = totals.n_tokens_max.max(n_tokens);
        });
    }
}

/// A request's work, from its prompt to its end.
pub struct Task {
    record: Activity,
    id_task: u64,
}

impl Task {
    /// The same events; they are counted as they pass, and the task ends with them.
    pub fn watch(self, events: EventStream) -> EventStream {
        Box::pin(events.inspect(move |event| self.see(event)))
    }

    fn see(&self, event: &Result<Event, EngineError>) {
        let mut record = self.record.0.lock();
        match event {
            Ok(Event::Prompt(report)) => record.prompt_done(self.id_task, report),
            Ok(Event::Piece(piece)) => {
                if let Some(work) = record.work(self.id_task) {
                    work.n_decoded += piece.tokens.len();
                    work.has_new_line |= piece.text.contains('\n');
                }
            }
            Ok(Event::Done(report)) => record.decoded(self.id_task, Some(report)),
            Ok(Event::Progress(progress)) => {
                if let Some(work) = record.work(self.id_task) {
                    (work.n_processed, work.n_cached) = (progress.n_processed - progress.n_cached, progress.n_cached);
                }
            }
            Err(_) => {}
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        let mut record = self.record.0.lock();
        record.decoded(self.id_task, None);
        record.waiting.retain(|work| work.id_task != self.id_task);
        let is_mine = |slot: &&mut Slot| slot.work.as_ref().is_some_and(|work| work.id_task == self.id_task);
        if let Some(slot) = record.slots.iter_mut().find(is_mine) {
            slot.is_processing = false;
        }
        record.fill_slots();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;
    use crate::server::testing::{done, piece, prompt};

    fn busy(activity: &Activity) -> Vec<Option<u64>> {
        let of = |slot: &Slot| slot.work.as_ref().filter(|_| slot.is_processing).map(|work| work.id_task);
        activity.slots().iter().map(of).collect()
    }

    #[test]
    fn tasks_take_free_slots_and_wait_for_one_in_order() {
        let activity = Activity::default();
        activity.set_slots(2);
        let options = GenerateOptions::default();
        let mut tasks: Vec<_> = (0..4).map(|_| Some(activity.begin(3, &options))).collect();
        assert_eq!(busy(&activity), [Some(0), Some(1)]);
        assert_eq!(activity.scrape().n_waiting, 2);
        tasks[2] = None;
        tasks[0] = None;
        assert_eq!(busy(&activity), [Some(3), Some(1)]);
        tasks.clear();
        assert_eq!(busy(&activity), [None, None]);
        assert_eq!((activity.scrape().n_waiting, activity.scrape().n_processing), (0, 0));
    }

    #[tokio::test]
    async fn events_are_counted_as_they_pass() {
        let activity = Activity::default();
        activity.set_slots(1);
        let events = vec![prompt(), piece("a\n"), piece("b"), done(4)];
        let task = activity.begin(3, &GenerateOptions::default());
        let mut events = task.watch(Box::pin(stream::iter(events)));
        for _ in 0..3 {
            events.next().await;
        }
        let work = activity.slots()[0].work.clone().unwrap();
        assert_eq!((work.n_processed, work.n_decoded, work.has_new_line), (3, 2, true));
        events.next().await;
        drop(events);
        let Scrape { totals, recent, .. } = activity.scrape();
        assert_eq!((totals.n_prompt, totals.n_predicted, totals.n_tokens_max), (3, 4, 7));
        assert_eq!((totals.prompt_time, totals.predict_time), (Duration::from_millis(60), Duration::from_millis(10)));
        assert_eq!(totals, recent);
        assert_eq!((activity.scrape().recent, activity.scrape().totals), (Totals::default(), totals));

        // A client that hangs up has had what it had.
        let task = activity.begin(3, &GenerateOptions::default());
        let mut events = task.watch(Box::pin(stream::iter(vec![prompt(), piece("a")])));
        while events.next().await.is_some() {}
        drop(events);
        assert_eq!(activity.scrape().totals.n_predicted, 5);
    }
}
