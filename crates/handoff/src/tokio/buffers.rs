//! Received bytes as streams: spans, and buffers of a pool.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SocketAddrAny, recvfrom};

use super::call::{as_uninit, poll_call, receive};
use crate::error::{Error, Result};
use crate::lease::Span;
use crate::memory::{Buffer, BufferPool, GetBuffer};
use crate::socket::Socket;
use crate::socket::receive::Receiver;
use crate::transfer::Readiness;

/// As [`next_span`](Receiver::next_span): a stream of spans.
impl Stream for Receiver {
    type Item = Result<Span>;

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Span>>> {
        Pin::new(&mut self.next_span()).poll(context)
    }
}

/// What a socket receives, in buffers of a [`BufferPool`]: a `Stream` that ends with the peer's, or behind an error.
///
/// **Copies:** each byte once, in the kernel. A buffer's length is what came. Buffers cross threads, become
/// [`Frozen`](crate::Frozen) and `Bytes` without a copy, and go back to the pool when you drop them. With no free
/// buffer it waits for one, and the peer waits too; without data it holds none. A datagram is cut at the buffer's
/// length, as with [`Datagrams`].
///
/// **Dropped:** nothing is lost: bytes not handed out are still in the socket.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use bytes::Bytes;
/// use futures_util::StreamExt;
/// use handoff::tokio::Buffers;
/// use handoff::{BufferPool, Region};
///
/// # let (near, mut far) = std::os::unix::net::UnixStream::pair()?;
/// # std::io::Write::write_all(&mut far, b"hello")?;
/// # drop(far);
/// handoff::tokio::run(|driver| async move {
///     let pool = BufferPool::new(Region::anonymous(1 << 20)?, 1 << 14)?;
///     let mut arriving = Buffers::new(driver.socket(near)?, &pool)?;
///     while let Some(buffer) = arriving.next().await {
///         let bytes = Bytes::from(buffer?.freeze());
///         assert_eq!(bytes, "hello");
///     }
///     Ok::<_, handoff::Error>(())
/// })??;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Buffers(Filling);

impl Buffers {
    /// Receives from a socket into buffers of a pool.
    ///
    /// # Errors
    ///
    /// When the socket has a receiver of any kind: two would each get parts of what comes.
    pub fn new(socket: Socket, pool: &BufferPool) -> Result<Self> {
        Filling::new(socket, pool).map(Self)
    }
}

impl Stream for Buffers {
    type Item = Result<Buffer>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let filled = ready!(self.0.poll_filled(context));
        Poll::Ready(filled.map(|filled| filled.map(|(buffer, _)| buffer)))
    }
}

/// Like [`Buffers`], for datagrams with their senders. A datagram longer than its buffer is cut silently: take
/// buffers of the longest that may come. It ends only behind an error.
#[derive(Debug)]
pub struct Datagrams(Filling);

impl Datagrams {
    pub(super) fn new(socket: Socket, pool: &BufferPool) -> Result<Self> {
        Filling::new(socket, pool).map(Self)
    }
}

impl Stream for Datagrams {
    type Item = Result<(Buffer, SocketAddr)>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let filled = ready!(self.0.poll_filled(context));
        Poll::Ready(filled.map(|filled| {
            let (buffer, from) = filled?;
            let from = address_of(from);
            from.map(|from| (buffer, from))
                .map_err(|error| Error::io("receiving a datagram", error.into()))
        }))
    }
}

/// The address that a datagram came from.
pub(super) fn address_of(from: Option<SocketAddrAny>) -> rustix::io::Result<SocketAddr> {
    from.ok_or(Errno::DESTADDRREQ)?.try_into()
}

/// A buffer with what came, and the sender, if the kernel reports it.
type Filled = (Buffer, Option<SocketAddrAny>);

/// Holds the socket's receiver for as long as it exists.
#[derive(Debug)]
struct Filling {
    socket: Socket,
    pool: BufferPool,
    getting: Option<GetBuffer>,
    waiting: Option<Readiness>,
    ended: bool,
}

impl Filling {
    fn new(socket: Socket, pool: &BufferPool) -> Result<Self> {
        socket.shared.reception.take()?;
        Ok(Self { socket, pool: pool.clone(), getting: None, waiting: None, ended: false })
    }

    fn poll_filled(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Filled>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let filled = ready!(self.poll_receive(context));
        self.ended = !matches!(filled, Ok(Some(_)));
        Poll::Ready(filled.transpose())
    }

    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Filled>>> {
        let Self { socket, pool, getting, waiting, .. } = self;
        let get = Pin::new(getting.get_or_insert_with(|| pool.get()));
        let mut buffer = ready!(get.poll(context));
        *getting = None;
        // While the socket has nothing, the buffer goes back.
        let received = ready!(poll_call(socket, waiting, Socket::readable, context, || {
            if socket.shared.stream {
                // SAFETY: bytes that are initialised are written over by such.
                let room = unsafe { as_uninit(&mut buffer[..]) };
                return Ok((receive(socket, room, false)?, None));
            }
            let (bytes, _, from) = recvfrom(&*socket, &mut buffer[..], RecvFlags::DONTWAIT)?;
            Ok((bytes, from))
        }));
        let (bytes, from) = received.map_err(|error| Error::io("receiving", error))?;
        if bytes == 0 && socket.shared.stream {
            return Poll::Ready(Ok(None));
        }
        buffer.set_len(bytes);
        Poll::Ready(Ok(Some((buffer, from))))
    }
}

impl Drop for Filling {
    fn drop(&mut self) {
        self.socket.shared.reception.end();
    }
}
