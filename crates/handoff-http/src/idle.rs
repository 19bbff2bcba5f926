//! How long a connection may be silent: a timer that each request restarts.
//!
//! Contracts:
//! - it expires when a whole wait has passed since its last restart, and not before;
//! - the driver's list of deadlines changes once per wait, not with each request.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use handoff::{Driver, Result, Sleep};

pub(crate) struct Idle {
    driver: Driver,
    wait: Duration,
    since: Instant,
    /// Usually until the end of a wait that began earlier.
    sleep: Option<Sleep>,
}

impl Idle {
    pub(crate) fn new(driver: &Driver, wait: Duration) -> Self {
        Self { driver: driver.clone(), wait, since: Instant::now(), sleep: None }
    }

    /// The wait begins anew.
    pub(crate) fn wind_up(&mut self) -> Instant {
        self.since = Instant::now();
        self.since
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

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;

    use futures_util::future::{Either, select};
    use handoff::RingUse;

    use super::*;

    #[test]
    fn a_wait_that_is_wound_up_is_a_whole_one() {
        const WAIT: Duration = Duration::from_millis(100);
        const LONG: u64 = 60_000;
        for ring in [RingUse::Prefer, RingUse::Avoid] {
            let driver = Driver::builder().ring(ring).build().expect("a driver");
            let mut idle = Idle::new(&driver, WAIT);
            let waiting = async {
                for moment in [30, 80, 80, LONG] {
                    let since = Instant::now();
                    idle.wind_up();
                    let over = poll_fn(|context| idle.poll_over(context));
                    let pause = pin!(driver.sleep(Duration::from_millis(moment)));
                    match select(over, pause).await {
                        Either::Left((over, _)) => {
                            over.expect("it is driven");
                            assert!(since.elapsed() >= WAIT, "{:?}", since.elapsed());
                            // However late the clock is, it ends long before a pause like this.
                            return;
                        }
                        Either::Right(_) => assert_ne!(moment, LONG, "it does not end"),
                    }
                }
            };
            driver.block_on(waiting).expect("it is driven");
        }
    }
}
