//! The two directions of a connection, for two tasks.
//!
//! Contracts:
//! - each direction has its own waits, so neither half depends on the other;
//! - a dropped write half ends the connection's writing behind the sends accepted before, like the end of a stream;
//!   the read half keeps the socket open.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::{Shutdown, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use ::tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use socket2::SockRef;

#[cfg(feature = "tls")]
use super::accepted::{self, Accepted};
use super::call::{Receiving, as_uninit, poll_call, poll_receive, receive};
use crate::error::Result;
use crate::op::Waiting;
use crate::socket::{Socket, internet_address};
use crate::transfer::Readiness;

/// The most slices that a call takes (`UIO_MAXIOV`).
const MAX_SLICES: usize = 1024;

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
        ends: false,
    };
    (OwnedReadHalf { socket, reading: Receiving::default() }, write)
}

impl OwnedReadHalf {
    /// As [`TcpStream::peek`](super::TcpStream::peek).
    ///
    /// # Errors
    ///
    /// As of a read.
    pub async fn peek(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let Self { socket, reading } = self;
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

    /// The socket, for lending.
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    fn poll_send(
        &mut self,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_sent(context))?;
        let Self { socket, writing, .. } = self;
        let slices = &slices[..slices.len().min(MAX_SLICES)];
        #[cfg(feature = "tls")]
        if socket.shared.is_deciphered_here() {
            return self.accepted.poll_accept(socket, slices, context);
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        poll_call(socket, writing, Socket::writable, context, || {
            #[cfg(feature = "tls")]
            if let Some(sent) = socket.shared.send_ciphered(slices) {
                return sent.map_err(io::Error::from);
            }
            Ok(sendmsg(&*socket, slices, &mut SendAncillaryBuffer::default(), flags)?)
        })
    }

    /// Waits until the kernel has taken all that was accepted.
    fn poll_sent(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        #[cfg(feature = "tls")]
        ready!(self.accepted.poll_sent(context))?;
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
        let Self { socket, reading } = self.get_mut();
        if into.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let received = ready!(poll_receive(socket, reading, context, || {
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
        ready!(this.poll_sent(context))?;
        let Self { socket, writing, .. } = this;
        // A TLS connection may have no room to say its end.
        let over = ready!(poll_call(socket, writing, Socket::writable, context, || {
            socket.shutdown(Shutdown::Write).map_err(io::Error::from)
        }));
        match over {
            // The peer has ended it by now.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Poll::Ready(Ok(())),
            over => Poll::Ready(over),
        }
    }
}
