//! Operations with a time: sleeping, and giving up.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Poll, ready};
use std::time::{Duration, Instant};

use super::Driver;
use crate::error::{Error, Result};
use crate::handle::Cancel;
use crate::sleep::Sleep;

/// No clock ends before it.
const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

impl Driver {
    /// Sleeps for this time, for a century at most.
    pub fn sleep(&self, time: Duration) -> Sleep {
        Sleep::new(&self.reactor, Instant::now() + time.min(CENTURY))
    }

    /// Waits for a future for this time from now, then drops it: [`Error::TimedOut`]. Each operation says
    /// what dropping it means: a send goes on, unless you asked it to [cancel
    /// then](crate::Sent::cancel_on_drop). To learn the operation's result, and to get its buffer back, use
    /// [`cancel_after`](Self::cancel_after).
    pub fn timeout<F: Future>(
        &self,
        time: Duration,
        future: F,
    ) -> impl Future<Output = Result<F::Output>> + use<F> {
        let mut sleep = self.sleep(time);
        async move {
            let mut future = pin!(future);
            poll_fn(|context| {
                if let Poll::Ready(output) = future.as_mut().poll(context) {
                    return Poll::Ready(Ok(output));
                }
                ready!(Pin::new(&mut sleep).poll(context))?;
                Poll::Ready(Err(Error::TimedOut { after: time }))
            })
            .await
        }
    }

    /// Waits for an operation, and cancels it when `time` is over. The operation then reports its own result:
    /// [`Error::Canceled`] with the bytes that were moved, and the buffer.
    pub fn cancel_after<F: Future + Cancel>(
        &self,
        time: Duration,
        operation: F,
    ) -> impl Future<Output = F::Output> + use<F> {
        let mut sleep = Some(self.sleep(time));
        async move {
            let mut operation = pin!(operation);
            poll_fn(|context| {
                let over = operation.as_mut().poll(context);
                if over.is_ready() {
                    return over;
                }
                if let Some(waiting) = &mut sleep
                    && Pin::new(waiting).poll(context).is_ready()
                {
                    sleep = None;
                    operation.as_ref().get_ref().cancel();
                    // Without a ring the operation may be over by now, and nobody else would report it.
                    return operation.as_mut().poll(context);
                }
                Poll::Pending
            })
            .await
        }
    }
}
