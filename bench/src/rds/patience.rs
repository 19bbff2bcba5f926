//! Waiting on a driver, but not for ever.

use std::{
    future::Future,
    pin::pin,
    time::{Duration, Instant},
};

use futures_util::future::{Either, select};
use handoff::{Driver, File, Readiness};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use crate::network::PATIENCE;

/// A timer that ticks only as often as patience may end, so it costs nothing in between.
pub(super) struct Patience {
    tick: Readiness,
    timer: File,
    since: Instant,
}

impl Patience {
    pub(super) fn new(driver: &Driver) -> Result<Self, String> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)
            .map_err(|errno| format!("no timer: {errno}"))?;
        let length = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
        let every = Itimerspec { it_interval: length, it_value: length };
        timerfd_settime(&timer, TimerfdTimerFlags::empty(), &every)
            .map_err(|errno| format!("the timer cannot be set: {errno}"))?;
        let timer = driver.file(timer).map_err(line)?;
        Ok(Self { tick: timer.readable().map_err(line)?, timer, since: Instant::now() })
    }

    /// Something has happened.
    pub(super) fn renew(&mut self) {
        self.since = Instant::now();
    }

    /// Waits for `change`; may return early.
    ///
    /// # Errors
    ///
    /// If nothing has happened for too long, in one line.
    pub(super) async fn until(&mut self, change: impl Future<Output = ()>) -> Result<(), String> {
        if let Either::Left(_) = select(pin!(change), &mut self.tick).await {
            return Ok(());
        }
        // EAGAIN: it was not a tick.
        let _ = rustix::io::read(&self.timer, &mut [0; size_of::<u64>()]);
        self.tick = self.timer.readable().map_err(line)?;
        match self.since.elapsed() < PATIENCE - Duration::from_millis(1) {
            true => Ok(()),
            false => Err(format!("nothing came for {PATIENCE:?}")),
        }
    }
}

fn line(error: handoff::Error) -> String {
    error.to_string()
}
