//! Rust functions that C calls: none of them may unwind.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Runs `body`; a panic ends here, because unwinding into C is undefined. The default stands in for the result.
pub(super) fn no_unwind<T: Default>(body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_default()
}

/// Stops a running [`decode`](super::Context::decode) from another thread.
#[derive(Clone, Debug, Default)]
pub struct CancelFlag(Arc<AtomicBool>);

impl CancelFlag {
    /// A flag that is not raised.
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks for a stop.
    pub fn raise(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether a stop was asked for.
    pub fn is_raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// What the abort callback looks at: the flags of everyone who waits for the batch that is being computed.
#[derive(Default)]
pub(super) struct AbortState {
    pub waiting: parking_lot::Mutex<Vec<CancelFlag>>,
    n_asked: AtomicU32,
}

/// ggml asks before each of a graph's some thousand nodes, while its other threads wait; looking this rarely is still within a
/// fraction of a pass.
const LOOK_EVERY: u32 = 64;

impl AbortState {
    /// A batch is worth finishing while anyone in it still wants it.
    fn nobody_waits(&self) -> bool {
        let waiting = self.waiting.lock();
        !waiting.is_empty() && waiting.iter().all(CancelFlag::is_raised)
    }
}

/// ggml's abort callback; `data` is the context's [`AbortState`]. Called between graph nodes.
pub(super) extern "C" fn on_abort(data: *mut c_void) -> bool {
    // SAFETY: the context that installed this callback passes a pointer to the AbortState that it owns in a Box and drops
    // after the llama_context; access is shared, and the state is behind a Mutex.
    let state = unsafe { &*data.cast::<AbortState>() };
    if !state.n_asked.fetch_add(1, Ordering::Relaxed).is_multiple_of(LOOK_EVERY) {
        return false;
    }
    no_unwind(|| state.nobody_waits())
}

/// What a load's progress callback calls.
pub(super) struct Progress<'a> {
    pub report: &'a mut dyn FnMut(f32) -> bool,
    pub cancelled: bool,
}

/// llama.cpp's progress callback; `data` is a [`Progress`]. Returning false stops the load.
pub(super) extern "C" fn on_progress(progress: f32, data: *mut c_void) -> bool {
    // SAFETY: Model::load passes a pointer to a Progress on its own stack, which outlives the call that uses it, and
    // llama.cpp calls back on the loading thread only.
    let state = unsafe { &mut *data.cast::<Progress<'_>>() };
    // A panic in the report counts as "stop": the default of bool is false.
    let go_on = no_unwind(|| (state.report)(progress));
    state.cancelled |= !go_on;
    go_on
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_aborted_only_when_nobody_waits_for_it() {
        let state = AbortState::default();
        assert!(!state.nobody_waits());
        let (a, b) = (CancelFlag::new(), CancelFlag::new());
        *state.waiting.lock() = vec![a.clone(), b.clone()];
        a.raise();
        assert!(!state.nobody_waits());
        b.raise();
        assert!(state.nobody_waits());
    }

    #[test]
    fn a_panic_becomes_the_default() {
        assert!(!no_unwind(|| -> bool { panic!("stopped at the border") }));
    }
}
