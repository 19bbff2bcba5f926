//! The time that everything on a driver shares: one timer, which wakes whoever waits for its next tick.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Poll, Waker};
use std::time::Duration;

use handoff::Driver;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use crate::Failure;

/// Ticks that are close enough for the shortest of the times that matter.
pub(crate) struct Ticks {
    length: Duration,
    count: Cell<u64>,
    waiting: RefCell<Vec<Waker>>,
}

impl Ticks {
    /// For these times, of which those that are zero do not matter.
    pub(crate) fn new(times: [Duration; 3]) -> Self {
        let shortest = times.into_iter().filter(|time| !time.is_zero()).min();
        let length = shortest.unwrap_or(Duration::from_secs(4)) / 4;
        Self {
            length: length.clamp(Duration::from_millis(20), Duration::from_secs(1)),
            count: Cell::new(0),
            waiting: RefCell::default(),
        }
    }

    /// Ticks as long as nothing fails; gives the failure.
    pub(crate) async fn run(&self, driver: &Driver) -> Failure {
        let failed = |error: &dyn std::fmt::Display| Failure::failed(format!("the timer: {error}"));
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = match timerfd_create(TimerfdClockId::Monotonic, flags) {
            Ok(timer) => timer,
            Err(error) => return failed(&error),
        };
        let length = Timespec {
            tv_sec: self.length.as_secs() as i64,
            tv_nsec: i64::from(self.length.subsec_nanos()),
        };
        let every = Itimerspec { it_interval: length, it_value: length };
        if let Err(error) = timerfd_settime(&timer, TimerfdTimerFlags::empty(), &every) {
            return failed(&error);
        }
        let timer = match driver.file(timer) {
            Ok(timer) => timer,
            Err(error) => return failed(&error),
        };
        loop {
            let waited = match timer.readable() {
                Ok(readable) => readable.await,
                Err(error) => Err(error),
            };
            if let Err(error) = waited {
                return failed(&error);
            }
            // EAGAIN: it was no tick.
            if rustix::io::read(&timer, &mut [0; 8]).is_ok() {
                self.count.set(self.count.get() + 1);
                self.waiting.take().into_iter().for_each(Waker::wake);
            }
        }
    }

    /// Waits for the next tick.
    pub(crate) async fn next(&self) {
        let now = self.count.get();
        poll_fn(|context| {
            if self.count.get() != now {
                return Poll::Ready(());
            }
            self.waiting.borrow_mut().push(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Waits for so long, or a tick longer.
    pub(crate) async fn pass(&self, time: Duration) {
        let ticks = time.as_nanos().div_ceil(self.length.as_nanos());
        for _ in 0..=ticks {
            self.next().await;
        }
    }
}
