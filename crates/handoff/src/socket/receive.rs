//! Receiving: a stream of spans.
//!
//! Minimum kernel: as the engine's; without a ring any. The kernel copies what it receives into a pool's
//! chunks, and it counts as copied. For an rx queue the kernel's own count decides. Return signal: none to
//! wait for; dropping a span gives its chunk back.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::Socket;
use crate::engine::receiving;
use crate::error::{Error, Result};
#[cfg(feature = "tls")]
use crate::lease::pool::PoolShared;
use crate::lease::{Arrivals, Intake, Span, SpanRef};
use crate::mechanism::ReceiveEngine;
use crate::op::{Op, ReceiveOp};
use crate::outcome::Tally;
use crate::reactor::Reactor;
use crate::ring::Key;

impl Socket {
    /// Starts to receive into a [`Pool`](crate::Pool), from an [`RxQueue`](crate::RxQueue), or
    /// [either](crate::RxQueue::or), until the peer ends or you drop the receiver.
    ///
    /// A TLS connection is received into a pool only. If its peer ends without saying so, the receiver ends with
    /// [`Error::Tls`]. Where the kernel deciphers, bytes of a full chunk are unknown in the [`tally`](Receiver::tally): the
    /// kernel copies the record that the chunk has no room for. Take chunks of whole records (16 KiB).
    ///
    /// # Errors
    ///
    /// When too many operations are under way, pool or queue belong to another driver, a window is to receive
    /// datagrams, senders are wanted of a socket that is not UDP or into chunks without room, or the socket has a
    /// receiver: two would each get parts of what comes.
    pub fn receive(&self, intake: impl Into<Intake>) -> Result<Receiver> {
        let (driver, intake) = (Rc::clone(&self.driver), intake.into());
        if intake.queue.is_some() || intake.window.is_some() {
            self.shared.check_plain(
                "an rx queue and a window have what TLS has ciphered: receive into a pool",
            )?;
        }
        if !intake.is_of(&driver.core.pending) {
            return Err(Error::Invalid(
                "the pool or rx queue belongs to another driver than the socket",
            ));
        }
        if let Some(why) = intake.unfit(self.shared.stream, self.shared.udp) {
            return Err(Error::Invalid(why));
        }
        driver.core.check_room()?;
        let intake = self.with_chunks(intake)?;
        self.shared.reception.take()?;
        let taken = Arrivals::new(intake.queue.clone());
        let op = ReceiveOp::new(Rc::clone(&self.shared), intake);
        let key = driver.core.records.borrow_mut().insert(|| Op::Receive(op));
        driver.core.pending.mark_receive(key);
        Ok(Receiver { driver, key, taken })
    }

    /// The intake with chunks that calls can receive into, if this process deciphers.
    #[cfg_attr(not(feature = "tls"), allow(clippy::unused_self, clippy::unnecessary_wraps))]
    fn with_chunks(&self, intake: Intake) -> Result<Intake> {
        #[cfg(feature = "tls")]
        if let (true, Some(pool)) = (self.shared.is_deciphered_here(), &intake.pool) {
            return Ok(Intake { pool: Some(PoolShared::by_hand(pool)?), ..intake });
        }
        Ok(intake)
    }
}

/// Received spans in order. Dropping it ends the receive; spans received and not taken are lost.
///
/// ```no_run
/// # async fn example(mut receiver: handoff::Receiver) -> Result<(), Box<dyn std::error::Error>> {
/// while let Some(span) = receiver.next_span().await {
///     println!("{} bytes", span?.len());
/// } // the peer has ended the stream
/// println!("{} bytes were copied", receiver.tally().copied);
/// # Ok(()) }
/// ```
pub struct Receiver {
    driver: Rc<Reactor>,
    key: Key,
    /// Taken over from the record; these come before the record's.
    taken: Arrivals,
}

impl Receiver {
    /// The next span; `None` at the end of a stream. On a datagram socket each span is a datagram, cut at
    /// the pool's chunk size.
    pub fn next_span(&mut self) -> NextSpan<'_> {
        NextSpan { receiver: self }
    }

    /// The next span if it is there already.
    #[inline]
    pub fn try_next_span(&mut self) -> Option<Option<Result<Span>>> {
        loop {
            if let Some(span) = self.taken.next() {
                return Some(Some(Ok(span)));
            }
            if let Err(error) = self.driver.core.check_here() {
                return Some(Some(Err(error)));
            }
            if !receiving::take(&self.driver.core, self.key, &mut self.taken) {
                return receiving::end(&self.driver.core, self.key).map(|end| end.err().map(Err));
            }
        }
    }

    /// Lends each span that is there already to `visitor`, in order; its chunk goes back when the visitor drops
    /// it. Costs less than a [`Span`] for each; to have one for longer, [make a span](SpanRef::keep) of it.
    /// Returns how the stream ended once nothing is left, and an error once; `None` while it goes on.
    /// [`spans_there`](Self::spans_there) waits for something to visit.
    ///
    /// The visitor may use the driver. If it panics, it has had its span, and the next visit continues
    /// behind that.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let driver = handoff::Driver::new()?;
    /// # let pool = driver.pool(handoff::Region::anonymous(1 << 20)?, 1 << 16)?;
    /// # let connection = std::net::TcpStream::connect("192.0.2.1:9000")?;
    /// let mut receiver = driver.socket(connection)?.receive(&pool)?;
    /// let mut bytes = 0;
    /// driver.block_on(async {
    ///     loop {
    ///         receiver.spans_there().await?;
    ///         if let Some(end) = receiver.visit(|span| bytes += span.len()) {
    ///             break end;
    ///         }
    ///     }
    /// })??;
    /// # Ok(()) }
    /// ```
    #[inline]
    pub fn visit(&mut self, mut visitor: impl FnMut(SpanRef<'_>)) -> Option<Result<()>> {
        if let Err(error) = self.driver.core.check_here() {
            return Some(Err(error));
        }
        loop {
            self.taken.visit(&mut visitor);
            if !receiving::take(&self.driver.core, self.key, &mut self.taken) {
                return receiving::end(&self.driver.core, self.key);
            }
        }
    }

    /// Waits until there is something to [visit](Self::visit): a span, or the end.
    pub fn spans_there(&mut self) -> SpansThere<'_> {
        SpansThere { receiver: self }
    }

    /// Wakes a task when something is there that was not taken.
    fn wait(&self, context: &mut Context<'_>) -> Result<()> {
        self.driver.core.check_driven()?;
        let waker = context.waker().clone();
        let before = self.driver.core.records.borrow_mut().receive(self.key).holder.wait(waker);
        drop(before);
        Ok(())
    }

    /// How bytes are received now, and why.
    pub fn engine(&self) -> (ReceiveEngine, String) {
        let has_ring = self.driver.core.io.has_ring();
        self.driver.core.records.borrow_mut().receive(self.key).engine(has_ring)
    }

    /// Bytes received so far, by the kernel's reports.
    pub fn tally(&self) -> Tally {
        self.driver.core.records.borrow_mut().receive(self.key).tally()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        if self.driver.core.is_here() {
            receiving::let_go(&self.driver.core, self.key, &mut self.taken);
        }
    }
}

impl std::fmt::Debug for Receiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Receiver").field("key", &self.key).finish_non_exhaustive()
    }
}

/// Future of [`Receiver::next_span`].
///
/// ```no_run
/// # async fn example(mut receiver: handoff::Receiver) -> Result<(), Box<dyn std::error::Error>> {
/// match receiver.next_span().await {
///     Some(span) => println!("{} bytes", span?.len()),
///     None => println!("the stream has ended"),
/// }
/// # Ok(()) }
/// ```
#[must_use = "futures do nothing unless polled"]
#[derive(Debug)]
pub struct NextSpan<'a> {
    receiver: &'a mut Receiver,
}

impl Future for NextSpan<'_> {
    type Output = Option<Result<Span>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(span) = self.receiver.try_next_span() {
            return Poll::Ready(span);
        }
        match self.receiver.wait(context) {
            Ok(()) => Poll::Pending,
            Err(error) => Poll::Ready(Some(Err(error))),
        }
    }
}

/// Future of [`Receiver::spans_there`].
///
/// ```no_run
/// # async fn example(mut receiver: handoff::Receiver) -> Result<(), Box<dyn std::error::Error>> {
/// receiver.spans_there().await?;
/// let mut bytes = 0;
/// let end = receiver.visit(|span| bytes += span.len());
/// println!("{bytes} bytes; the stream has ended: {}", end.is_some());
/// # Ok(()) }
/// ```
#[must_use = "futures do nothing unless polled"]
#[derive(Debug)]
pub struct SpansThere<'a> {
    receiver: &'a mut Receiver,
}

impl Future for SpansThere<'_> {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Receiver { driver, key, taken } = &*self.receiver;
        if !taken.is_empty() || receiving::has_news(&driver.core, *key) {
            return Poll::Ready(Ok(()));
        }
        match self.receiver.wait(context) {
            Ok(()) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}
