//! What has arrived at a far end: its threads report, the measuring thread waits.

use std::{
    path::PathBuf,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
};

use rustix::thread::gettid;

use super::PATIENCE;
use crate::processor::Waits;

/// Shared by the threads of one far end and the waiter.
#[derive(Default)]
pub(crate) struct Arrivals {
    state: Mutex<State>,
    /// Everything wanted has arrived, or the end has come.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    received: u64,
    /// The count that the waiter waits for.
    wanted: u64,
    tasks: Vec<PathBuf>,
    ended: Option<String>,
}

impl Arrivals {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The calling thread belongs to the far end.
    pub(crate) fn join(&self) {
        let task = format!("/proc/self/task/{}", gettid().as_raw_nonzero());
        self.state().tasks.push(task.into());
    }

    /// So many bytes have arrived.
    pub(crate) fn add(&self, bytes: u64) {
        let mut state = self.state();
        let before = state.received;
        state.received += bytes;
        if before < state.wanted && state.received >= state.wanted {
            self.changed.notify_all();
        }
    }

    /// No more will arrive; the first reason counts.
    pub(crate) fn end(&self, why: String) {
        self.state().ended.get_or_insert(why);
        self.changed.notify_all();
    }

    /// Why no more will arrive, if so.
    pub(crate) fn ended(&self) -> Option<String> {
        self.state().ended.clone()
    }

    /// Returns when so many bytes have arrived since the beginning.
    ///
    /// # Errors
    ///
    /// If the end comes before, nothing arrives for too long, or more has arrived, in one line.
    pub(crate) fn await_total(&self, bytes: u64) -> Result<(), String> {
        let mut state = self.state();
        state.wanted = bytes;
        while state.received < bytes {
            if let Some(ended) = &state.ended {
                return Err(format!("{ended} after {} of {bytes} bytes", state.received));
            }
            let before = state.received;
            let waited = self.changed.wait_timeout(state, PATIENCE);
            let (now, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = now;
            if timeout.timed_out() && state.received == before {
                return Err(format!("nothing arrived for {PATIENCE:?}"));
            }
        }
        match state.received - bytes {
            0 => Ok(()),
            more => Err(format!("{more} bytes more than were sent have arrived")),
        }
    }

    /// How long the threads ran and were kept waiting so far.
    pub(crate) fn waits(&self) -> Waits {
        let tasks = self.state().tasks.clone();
        Waits::of(tasks)
    }
}
