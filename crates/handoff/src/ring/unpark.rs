//! Ending a wait of the driver's thread from any thread.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::Wake;

use handoff_sys::process::Process;
use rustix::event::{EventfdFlags, eventfd};

use super::until::Until;
use crate::error::{Error, Result};

/// Ends a wait of the driver's thread, from any thread.
pub(crate) struct Unpark {
    made_by: Process,
    event: OwnedFd,
    /// Something was woken since the futures were last polled.
    pub(crate) woken: AtomicBool,
    /// The thread waits for the kernel, or is about to.
    parked: AtomicBool,
}

impl Unpark {
    pub(crate) fn new() -> Result<Arc<Self>> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| Error::io("making an event descriptor", error.into()))?;
        Ok(Arc::new(Self {
            made_by: Process::this(),
            event,
            woken: AtomicBool::new(false),
            parked: AtomicBool::new(false),
        }))
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// The thread is about to wait for the kernel. From now on every wake ends the wait; if something was
    /// woken already, there is no wait.
    pub(crate) fn park(&self, until: Until) -> Until {
        self.parked.store(true, SeqCst);
        if self.woken.load(SeqCst) { Until::Now } else { until }
    }

    /// The wait is over: later wakes are seen without the kernel.
    pub(crate) fn unpark(&self) {
        self.parked.store(false, SeqCst);
    }

    /// Sets the event. A child does not wake its parent.
    pub(crate) fn signal(&self) {
        if !self.made_by.is_this() {
            return;
        }
        // The only failure is a full counter, which is readable as well.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    /// Clears the event.
    pub(crate) fn clear(&self) {
        let mut count = [0; 8];
        // EAGAIN: somebody else took it.
        let _ = rustix::io::read(&self.event, &mut count);
    }
}

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, SeqCst);
        if self.parked.load(SeqCst) {
            self.signal();
        }
    }
}
