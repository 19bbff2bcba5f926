//! Sockets as a source: a stream of received spans.
//!
//! Minimum kernel: 6.0 (multishot receive). Without a ring, readiness and `recv`. The kernel copies
//! what it receives into the pool's chunks, and so it is counted. Return signal: none to wait for;
//! dropping a span gives its chunk back.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::pool::Pool;
use super::received::Received;
use crate::driver::Inner;
use crate::engine::receiving::{self, ReceiveOp};
use crate::error::{Error, Result};
use crate::inflight::{Key, Op};
use crate::outcome::Tally;
use crate::socket::Socket;

impl Socket {
    /// Starts to receive into `pool`, and goes on until the peer ends or the receiver is dropped.
    ///
    /// # Errors
    ///
    /// When too many operations are under way, or the pool belongs to another driver.
    pub fn receive(&self, pool: &Pool) -> Result<Receiver> {
        let driver = Rc::clone(&self.driver);
        if !pool.shared.is_of(&driver) {
            return Err(Error::Invalid("the pool belongs to another driver than the socket"));
        }
        driver.inflight.borrow().check_room()?;
        let op = ReceiveOp::new(Rc::clone(&self.shared), Rc::clone(&pool.shared));
        let key = driver.inflight.borrow_mut().insert(Op::Receive(op));
        driver.mark_receive(key);
        Ok(Receiver { driver, key })
    }
}

/// Received spans in order. Dropping it ends the receiving; what was received and not taken is lost.
pub struct Receiver {
    driver: Rc<Inner>,
    key: Key,
}

impl Receiver {
    /// The next span; `None` at the end of a stream. On a datagram socket each span is a datagram,
    /// cut at the pool's chunk size.
    pub fn next_span(&mut self) -> NextSpan<'_> {
        NextSpan { receiver: self }
    }

    /// The next span if it is there already.
    pub fn try_next_span(&mut self) -> Option<Option<Result<Received>>> {
        receiving::take(&self.driver, self.key)
    }

    /// Bytes received so far; the kernel copied all of them.
    pub fn tally(&self) -> Tally {
        self.driver.inflight.borrow_mut().receive(self.key).tally()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        receiving::let_go(&self.driver, self.key);
    }
}

impl std::fmt::Debug for Receiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Receiver").field("key", &self.key).finish_non_exhaustive()
    }
}

/// Future of [`Receiver::next_span`].
#[must_use = "futures do nothing unless polled"]
#[derive(Debug)]
pub struct NextSpan<'a> {
    receiver: &'a mut Receiver,
}

impl Future for NextSpan<'_> {
    type Output = Option<Result<Received>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(span) = self.receiver.try_next_span() {
            return Poll::Ready(span);
        }
        let Receiver { driver, key } = &*self.receiver;
        let before = driver.inflight.borrow_mut().receive(*key).wait(context.waker().clone());
        drop(before);
        Poll::Pending
    }
}
