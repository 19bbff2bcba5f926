//! Sends as a sink.

use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use ::tokio::task::coop::poll_proceed;
use futures_sink::Sink;

use crate::error::{Error, Result};
use crate::op::loan::{Payload, Refused};
use crate::sleep::Sleep;
use crate::socket::Socket;
use crate::socket::send::{Sending, Sent};

/// How long an item waits before it looks for room again, of which nothing tells.
const PAUSE: Duration = Duration::from_millis(1);

/// What a [`SendSink`] takes: anything that is lent for sending, alone or with the address that it goes to.
pub trait Outgoing: sealed::Outgoing {}

mod sealed {
    use super::{Error, Payload, Sending, Socket};

    pub trait Outgoing {
        type Payload: Payload;

        /// Gives itself back where it is refused.
        fn send(self, socket: &Socket) -> Result<Sending<Self::Payload>, (Self, Error)>
        where
            Self: Sized;
    }
}

impl<B: Payload> Outgoing for B {}
impl<B: Payload> sealed::Outgoing for B {
    type Payload = B;

    fn send(self, socket: &Socket) -> Result<Sending<B>, (Self, Error)> {
        socket.send(self).map_err(|Refused { buffer, error }| (buffer, error))
    }
}

impl<B: Payload> Outgoing for (B, SocketAddr) {}
impl<B: Payload> sealed::Outgoing for (B, SocketAddr) {
    type Payload = B;

    fn send(self, socket: &Socket) -> Result<Sending<B>, (Self, Error)> {
        let (buffer, address) = self;
        let sending = socket.message(buffer).to(address).send();
        sending.map_err(|Refused { buffer, error }| ((buffer, address), error))
    }
}

/// A sink whose items are lent and sent, in order on a stream: [`Buffer`](crate::Buffer), [`Frozen`](crate::Frozen),
/// `Bytes`, [`Span`](crate::Span), any [`Payload`]; on a datagram socket also `(payload, address)`.
///
/// **Copies:** none of its own; what the kernel does, [`Socket::send_stats`] tells. An item is dropped when it comes back
/// from its loan, so take buffers of a [`BufferPool`](crate::BufferPool). Besides the items that the sink waits for, a
/// zero-copy engine has those on loan that are in the socket's send buffer.
///
/// **Order and ends:** `feed` accepts an item; it waits while the kernel has yet to take as many as the sink's limit.
/// `flush` waits until the kernel has taken all, `close` does the same and leaves the socket open. While as many
/// operations are under way as the driver was built for, an accepted item waits in the sink for room.
///
/// An error is that of the item that failed first. On a stream the sink accepts none after that; those that it had
/// accepted by then may have gone.
///
/// **Dropped:** the sink, or a future of it, lets all accepted items go on, but for one that waits for room. An item that
/// was not accepted is dropped with the future that has it.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use bytes::Bytes;
/// use futures_util::{SinkExt, StreamExt, stream};
/// use handoff::tokio::SendSink;
///
/// # let (near, mut far) = std::os::unix::net::UnixStream::pair()?;
/// handoff::tokio::run(|driver| async move {
///     let sink = SendSink::new(driver.socket(near)?, 16);
///     stream::iter(["hello, ", "world"]).map(|text| Ok(Bytes::from(text))).forward(sink).await
/// })??;
/// # assert_eq!(std::io::read_to_string(&mut far)?, "hello, world");
/// # Ok(()) }
/// ```
pub struct SendSink<I> {
    socket: Socket,
    limit: usize,
    cancels: bool,
    /// What the kernel has not taken, as far as is known.
    out: VecDeque<Sent>,
    /// Accepted behind those, when there was no room for it.
    kept: Option<I>,
    /// When to look for room again.
    pause: Option<Sleep>,
    /// An item failed, and nothing may follow it.
    failed: bool,
}

impl<I: Outgoing> SendSink<I> {
    /// A sink that accepts at most `limit` items, and at least one, before the kernel has taken the first of them.
    pub fn new(socket: Socket, limit: usize) -> Self {
        let limit = limit.max(1);
        let out = VecDeque::new();
        Self { socket, limit, cancels: false, out, kept: None, pause: None, failed: false }
    }

    /// Has items that the kernel has not taken cancelled when the sink is dropped, as
    /// [`Sent::cancel_on_drop`] does.
    pub fn cancel_on_drop(mut self) -> Self {
        self.cancels = true;
        self
    }

    /// The socket, to send beside the sink, or to receive.
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Waits until the kernel has taken all items but so many.
    fn poll_taken(&mut self, but: usize, context: &mut Context<'_>) -> Poll<Result<()>> {
        // Copied sends are over at once, and other tasks have their turn all the same.
        let budget = ready!(poll_proceed(context));
        loop {
            // What is over makes room.
            while let Some(first) = self.out.front_mut()
                && let Poll::Ready(over) = first.poll_taken(context)
            {
                self.out.pop_front();
                over.map_err(|error| self.fail(error))?;
            }
            if let (Some(_), Some(pause)) = (&self.kept, &mut self.pause) {
                ready!(Pin::new(pause).poll(context))?;
            }
            match self.kept.take() {
                Some(item) => self.offer(item)?,
                None => break,
            }
        }
        if self.out.len() > but {
            return Poll::Pending;
        }
        budget.made_progress();
        Poll::Ready(Ok(()))
    }

    /// Sends an item, or keeps it until there is room for it.
    fn offer(&mut self, item: I) -> Result<()> {
        let sent = match item.send(&self.socket) {
            // The buffer is dropped as soon as it is back, whether the sink is polled or not.
            Ok(sending) => sending.split().0,
            Err((item, Error::Busy { .. })) => {
                self.kept = Some(item);
                self.pause = Some(Sleep::new(&self.socket.driver, Instant::now() + PAUSE));
                return Ok(());
            }
            Err((_, error)) => return Err(self.fail(error)),
        };
        self.out.push_back(if self.cancels { sent.cancel_on_drop() } else { sent });
        Ok(())
    }

    fn fail(&mut self, error: Error) -> Error {
        self.failed |= self.socket.shared.stream;
        if self.failed {
            self.kept = None;
        }
        error
    }

    fn check_whole(&self) -> Result<()> {
        match self.failed {
            true => Err(Error::Invalid(
                "an item of this sink has failed, as it said then, and on a stream nothing goes behind it",
            )),
            false => Ok(()),
        }
    }
}

impl<I: Outgoing> Sink<I> for SendSink<I> {
    type Error = Error;

    fn poll_ready(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.check_whole()?;
        let but = self.limit - 1;
        self.poll_taken(but, context)
    }

    fn start_send(mut self: Pin<&mut Self>, item: I) -> Result<()> {
        self.check_whole()?;
        self.offer(item)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.poll_taken(0, context)
    }

    fn poll_close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.poll_flush(context)
    }
}

impl<I> Unpin for SendSink<I> {}

impl<I> fmt::Debug for SendSink<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendSink")
            .field("socket", &self.socket)
            .field("waits_for", &self.out.len())
            .finish_non_exhaustive()
    }
}
