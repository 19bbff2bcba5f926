//! The way home of what other threads have: they say which places they have left, and the driver's next turn looks.
//!
//! Contracts:
//! - what a thread did before it left a place comes before what the driver does with it then;
//! - the first place that is left since the driver last looked ends a wait of the driver;
//! - once nobody turns the driver any more, whatever a place kept goes with the thread that leaves it, and no earlier.

use std::mem;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;

use handoff_sys::process::Process;

use crate::sync::{AtomicBool, Mutex, MutexGuard};

/// What must stay as long as a place is not left.
pub(super) type Keep = Box<dyn Send>;

pub(crate) struct Returns {
    /// A child has nothing to leave.
    made_by: Process,
    /// A place may have been left since the driver looked.
    any: AtomicBool,
    state: Mutex<State>,
    /// Ends a wait of the driver's thread.
    tell: Box<dyn Fn() + Send + Sync>,
}

enum State {
    /// Places that were left.
    Open(Vec<u32>),
    /// The driver is gone: what the places that are still in use keep.
    Closed(Vec<Option<Keep>>),
}

impl Returns {
    pub(crate) fn new(tell: Box<dyn Fn() + Send + Sync>) -> Self {
        let state = Mutex::new(State::Open(Vec::new()));
        Self { made_by: Process::this(), any: AtomicBool::new(false), state, tell }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics within.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves a place, on any thread.
    pub(super) fn leave(&self, place: u32) {
        if !self.made_by.is_this() {
            return;
        }
        let mut state = self.state();
        match &mut *state {
            State::Open(left) => {
                let is_first = left.is_empty();
                left.push(place);
                self.any.store(true, Relaxed);
                drop(state);
                if is_first {
                    (self.tell)();
                }
            }
            State::Closed(kept) => {
                let keep = kept[place as usize].take();
                drop(state);
                drop(keep);
            }
        }
    }

    /// Whether places may have been left since the driver looked.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.any.load(Relaxed)
    }

    /// Takes the places that were left, in exchange for an empty list.
    pub(super) fn take(&self, into: &mut Vec<u32>) {
        debug_assert!(into.is_empty());
        if let State::Open(left) = &mut *self.state() {
            self.any.store(false, Relaxed);
            mem::swap(left, into);
        }
    }

    /// Nobody turns the driver any more; `kept` has what each place keeps.
    pub(super) fn close(&self, mut kept: Vec<Option<Keep>>) {
        let mut state = self.state();
        let gone: Vec<_> = match &*state {
            State::Open(left) => left.iter().map(|place| kept[*place as usize].take()).collect(),
            State::Closed(_) => return,
        };
        *state = State::Closed(kept);
        self.any.store(false, Relaxed);
        drop(state);
        drop(gone);
    }
}
