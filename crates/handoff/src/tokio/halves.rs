//! The two directions of a connection, for two tasks.
//!
//! Contracts:
//! - each direction has its own waits, so neither half depends on the other;
//! - a dropped write half ends the connection's writing behind the sends accepted before, like the end of a stream;
//!   the read half keeps the socket open.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Shutdown, SocketAddr};
use std::pin::Pin;
use std::task::{self, Context, Poll};

use ::tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf, Ready};
use bytes::BufMut;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use socket2::SockRef;

#[cfg(feature = "tls")]
use super::accepted::{self, Accepted};
use super::call::{MAX_SLICES, Receiving, as_uninit, poll_call, poll_receive, receive};
use super::ready::{self, Full, Waits};
use crate::error::{Error, Result};
use crate::op::Waiting;
use crate::socket::{Socket, internet_address};
use crate::transfer::Readiness;

/// The reading direction of a connection, made by [`TcpStream::into_split`](super::TcpStream::into_split). It reads as the stream does. Dropping it
/// ends nothing: the connection stays as long as either half exists.
///
/// ```no_run
/// use handoff::tokio::OwnedReadHalf;
/// use tokio::io::AsyncReadExt;
///
/// async fn count(mut half: OwnedReadHalf) -> std::io::Result<usize> {
///     let (mut bytes, mut part) = (0, vec![0; 1 << 14]);
///     loop {
///         match half.read(&mut part).await? {
///             0 => return Ok(bytes),
///             read => bytes += read,
///         }
///     }
/// }
/// ```
#[derive(Debug)]
pub struct OwnedReadHalf {
    pub(super) socket: Socket,
    reading: Receiving,
    /// The wait of [`poll_read_ready`](Self::poll_read_ready).
    polled: RefCell<Option<Box<Waits>>>,
}

/// The writing direction of a connection, made by [`TcpStream::into_split`](super::TcpStream::into_split). It writes as the stream does.
///
/// Dropping it ends the connection's writing behind the sends accepted before, so that the peer reads its end;
/// [`forget`](Self::forget) does not. If a [`Lane`](crate::Lane) sends on the socket, dropping ends nothing.
///
/// ```no_run
/// use handoff::tokio::OwnedWriteHalf;
/// use tokio::io::AsyncWriteExt;
///
/// async fn say(mut half: OwnedWriteHalf) -> std::io::Result<()> {
///     half.write_all(b"that is all").await
///     // Here the peer reads the end.
/// }
/// ```
#[derive(Debug)]
pub struct OwnedWriteHalf {
    pub(super) socket: Socket,
    writing: Option<Readiness>,
    /// The end of the sends before a write.
    flushing: Waiting,
    /// What this process has yet to cipher of the last write.
    #[cfg(feature = "tls")]
    accepted: Accepted,
    /// The wait of [`poll_write_ready`](Self::poll_write_ready).
    polled: RefCell<Option<Box<Waits>>>,
    pub(super) full: Full,
    /// Dropping it ends the writing.
    ends: bool,
}

/// The whole of a stream.
pub(super) fn halves(socket: Socket) -> (OwnedReadHalf, OwnedWriteHalf) {
    let write = OwnedWriteHalf {
        socket: socket.clone(),
        writing: None,
        flushing: Waiting::default(),
        #[cfg(feature = "tls")]
        accepted: Accepted::default(),
        polled: RefCell::default(),
        full: Full::default(),
        ends: false,
    };
    (OwnedReadHalf { socket, reading: Receiving::default(), polled: RefCell::default() }, write)
}

impl OwnedReadHalf {
    /// As [`TcpStream::peek`](super::TcpStream::peek).
    ///
    /// # Errors
    ///
    /// As of a read.
    pub async fn peek(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let Self { socket, reading, .. } = self;
        if into.is_empty() {
            return Ok(0);
        }
        poll_fn(|context| {
            poll_receive(socket, reading, context, || {
                // SAFETY: bytes that are initialised are written over by such.
                receive(socket, unsafe { as_uninit(into) }, true)
            })
        })
        .await
    }

    /// As [`TcpStream::local_addr`](super::TcpStream::local_addr).
    ///
    /// # Errors
    ///
    /// What the kernel says of the socket.
    pub fn local_addr(&self) -> Result<SocketAddr> {
        local_addr(&self.socket)
    }

    /// As [`TcpStream::peer_addr`](super::TcpStream::peer_addr).
    ///
    /// # Errors
    ///
    /// What the kernel says of the socket.
    pub fn peer_addr(&self) -> Result<SocketAddr> {
        peer_addr(&self.socket)
    }

    /// Waits until a read has something to give: bytes, the end, or an error. This asks the kernel each time, so it also
    /// waits behind a read that has taken everything. Nothing is read, so you may drop it.
    ///
    /// # Errors
    ///
    /// While the socket has a receiver; the driver's.
    pub async fn readable(&self) -> io::Result<()> {
        self.ready(Interest::READABLE).await.map(drop)
    }

    /// As [`readable`](Self::readable), and tells whether the peer has ended its direction.
    ///
    /// # Errors
    ///
    /// As `readable`; for an interest in more than reading.
    pub async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        if interest != Interest::READABLE {
            return Err(Error::Invalid("a read half is ready to be read, and nothing else").into());
        }
        ready::ready(&self.socket, interest, &Full::default(), |_, _| true).await
    }

    /// As [`readable`](Self::readable), for code that polls. The last task that polled is woken.
    ///
    /// # Errors
    ///
    /// As `readable`.
    pub fn poll_read_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut waits = self.polled.borrow_mut();
        let waits = waits.get_or_insert_default();
        ready::poll_ready(&self.socket, waits, true, None, context).map_ok(drop)
    }

    /// Reads what has come, without a wait; 0 is the end.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if nothing has; as of a read.
    pub fn try_read(&self, into: &mut [u8]) -> io::Result<usize> {
        // SAFETY: bytes that are initialised are written over by such.
        ready::try_read(&self.socket, unsafe { as_uninit(into) })
    }

    /// As [`try_read`](Self::try_read), into several slices one after another. What is deciphered fills the first only.
    ///
    /// # Errors
    ///
    /// As `try_read`.
    pub fn try_read_vectored(&self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        ready::try_read_vectored(&self.socket, into)
    }

    /// As [`try_read`](Self::try_read), behind the bytes of a buffer, whose room is not cleared before.
    ///
    /// # Errors
    ///
    /// As `try_read`.
    pub fn try_read_buf<B: BufMut + ?Sized>(&self, into: &mut B) -> io::Result<usize> {
        let read = |room: &mut [_]| Ok((ready::try_read(&self.socket, room)?, ()));
        ready::into_buf(into, read).map(|(bytes, ())| bytes)
    }

    /// The socket, for receiving by lending.
    pub fn socket(&self) -> &Socket {
        &self.socket
    }
}

impl OwnedWriteHalf {
    pub(super) fn ending(mut self, ends: bool) -> Self {
        self.ends = ends;
        self
    }

    /// Drops it without ending the writing, which then ends with the last handle on the socket.
    pub fn forget(self) {
        drop(self.ending(false));
    }

    /// As [`TcpStream::local_addr`](super::TcpStream::local_addr).
    ///
    /// # Errors
    ///
    /// What the kernel says of the socket.
    pub fn local_addr(&self) -> Result<SocketAddr> {
        local_addr(&self.socket)
    }

    /// As [`TcpStream::peer_addr`](super::TcpStream::peer_addr).
    ///
    /// # Errors
    ///
    /// What the kernel says of the socket.
    pub fn peer_addr(&self) -> Result<SocketAddr> {
        peer_addr(&self.socket)
    }

    /// Waits until a write has room, or an error to tell: all sends that were accepted before are with the kernel, and
    /// no write without a wait has found the socket full since the kernel told of room. Nothing is written, so you may drop
    /// it.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub async fn writable(&self) -> io::Result<()> {
        self.ready(Interest::WRITABLE).await.map(drop)
    }

    /// As [`writable`](Self::writable), and tells whether the connection is over.
    ///
    /// # Errors
    ///
    /// As `writable`.
    pub async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        let is_free =
            |waiting: &mut Waiting, context: &mut Context<'_>| self.is_free(waiting, context);
        ready::ready(&self.socket, interest, &self.full, is_free).await
    }

    /// As [`writable`](Self::writable), for code that polls. The last task that polled is woken.
    ///
    /// # Errors
    ///
    /// As `writable`.
    pub fn poll_write_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut waits = self.polled.borrow_mut();
        let waits = waits.get_or_insert_default();
        let writes = self.is_free(&mut waits.flushing, context).then_some(&self.full);
        ready::poll_ready(&self.socket, waits, false, writes, context).map_ok(drop)
    }

    /// Writes as much as there is room for, without a wait.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if there is no room, or sends accepted before are not with the kernel yet: a write overtakes nothing.
    /// As of a write.
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.try_write_vectored(&[IoSlice::new(bytes)])
    }

    /// As [`try_write`](Self::try_write), of several slices one after another.
    ///
    /// # Errors
    ///
    /// As `try_write`.
    pub fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let slices = &slices[..slices.len().min(MAX_SLICES)];
        #[cfg(feature = "tls")]
        if self.socket.shared.is_deciphered_here() {
            // What fills is the cipher's, which `is_free` waits for.
            ready::try_sending(&self.socket, &Full::default(), false, || Ok(()))?;
            return self.accepted.try_accept(&self.socket, slices, &self.full);
        }
        ready::try_sending(&self.socket, &self.full, false, || send_now(&self.socket, slices))
    }

    /// Whether what was accepted last has gone.
    fn is_free(&self, waiting: &mut Waiting, context: &mut Context<'_>) -> bool {
        #[cfg(feature = "tls")]
        return self.accepted.poll_over(&self.socket, waiting, context).is_ready();
        #[cfg(not(feature = "tls"))]
        {
            let _ = (waiting, context);
            true
        }
    }

    /// The socket, for lending.
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    fn poll_send(
        &mut self,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        task::ready!(self.poll_sent(context))?;
        let Self { socket, writing, .. } = self;
        let slices = &slices[..slices.len().min(MAX_SLICES)];
        #[cfg(feature = "tls")]
        if socket.shared.is_deciphered_here() {
            return self.accepted.poll_accept(socket, slices, context);
        }
        poll_call(socket, writing, Socket::writable, context, || send_now(socket, slices))
    }

    /// Waits until the kernel has taken all that was accepted.
    fn poll_sent(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        #[cfg(feature = "tls")]
        task::ready!(self.accepted.poll_sent(context))?;
        self.socket.poll_flush(&mut self.flushing, context).map_err(io::Error::from)
    }
}

impl Drop for OwnedWriteHalf {
    fn drop(&mut self) {
        if self.ends && self.socket.driver.core.is_here() {
            #[cfg(feature = "tls")]
            accepted::close(&self.socket);
            self.socket.shared.end_writing();
        }
    }
}

/// Sends by a call, by whoever ciphers.
fn send_now(socket: &Socket, slices: &[IoSlice<'_>]) -> io::Result<usize> {
    #[cfg(feature = "tls")]
    if let Some(sent) = socket.shared.send_ciphered(slices) {
        return sent.map_err(io::Error::from);
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    Ok(sendmsg(socket, slices, &mut SendAncillaryBuffer::default(), flags)?)
}

pub(super) fn local_addr(socket: &Socket) -> Result<SocketAddr> {
    internet_address(SockRef::from(socket).local_addr())
}

pub(super) fn peer_addr(socket: &Socket) -> Result<SocketAddr> {
    internet_address(SockRef::from(socket).peer_addr())
}

impl AsyncRead for OwnedReadHalf {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { socket, reading, .. } = self.get_mut();
        if into.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let received = task::ready!(poll_receive(socket, reading, context, || {
            // SAFETY: the kernel writes bytes there, and nobody makes any of them uninitialised.
            let room = unsafe { into.unfilled_mut() };
            receive(socket, room, false)
        }))?;
        // SAFETY: the kernel has written so many.
        unsafe { into.assume_init(received) };
        into.advance(received);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for OwnedWriteHalf {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().poll_send(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().poll_send(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_sent(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        task::ready!(this.poll_sent(context))?;
        let Self { socket, writing, .. } = this;
        if !socket.shared.is_ciphered() {
            // A write that was given up may wait for room for ever.
            *writing = None;
        }
        // A TLS connection may have no room to say its end.
        let over = task::ready!(poll_call(socket, writing, Socket::writable, context, || {
            socket.shutdown(Shutdown::Write).map_err(io::Error::from)
        }));
        match over {
            // The peer has ended it by now.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Poll::Ready(Ok(())),
            over => Poll::Ready(over),
        }
    }
}
