//! Work that is shared between threads for some milliseconds.

use std::thread;

/// Runs `work` on this thread, and at the same time on up to `n - 1` others. Without a thread to be had it is done by fewer.
pub(crate) fn on_threads(n: usize, work: impl Fn() + Sync) {
    thread::scope(|scope| {
        for _ in 1..n {
            if thread::Builder::new().spawn_scoped(scope, &work).is_err() {
                break;
            }
        }
        work();
    });
}
