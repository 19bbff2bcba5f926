//! What has arrived at a far end: its threads report it, and the measuring thread waits for it.

use std::{
    path::PathBuf,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
};

use rustix::thread::gettid;

use super::TIMEOUT;
use crate::processor::Waits;

/// What the threads of one far end share with the waiter.
#[derive(Default)]
pub(crate) struct Arrivals {
    state: Mutex<State>,
    /// Notified when all wanted bytes have arrived, and when no more will arrive.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    received: u64,
    /// The number of bytes that the waiter waits for.
    wanted: u64,
    tasks: Vec<PathBuf>,
    ended: Option<String>,
}

impl Arrivals {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts the calling thread to the far end.
    pub(crate) fn join(&self) {
        let task = format!("/proc/self/task/{}", gettid().as_raw_nonzero());
        self.state().tasks.push(task.into());
    }

    /// Reports that this many more bytes have arrived.
    pub(crate) fn add(&self, bytes: u64) {
        let mut state = self.state();
        let before = state.received;
        state.received += bytes;
        if before < state.wanted && state.received >= state.wanted {
            self.changed.notify_all();
        }
    }

    /// Reports that no more will arrive. The first reason counts.
    pub(crate) fn end(&self, why: String) {
        self.state().ended.get_or_insert(why);
        self.changed.notify_all();
    }

    /// Why no more will arrive; `None` if more may arrive.
    pub(crate) fn ended(&self) -> Option<String> {
        self.state().ended.clone()
    }

    /// The bytes that have arrived since the beginning.
    pub(crate) fn total(&self) -> u64 {
        self.state().received
    }

    /// Returns when this many bytes have arrived since the beginning.
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
            let waited = self.changed.wait_timeout(state, TIMEOUT);
            let (now, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = now;
            if timeout.timed_out() && state.received == before {
                return Err(format!("nothing arrived for {TIMEOUT:?}"));
            }
        }
        match state.received - bytes {
            0 => Ok(()),
            more => Err(format!("{more} bytes more than were sent have arrived")),
        }
    }

    /// How long the threads have run, and how long they were kept waiting so far.
    pub(crate) fn waits(&self) -> Waits {
        let tasks = self.state().tasks.clone();
        Waits::of(tasks)
    }
}
