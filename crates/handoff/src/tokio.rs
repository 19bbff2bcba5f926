//! Turning a driver from tokio's current-thread runtime.

use std::future::poll_fn;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::task::{Poll, ready};

use ::tokio::io::Interest;
use ::tokio::io::unix::AsyncFd;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use crate::core::LATER;
use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::ring::Until;

/// Keeps the driver, and so its descriptor, for as long as tokio watches it.
struct Watched(Driver);

impl AsRawFd for Watched {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

/// Turns `driver` whenever it has something to submit or to take. Spawn it once per driver with
/// `tokio::task::spawn_local`, and drop or abort it when the driver is not needed any more.
///
/// # Errors
///
/// When the runtime refuses the driver's descriptor, or the kernel refuses to be entered.
pub fn drive(driver: Driver) -> impl Future<Output = Result<()>> {
    driver.reactor.is_driven();
    turn_on_readiness(driver)
}

async fn turn_on_readiness(driver: Driver) -> Result<()> {
    let reactor = &driver.reactor;
    // SAFETY: a driver keeps one descriptor open for as long as it lives, and `Watched` keeps the
    // driver.
    let descriptor =
        unsafe { AsyncFd::register_with_interest(Watched(driver.clone()), Interest::READABLE) }
            .map_err(|error| Error::io("registering the driver with tokio", error.into()))?;
    // A timer of its own: the runtime's need not be switched on.
    let timer =
        timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)
            .map_err(|error| Error::io("making a timer", error.into()))?;
    // SAFETY: the timer keeps its descriptor open until it is dropped.
    let timer = unsafe { AsyncFd::register_with_interest(timer, Interest::READABLE) }
        .map_err(|error| Error::io("registering a timer with tokio", error.into()))?;
    let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
    let later = Timespec { tv_sec: 0, tv_nsec: LATER.as_nanos() as _ };
    let later = Itimerspec { it_interval: zero, it_value: later };
    loop {
        reactor.turn(Until::Now)?;
        poll_fn(|context| {
            reactor.due.set_attention(context.waker());
            if !reactor.is_quiet() {
                return Poll::Ready(Ok(()));
            }
            if reactor.has_later() {
                timerfd_settime(timer.get_ref(), TimerfdTimerFlags::empty(), &later)?;
                if let Poll::Ready(guard) = timer.poll_read_ready(context) {
                    guard?.clear_ready();
                    return Poll::Ready(Ok(()));
                }
            }
            let mut guard = ready!(descriptor.poll_read_ready(context))?;
            guard.clear_ready();
            Poll::Ready(Ok(()))
        })
        .await
        .map_err(|error: std::io::Error| Error::io("waiting for the driver", error))?;
    }
}
