//! A limit on how long a row waits on a driver.

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

use crate::network::TIMEOUT;

/// A periodic timer that expires once per [`TIMEOUT`], so it costs nothing in between.
pub(super) struct Timeout {
    tick: Readiness,
    timer: File,
    since: Instant,
}

impl Timeout {
    pub(super) fn new(driver: &Driver) -> Result<Self, String> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)
            .map_err(|errno| format!("no timer: {errno}"))?;
        let length = Timespec { tv_sec: TIMEOUT.as_secs() as i64, tv_nsec: 0 };
        let every = Itimerspec { it_interval: length, it_value: length };
        timerfd_settime(&timer, TimerfdTimerFlags::empty(), &every)
            .map_err(|errno| format!("the timer cannot be set: {errno}"))?;
        let timer = driver.file(timer).map_err(line)?;
        Ok(Self { tick: timer.readable().map_err(line)?, timer, since: Instant::now() })
    }

    /// Starts the wait anew, because something has happened.
    pub(super) fn renew(&mut self) {
        self.since = Instant::now();
    }

    /// Waits for `change`. It may return early.
    ///
    /// # Errors
    ///
    /// One line that says that nothing has happened for too long.
    pub(super) async fn until(&mut self, change: impl Future<Output = ()>) -> Result<(), String> {
        if let Either::Left(_) = select(pin!(change), &mut self.tick).await {
            return Ok(());
        }
        // The read fails with EAGAIN if the timer has not expired.
        let _ = rustix::io::read(&self.timer, &mut [0; size_of::<u64>()]);
        self.tick = self.timer.readable().map_err(line)?;
        match self.since.elapsed() < TIMEOUT - Duration::from_millis(1) {
            true => Ok(()),
            false => Err(format!("nothing came for {TIMEOUT:?}")),
        }
    }
}

fn line(error: handoff::Error) -> String {
    error.to_string()
}
