//! Waiting for a time.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::core::{Deadline, Then};
use crate::error::Result;
use crate::reactor::Reactor;

/// How long to wait before looking for room again.
const ROOM: Duration = Duration::from_millis(1);

/// A future that ends at a point in time: see [`Driver::sleep`](crate::Driver::sleep).
///
/// It uses the monotonic clock, which stands still while the machine is suspended.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let driver = handoff::Driver::new()?;
/// driver.block_on(driver.sleep(std::time::Duration::from_millis(1)))??;
/// # Ok(()) }
/// ```
#[must_use = "futures do nothing unless polled"]
pub struct Sleep {
    driver: Rc<Reactor>,
    due: Instant,
    deadline: Option<Deadline>,
}

impl Sleep {
    pub(crate) fn new(driver: &Rc<Reactor>, due: Instant) -> Self {
        Self { driver: Rc::clone(driver), due, deadline: None }
    }

    /// Ends when it is time to look again whether the driver has room for an operation: nothing signals that.
    pub(crate) fn for_room(driver: &Rc<Reactor>) -> Self {
        Self::new(driver, Instant::now() + ROOM)
    }
}

impl Future for Sleep {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.driver.core.check_driven()?;
        let due = self.due;
        let Some(deadline) = self.deadline else {
            if due <= Instant::now() {
                return Poll::Ready(Ok(()));
            }
            self.deadline = Some(self.driver.core.at(due, Then::Wake(context.waker().clone())));
            return Poll::Pending;
        };
        match self.driver.core.deadlines.wake_instead(deadline, context.waker().clone()) {
            Some(before) => {
                drop(before);
                Poll::Pending
            }
            None => Poll::Ready(Ok(())),
        }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(deadline) = self.deadline {
            drop(self.driver.core.deadlines.forget(deadline));
        }
    }
}

impl fmt::Debug for Sleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sleep").field("due", &self.due).finish_non_exhaustive()
    }
}
