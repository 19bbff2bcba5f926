//! A timer whose descriptor becomes readable at its time (timerfd).
//!
//! Minimum kernel: 2.6.25.

use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use crate::error::{Error, Result};

pub(crate) struct Alarm {
    timer: OwnedFd,
    /// When it goes off, unless it has.
    set: Cell<Option<Instant>>,
}

impl Alarm {
    pub(crate) fn new() -> Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)
            .map_err(|error| Error::io("making a timer", error.into()))?;
        Ok(Self { timer, set: Cell::new(None) })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }

    /// Sets it to `due`, or earlier.
    pub(crate) fn set(&self, due: Instant) {
        if self.set.get().is_some_and(|set| set <= due) {
            return;
        }
        let left = due.saturating_duration_since(Instant::now());
        let time = Timespec {
            tv_sec: left.as_secs() as i64,
            // A time of zero would stop it.
            tv_nsec: i64::from(left.subsec_nanos()).max(1),
        };
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let once = Itimerspec { it_interval: zero, it_value: time };
        match timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once) {
            Ok(_) => self.set.set(Some(due)),
            Err(error) => tracing::error!(%error, "a timer can't be set"),
        }
    }

    /// Clears the descriptor after it has gone off.
    pub(crate) fn clear(&self) {
        // EAGAIN: it was set anew meanwhile.
        let _ = rustix::io::read(&self.timer, &mut [0; 8]);
        self.set.set(None);
    }
}
