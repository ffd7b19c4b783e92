//! The first text of an answer gets out before the next token is begun.

use std::time::{Duration, Instant};

use super::super::slot::Slot;
use super::DecodeLoop;

/// How long the next batch waits at most until it is taken.
const TAKEN_WITHIN: Duration = Duration::from_millis(1);

/// How long it waits then, until the text is on its way.
const SENT_WITHIN: Duration = Duration::from_micros(300);

/// How often is looked whether it is taken.
const STEP: Duration = Duration::from_micros(20);

impl DecodeLoop {
    /// Leaves the CPUs to those who read a first text. Where every CPU computes, or waits busily for more of it, the
    /// scheduler would let them and the client wait for some milliseconds, and the first text is what people wait for.
    pub(super) fn let_first_texts_go(&mut self) {
        let readers: Vec<_> = self.slots.iter_mut().flatten().filter_map(Slot::reader_of_first_text).collect();
        if readers.is_empty() {
            return;
        }
        let started = Instant::now();
        while readers.iter().any(|reader| !reader.is_empty()) && started.elapsed() < TAKEN_WITHIN {
            std::thread::sleep(STEP);
        }
        std::thread::sleep(SENT_WITHIN);
    }
}
