//! Turning a driver from tokio's current-thread runtime.

use std::future::poll_fn;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::task::{Poll, ready};

use ::tokio::io::Interest;
use ::tokio::io::unix::AsyncFd;

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
    loop {
        reactor.turn(Until::Now)?;
        poll_fn(|context| {
            reactor.due.set_attention(context.waker());
            if !reactor.is_quiet() {
                return Poll::Ready(Ok(()));
            }
            let mut guard = ready!(descriptor.poll_read_ready(context))?;
            guard.clear_ready();
            Poll::Ready(Ok(()))
        })
        .await
        .map_err(|error: std::io::Error| Error::io("waiting for the driver", error))?;
    }
}
