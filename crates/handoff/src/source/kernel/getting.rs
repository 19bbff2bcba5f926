//! Lends under way, as futures.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::{Bytes, Lease, LeaseMut};
use crate::driver::Inner;
use crate::engine::get_buf::{self, GetOp};
use crate::error::Result;
use crate::inflight::{Key, Op};

/// A lend under way: a future of the lease, or of `None` at the end of the file or stream.
///
/// Dropped, it asks for the wait to end; what was lent by then goes back. Of a stream, those bytes are
/// lost to who reads on.
#[must_use = "what is lent goes back when nobody takes it"]
pub struct Getting {
    driver: Rc<Inner>,
    /// `None` once the lease was taken.
    key: Option<Key>,
}

impl Getting {
    /// Takes the slots that `op` has only where there is room for it.
    pub(super) fn start(
        driver: Rc<Inner>,
        op: impl FnOnce(&Inner) -> Result<GetOp>,
    ) -> Result<Self> {
        driver.check_room()?;
        let op = op(&driver)?;
        let key = driver.inflight.borrow_mut().insert(|| Op::Get(op));
        get_buf::start(&driver, key);
        Ok(Self { driver, key: Some(key) })
    }

    /// The lease, once there is one.
    ///
    /// # Errors
    ///
    /// Gives itself back until then.
    pub fn try_take(mut self) -> Result<Result<Option<Lease>>, Self> {
        self.take().map(whole).ok_or(self)
    }

    fn take(&mut self) -> Option<Result<Option<Bytes>>> {
        let result = get_buf::take(&self.driver, self.key?)?;
        self.key = None;
        Some(result)
    }

    fn poll_bytes(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>>> {
        if let Some(result) = self.take() {
            return Poll::Ready(result);
        }
        let key = self.key.expect("a future is not polled after it was ready");
        if let Err(error) = self.driver.check_driven() {
            return Poll::Ready(Err(error));
        }
        let waker = context.waker().clone();
        let before = self.driver.inflight.borrow_mut().get_op(key).waker.replace(waker);
        drop(before);
        Poll::Pending
    }
}

fn whole(result: Result<Option<Bytes>>) -> Result<Option<Lease>> {
    result.map(|bytes| bytes.map(Lease))
}

impl Future for Getting {
    type Output = Result<Option<Lease>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.get_mut().poll_bytes(context).map(whole)
    }
}

impl Drop for Getting {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            get_buf::let_go(&self.driver, key);
        }
    }
}

impl fmt::Debug for Getting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Getting").field("key", &self.key).finish_non_exhaustive()
    }
}

/// New pages under way: a future of the lease to fill.
#[must_use = "what is lent goes back when nobody takes it"]
#[derive(Debug)]
pub struct Fresh(pub(super) Getting);

impl Future for Fresh {
    type Output = Result<LeaseMut>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let bytes = self.get_mut().0.poll_bytes(context);
        bytes.map(|result| result.map(|bytes| LeaseMut(bytes.expect("new pages have no end"))))
    }
}
