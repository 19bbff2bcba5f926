//! Sends as a sink.

use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use ::tokio::task::coop::poll_proceed;
use futures_sink::Sink;

use crate::error::{Error, Result};
use crate::op::loan::{Payload, Refused};
use crate::sleep::Sleep;
use crate::socket::Socket;
use crate::socket::send::{Sending, Sent};

/// What a [`SendSink`] accepts: any payload, alone or with its destination.
pub trait Outgoing: sealed::Outgoing {}

mod sealed {
    use super::{Error, Payload, Sending, Socket};

    pub trait Outgoing {
        type Payload: Payload;

        /// Returns itself if refused.
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
/// **Copies:** none of its own; [`Socket::send_stats`] says what the kernel copies. An item is dropped when it comes
/// back from its loan, so take buffers of a [`BufferPool`](crate::BufferPool). With a zero-copy engine, items in the
/// socket's send buffer are on loan as well as those that the sink waits for.
///
/// **Order and ends:** `feed` accepts an item; it waits while the kernel has yet to take as many as the sink's limit.
/// `flush` waits until the kernel has taken all; `close` does the same and leaves the socket open. While the driver
/// has as many operations under way as it was built for, an accepted item waits in the sink.
///
/// An error is that of the item that failed first. On a stream the sink accepts no items after that; items
/// accepted before may have been sent.
///
/// **Dropped:** if you drop the sink, or a future of it, all accepted items go on, except one that waits for room. An
/// item that was not accepted is dropped with its future.
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
    /// Items that the kernel has not taken, as far as is known.
    out: VecDeque<Sent>,
    /// The item accepted behind those, when there was no room for it.
    kept: Option<I>,
    /// When to look for room again.
    pause: Option<Sleep>,
    /// An item failed, and nothing may follow it.
    failed: bool,
}

impl<I: Outgoing> SendSink<I> {
    /// A sink that accepts at most `limit` items, and at least one, before the kernel has taken the first
    /// of them.
    pub fn new(socket: Socket, limit: usize) -> Self {
        let limit = limit.max(1);
        let out = VecDeque::new();
        Self { socket, limit, cancels: false, out, kept: None, pause: None, failed: false }
    }

    /// Cancels items that the kernel has not taken when you drop the sink, like [`Sent::cancel_on_drop`].
    pub fn cancel_on_drop(mut self) -> Self {
        self.cancels = true;
        self
    }

    /// The socket, for sending beside the sink, or for receiving.
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Waits until the kernel has taken all items but so many.
    fn poll_taken(&mut self, but: usize, context: &mut Context<'_>) -> Poll<Result<()>> {
        // Copied sends are over at once; other tasks get their turn all the same.
        let budget = ready!(poll_proceed(context));
        loop {
            // Finished sends make room.
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
                self.pause = Some(Sleep::for_room(&self.socket.driver));
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
