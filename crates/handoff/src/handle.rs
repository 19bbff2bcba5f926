//! What all handles on a record do: take its result, wait for it, let go of it.
//!
//! Contracts:
//! - a record stays until its result has been taken, or the handle is dropped;
//! - after [`AT_ONCE`] futures that were ready when polled, without a turn of the driver between them, the
//!   next waits once. So a task whose operations are all over at once holds nobody up;
//! - a waker that is replaced, or whose record ends, is dropped where it may use the driver;
//! - a handle that a child has a copy of takes nothing and ends nothing.

use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use crate::core::Core;
use crate::error::Error;
use crate::reactor::Reactor;

/// The most futures that may be ready when polled, between two turns of the driver.
const AT_ONCE: u32 = 128;

/// An operation that you can end early, and that then still reports its result.
///
/// Dropping a future loses its buffer and its result; cancelling returns both.
///
/// ```no_run
/// # async fn example(driver: &handoff::Driver, socket: &handoff::Socket, buffer: handoff::Buffer) -> Result<(), Box<dyn std::error::Error>> {
/// // After a second the receive ends, and says how many bytes it has.
/// let second = std::time::Duration::from_secs(1);
/// let received = driver.cancel_after(second, socket.receive_exact(buffer)?).await?;
/// match received.result {
///     Err(handoff::Error::Canceled { done }) => println!("{done} bytes so far"),
///     result => println!("all {} bytes", result?),
/// }
/// # Ok(()) }
/// ```
pub trait Cancel {
    /// Asks for an early end. The operation ends with [`Error::Canceled`], or as usual if the request comes
    /// too late.
    fn cancel(&self);
}

/// A result that can be waited for.
pub(crate) trait Awaited {
    /// What names it.
    type Key: Copy + fmt::Debug;
    /// The type of the result.
    type Output;

    /// Takes the result, if it is there; after that the key names nothing.
    fn take(core: &Core, key: Self::Key) -> Option<Self::Output>;

    /// Sets the waker for the result; returns the old one.
    fn wait(core: &Core, key: Self::Key, waker: Waker) -> Option<Waker>;

    /// Nobody waits for it any more.
    fn let_go(core: &Core, key: Self::Key);

    /// The result when nobody can turn the driver.
    fn without_driver(error: Error) -> Self::Output;
}

/// A handle on something to wait for.
pub(crate) struct Handle<A: Awaited> {
    driver: Rc<Reactor>,
    /// `None` once the result was taken.
    key: Option<A::Key>,
}

impl<A: Awaited> Handle<A> {
    #[inline]
    pub(crate) fn new(driver: Rc<Reactor>, key: A::Key) -> Self {
        Self { driver, key: Some(key) }
    }

    pub(crate) fn driver(&self) -> &Rc<Reactor> {
        &self.driver
    }

    pub(crate) fn key(&self) -> Option<A::Key> {
        self.key
    }

    /// The same for what is to be asked of the kernel; none in a child.
    pub(crate) fn key_here(&self) -> Option<A::Key> {
        self.key.filter(|_| self.driver.core.is_here())
    }

    /// As [`take`](Self::take), by another way to take it.
    pub(crate) fn take_by<T>(
        &mut self,
        take: impl FnOnce(&Core, A::Key) -> Option<T>,
    ) -> Option<T> {
        let taken = take(&self.driver.core, self.key_here()?)?;
        self.key = None;
        Some(taken)
    }

    /// The result, once it is there.
    pub(crate) fn take(&mut self) -> Option<A::Output> {
        self.take_by(A::take)
    }
}

impl<A: Awaited> Handle<A> {
    /// The result as a future, for callers that let others have their turns.
    pub(crate) fn poll_taken(&mut self, context: &mut Context<'_>) -> Poll<A::Output> {
        if let Some(output) = self.take() {
            return Poll::Ready(output);
        }
        let key = self.key.expect("a future is not polled after it was ready");
        if let Err(error) = self.driver.core.check_driven() {
            return Poll::Ready(A::without_driver(error));
        }
        let before = A::wait(&self.driver.core, key, context.waker().clone());
        drop(before);
        Poll::Pending
    }
}

impl<A: Awaited> Future for Handle<A> {
    type Output = A::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<A::Output> {
        let this = self.get_mut();
        if this.driver.core.at_once.get() >= AT_ONCE {
            this.driver.core.at_once.set(0);
            // Also for callers that poll after each turn and have no waker: the next turn does not sleep.
            this.driver.core.news.set(true);
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let output = ready!(this.poll_taken(context));
        this.driver.core.at_once.update(|futures| futures + 1);
        Poll::Ready(output)
    }
}

impl<A: Awaited> Unpin for Handle<A> {}

impl<A: Awaited> Drop for Handle<A> {
    fn drop(&mut self) {
        if let Some(key) = self.key_here() {
            A::let_go(&self.driver.core, key);
        }
    }
}

impl<A: Awaited> fmt::Debug for Handle<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("key", &self.key).finish_non_exhaustive()
    }
}
