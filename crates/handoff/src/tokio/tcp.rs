//! Connections that are read and written as tokio's are, and lend beside that.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use ::tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use futures_core::Stream;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, sendmsg};
use socket2::{Domain, Protocol, SockRef, Type};

use super::call::{Receiving, poll_call, poll_receive};
use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::op::Waiting;
use crate::socket::listen::Listener;
use crate::socket::{Socket, internet_address};
use crate::transfer::Readiness;

/// The most slices that a call takes (`UIO_MAXIOV`).
const MAX_SLICES: usize = 1024;

/// Connections that are not accepted yet, at most; the kernel's own limit is `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// A socket that gives a [`TcpStream`] for each connection: by [`accept`](Self::accept), or as a `Stream`, which
/// never ends.
#[derive(Debug)]
pub struct TcpListener(Listener);

impl TcpListener {
    /// Listens on an address.
    ///
    /// # Errors
    ///
    /// When the address is taken, or is not of this machine; when too many operations are under way.
    pub fn bind(driver: &Driver, address: SocketAddr) -> Result<Self> {
        Self::open(driver, address, false)
    }

    /// Listens on an address that others of the same user share (`SO_REUSEPORT`), as each thread of
    /// [`per_core`](super::per_core) does. The kernel spreads connections over them by the addresses of the peers.
    /// Connections that nobody has accepted go with their listener: bind all before the first peer connects,
    /// and keep them.
    ///
    /// # Errors
    ///
    /// As [`bind`](Self::bind), and when the address is taken by one that does not share it.
    pub fn bind_shared(driver: &Driver, address: SocketAddr) -> Result<Self> {
        Self::open(driver, address, true)
    }

    fn open(driver: &Driver, address: SocketAddr, shared: bool) -> Result<Self> {
        let open = || {
            let domain = Domain::for_address(address);
            let socket = socket2::Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
            // The address is free again as soon as its listener is gone.
            socket.set_reuse_address(true)?;
            socket.set_reuse_port(shared)?;
            socket.bind(&address.into())?;
            socket.listen(BACKLOG)?;
            Ok(socket)
        };
        let socket = open().map_err(|error: io::Error| {
            Error::descriptor("listening", error.raw_os_error().unwrap_or(libc::EIO))
        })?;
        driver.listen(socket.into()).map(Self)
    }

    /// The next connection, and the address of its peer. Dropped, it loses no connection.
    ///
    /// # Errors
    ///
    /// As [`Listener::accept`] says.
    pub async fn accept(&mut self) -> Result<(TcpStream, SocketAddr)> {
        poll_fn(|context| self.poll_accept(context)).await
    }

    fn poll_accept(&mut self, context: &mut Context<'_>) -> Poll<Result<(TcpStream, SocketAddr)>> {
        let (socket, peer) = ready!(self.0.poll_accept(context))?;
        Poll::Ready(Ok((TcpStream::of_stream(socket), peer)))
    }

    /// The address that it listens on.
    ///
    /// # Errors
    ///
    /// What the kernel says of the socket.
    pub fn local_addr(&self) -> Result<SocketAddr> {
        self.0.local_addr()
    }
}

impl AsFd for TcpListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<Listener> for TcpListener {
    fn from(listener: Listener) -> Self {
        Self(listener)
    }
}

impl Stream for TcpListener {
    type Item = Result<(TcpStream, SocketAddr)>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_accept(context).map(Some)
    }
}

/// A socket of another kind than the type is for: the socket is given back.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use handoff::Driver;
/// use handoff::tokio::{TcpStream, UdpSocket};
///
/// let socket = Driver::new()?.socket(std::net::UdpSocket::bind("127.0.0.1:0")?)?;
/// let other = TcpStream::try_from(socket).expect_err("it is of UDP");
/// println!("{}", other.error);
/// let _datagrams = UdpSocket::try_from(other.socket)?;
/// # Ok(()) }
/// ```
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct OtherSocket {
    /// The socket.
    pub socket: Socket,
    /// What is wrong with it.
    #[source]
    pub error: Error,
}

impl From<OtherSocket> for Error {
    fn from(other: OtherSocket) -> Self {
        other.error
    }
}

/// A connection for code that reads by `AsyncRead` and writes by `AsyncWrite`, and the [`Socket`] for all that lends.
///
/// **Copies:** reading and writing copy each byte once, in the kernel, between the socket and your slice, as tokio's
/// own connections do. What is sent by [`socket`](Self::socket) is lent.
///
/// **Order:** a write goes behind all sends that were accepted before it: it waits until the kernel has taken every
/// send, also those that are accepted meanwhile. `flush` waits in the same way, and `shutdown` ends the connection's
/// writing behind them.
///
/// **Dropped futures:** a read or write that is dropped has moved nothing. A dropped stream has its sends go on, and
/// closes the socket after them.
///
/// **Reading in two ways:** a socket has one receiver. While a [`Receiver`](crate::Receiver) or a receive into a buffer is
/// there, reading fails.
///
/// **Halves:** `tokio::io::split` gives a reader and a writer; each of [`socket`](Self::socket)'s clones sends beside
/// them. `stream.socket().shutdown(how)` ends either direction at once.
///
/// **Options:** `socket2::SockRef::from(&stream)` has more of them.
///
/// Each wait is an operation of the driver.
#[derive(Debug)]
pub struct TcpStream {
    socket: Socket,
    reading: Receiving,
    writing: Option<Readiness>,
    /// The end of the sends before a write.
    flushing: Waiting,
}

impl TcpStream {
    fn of_stream(socket: Socket) -> Self {
        let (reading, flushing) = Default::default();
        Self { socket, reading, writing: None, flushing }
    }

    /// Makes a connection. Dropped, it is given up.
    ///
    /// # Errors
    ///
    /// As [`Driver::connect`], and what the kernel says of the peer.
    pub async fn connect(driver: &Driver, address: SocketAddr) -> Result<Self> {
        Ok(Self::of_stream(driver.connect(address)?.await?))
    }

    /// The address of this end.
    ///
    /// # Errors
    ///
    /// What the kernel says of the socket; when it is of another family than the internet's.
    pub fn local_addr(&self) -> Result<SocketAddr> {
        internet_address(SockRef::from(&self.socket).local_addr())
    }

    /// The address of the peer.
    ///
    /// # Errors
    ///
    /// As [`local_addr`](Self::local_addr).
    pub fn peer_addr(&self) -> Result<SocketAddr> {
        internet_address(SockRef::from(&self.socket).peer_addr())
    }

    /// Whether small writes leave at once (`TCP_NODELAY`), instead of waiting for what was sent to be acknowledged.
    ///
    /// # Errors
    ///
    /// When the socket is not of TCP.
    pub fn set_nodelay(&self, at_once: bool) -> Result<()> {
        SockRef::from(&self.socket)
            .set_tcp_nodelay(at_once)
            .map_err(|error| Error::io("setting TCP_NODELAY", error))
    }

    /// Whether they do.
    ///
    /// # Errors
    ///
    /// As [`set_nodelay`](Self::set_nodelay).
    pub fn nodelay(&self) -> Result<bool> {
        SockRef::from(&self.socket)
            .tcp_nodelay()
            .map_err(|error| Error::io("asking for TCP_NODELAY", error))
    }

    /// As a read, and what comes stays there for the next. 0 is the end.
    ///
    /// # Errors
    ///
    /// As of a read.
    pub async fn peek(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let Self { socket, reading, .. } = self;
        poll_fn(|context| {
            poll_receive(socket, reading, context, || {
                recv(&*socket, &mut *into, RecvFlags::DONTWAIT | RecvFlags::PEEK)
                    .map(|(bytes, _)| bytes)
            })
        })
        .await
    }

    /// The socket, to lend by.
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// The socket alone. Nothing that came is lost.
    pub fn into_socket(self) -> Socket {
        self.socket
    }

    fn poll_send(
        &mut self,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let Self { socket, writing, flushing, .. } = self;
        ready!(socket.poll_flush(flushing, context))?;
        let slices = &slices[..slices.len().min(MAX_SLICES)];
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        poll_call(socket, writing, Socket::writable, context, || {
            sendmsg(&*socket, slices, &mut SendAncillaryBuffer::default(), flags)
        })
    }
}

impl TryFrom<Socket> for TcpStream {
    type Error = OtherSocket;

    /// Takes any connected stream, of Unix sockets too.
    fn try_from(socket: Socket) -> Result<Self, OtherSocket> {
        if !socket.shared.stream {
            let why = "a datagram socket is no stream: use handoff::tokio::UdpSocket";
            return Err(OtherSocket { socket, error: Error::Invalid(why) });
        }
        Ok(Self::of_stream(socket))
    }
}

impl AsFd for TcpStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsyncRead for TcpStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { socket, reading, .. } = self.get_mut();
        if into.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let received = ready!(poll_receive(socket, reading, context, || {
            // SAFETY: the kernel writes bytes there, and nobody makes any of them uninitialised.
            let room = unsafe { into.unfilled_mut() };
            recv(&*socket, room, RecvFlags::DONTWAIT).map(|((bytes, _), _)| bytes.len())
        }))?;
        // SAFETY: the kernel has written so many.
        unsafe { into.assume_init(received) };
        into.advance(received);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for TcpStream {
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
        let Self { socket, flushing, .. } = self.get_mut();
        socket.poll_flush(flushing, context).map_err(io::Error::from)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.as_mut().poll_flush(context))?;
        match self.socket.shutdown(Shutdown::Write).map_err(io::Error::from) {
            // The peer has ended it by now.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Poll::Ready(Ok(())),
            over => Poll::Ready(over),
        }
    }
}
