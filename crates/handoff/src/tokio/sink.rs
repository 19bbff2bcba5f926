//! Sends as a sink.

use std::collections::VecDeque;
use std::fmt;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use ::tokio::task::coop::poll_proceed;
use futures_sink::Sink;

use crate::error::{Error, Result};
use crate::op::loan::{Payload, Refused};
use crate::socket::Socket;
use crate::socket::send::{Sending, Sent};

/// What a [`SendSink`] takes: anything that is lent for sending, alone or with the address that it goes to.
pub trait Outgoing: sealed::Outgoing {}

mod sealed {
    use super::{Payload, Refused, Sending, Socket};

    pub trait Outgoing {
        type Payload: Payload;

        fn send(self, socket: &Socket) -> Result<Sending<Self::Payload>, Refused<Self::Payload>>;
    }
}

impl<B: Payload> Outgoing for B {}
impl<B: Payload> sealed::Outgoing for B {
    type Payload = B;

    fn send(self, socket: &Socket) -> Result<Sending<B>, Refused<B>> {
        socket.send(self)
    }
}

impl<B: Payload> Outgoing for (B, SocketAddr) {}
impl<B: Payload> sealed::Outgoing for (B, SocketAddr) {
    type Payload = B;

    fn send(self, socket: &Socket) -> Result<Sending<B>, Refused<B>> {
        let (buffer, address) = self;
        socket.message(buffer).to(address).send()
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
/// `flush` waits until the kernel has taken all, `close` does the same and leaves the socket open. An error is that of
/// the item that failed first; on a stream nothing goes after it. An item that is refused (too many operations under
/// way: [`Error::Busy`]) is dropped.
///
/// **Dropped:** the sink, or a future of it, lets all accepted items go on. An item that was not accepted is dropped with
/// the future that has it.
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
    items: PhantomData<fn(I)>,
}

impl<I: Outgoing> SendSink<I> {
    /// A sink that accepts at most `limit` items, and at least one, before the kernel has taken the first of them.
    pub fn new(socket: Socket, limit: usize) -> Self {
        let limit = limit.max(1);
        Self { socket, limit, cancels: false, out: VecDeque::new(), items: PhantomData }
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
        while let Some(first) = self.out.front_mut() {
            match Pin::new(first).poll(context) {
                Poll::Ready(over) => {
                    self.out.pop_front();
                    over?;
                }
                Poll::Pending if self.out.len() <= but => break,
                Poll::Pending => return Poll::Pending,
            }
        }
        budget.made_progress();
        Poll::Ready(Ok(()))
    }
}

impl<I: Outgoing> Sink<I> for SendSink<I> {
    type Error = Error;

    fn poll_ready(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let but = self.limit - 1;
        self.poll_taken(but, context)
    }

    fn start_send(mut self: Pin<&mut Self>, item: I) -> Result<()> {
        let sending = item.send(&self.socket).map_err(|refused| refused.error)?;
        // The buffer is dropped as soon as it is back, whether the sink is polled or not.
        let (sent, _) = sending.split();
        let sent = if self.cancels { sent.cancel_on_drop() } else { sent };
        self.out.push_back(sent);
        Ok(())
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
