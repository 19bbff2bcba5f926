//! How long a connection may be silent: a clock that is wound up again by each request.
//!
//! Contracts:
//! - it is over when a whole wait has passed since it was last wound up, and not before;
//! - the driver's list of deadlines is changed once in a wait, and not by each request.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use handoff::{Driver, Result, Sleep};

pub(crate) struct Idle {
    driver: Driver,
    wait: Duration,
    since: Instant,
    /// To the end of a wait that began earlier, mostly.
    sleep: Option<Sleep>,
}

impl Idle {
    pub(crate) fn new(driver: &Driver, wait: Duration) -> Self {
        Self { driver: driver.clone(), wait, since: Instant::now(), sleep: None }
    }

    /// The wait begins anew.
    pub(crate) fn wind_up(&mut self) {
        self.since = Instant::now();
    }

    pub(crate) fn poll_over(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        loop {
            if let Some(sleep) = &mut self.sleep {
                ready!(Pin::new(sleep).poll(context))?;
            }
            let left = self.wait.saturating_sub(self.since.elapsed());
            if self.sleep.is_some() && left.is_zero() {
                return Poll::Ready(Ok(()));
            }
            self.sleep = Some(self.driver.sleep(left));
        }
    }
}
