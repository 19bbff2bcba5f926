//! Connections with tokio's traits for reading and writing, which also lend.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use socket2::{Domain, Protocol, SockRef, Type};

use super::halves::{OwnedReadHalf, OwnedWriteHalf};
use super::stream::stream;
use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::socket::Socket;
use crate::socket::listen::Listener;

/// The most connections that are not accepted yet; the kernel's own limit is `net.core.somaxconn`.
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
    /// [`per_core`](super::per_core) does. The kernel spreads connections over them by the peers' addresses.
    /// Connections that nobody has accepted go with their listener: bind all listeners before the first peer
    /// connects, and keep them.
    ///
    /// # Errors
    ///
    /// As [`bind`](Self::bind), and when somebody has the address without sharing it.
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

    /// The next connection, and the address of its peer. Dropping it loses no connection.
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
    /// The kernel's error about the socket.
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

/// A socket of another kind than the type needs, given back.
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

/// A connection for code that reads by `AsyncRead` and writes by `AsyncWrite`, and the [`Socket`] for
/// everything that lends.
///
/// **Copies:** reading and writing copy each byte once, in the kernel, between the socket and your slice, as tokio's
/// own connections do. Sends by [`socket`](Self::socket) lend.
///
/// **Order:** a write goes behind all sends accepted before it: it waits until the kernel has taken every send, also
/// those accepted meanwhile. `flush` waits in the same way, and `shutdown` ends the connection's writing behind
/// them.
///
/// **Dropped futures:** a dropped read or write has moved nothing. If you drop the stream, its sends go on, and the
/// socket closes after them.
///
/// **Reading in two ways:** a socket has one receiver. While a [`Receiver`](crate::Receiver) or a receive into a
/// buffer exists, reading fails.
///
/// **Halves:** [`into_split`](Self::into_split) gives a reader and a writer for two tasks of the thread; each of
/// [`socket`](Self::socket)'s clones sends beside them. `stream.socket().shutdown(how)` ends either direction at once.
///
/// **Options:** `socket2::SockRef::from(&stream)` has more of them.
///
/// Each wait is an operation of the driver.
#[derive(Debug)]
pub struct TcpStream {
    read: OwnedReadHalf,
    write: OwnedWriteHalf,
}

impl TcpStream {
    /// `write` is of the same socket, and dropping it ends nothing.
    fn of_halves(read: OwnedReadHalf, write: OwnedWriteHalf) -> Self {
        Self { read, write }
    }

    /// A reader and a writer, for a task each ([`spawn_local`](::tokio::task::spawn_local)).
    /// [`OwnedReadHalf::reunite`] joins them again. Dropping the write half ends the connection's writing.
    ///
    /// ```no_run
    /// use handoff::tokio::TcpStream;
    /// use tokio::io::{AsyncReadExt, AsyncWriteExt};
    /// use tokio::task::spawn_local;
    ///
    /// async fn ask(stream: TcpStream) -> std::io::Result<Vec<u8>> {
    ///     let (mut read, mut write) = stream.into_split();
    ///     let asking = spawn_local(async move { write.write_all(b"a question").await });
    ///     let mut answer = Vec::new();
    ///     read.read_to_end(&mut answer).await?;
    ///     asking.await??;
    ///     Ok(answer)
    /// }
    /// ```
    pub fn into_split(self) -> (OwnedReadHalf, OwnedWriteHalf) {
        (self.read, self.write.ending(true))
    }

    /// Makes a connection. Dropping the future abandons it.
    ///
    /// # Errors
    ///
    /// As [`Driver::connect`], and the kernel's error about the peer.
    pub async fn connect(driver: &Driver, address: SocketAddr) -> Result<Self> {
        Ok(Self::of_stream(driver.connect(address)?.await?))
    }

    /// The address of this end.
    ///
    /// # Errors
    ///
    /// The kernel's error about the socket; when its family is not an internet one.
    pub fn local_addr(&self) -> Result<SocketAddr> {
        self.read.local_addr()
    }

    /// The address of the peer.
    ///
    /// # Errors
    ///
    /// As [`local_addr`](Self::local_addr).
    pub fn peer_addr(&self) -> Result<SocketAddr> {
        self.read.peer_addr()
    }

    /// Whether small writes leave at once (`TCP_NODELAY`), without waiting for earlier bytes to be
    /// acknowledged.
    ///
    /// # Errors
    ///
    /// When the socket is not of TCP.
    pub fn set_nodelay(&self, at_once: bool) -> Result<()> {
        SockRef::from(self)
            .set_tcp_nodelay(at_once)
            .map_err(|error| Error::io("setting TCP_NODELAY", error))
    }

    /// Whether they do.
    ///
    /// # Errors
    ///
    /// As [`set_nodelay`](Self::set_nodelay).
    pub fn nodelay(&self) -> Result<bool> {
        SockRef::from(self)
            .tcp_nodelay()
            .map_err(|error| Error::io("asking for TCP_NODELAY", error))
    }
}

/// Two halves of different streams, both given back.
///
/// ```no_run
/// # fn example(stream: handoff::tokio::TcpStream, other: handoff::tokio::TcpStream) {
/// use handoff::tokio::ReuniteError;
///
/// let (read, write) = stream.into_split();
/// let (_, others) = other.into_split();
/// let ReuniteError(read, _) = read.reunite(others).expect_err("they are of two streams");
/// let _stream = read.reunite(write).expect("they are of one");
/// # }
/// ```
#[derive(Debug)]
pub struct ReuniteError(pub OwnedReadHalf, pub OwnedWriteHalf);

impl fmt::Display for ReuniteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the halves are not of one stream: reunite those that one into_split gave")
    }
}

impl std::error::Error for ReuniteError {}

impl OwnedReadHalf {
    /// The stream again.
    ///
    /// # Errors
    ///
    /// Returns both if they are of two streams.
    #[allow(clippy::result_large_err, reason = "both halves come back")]
    pub fn reunite(self, write: OwnedWriteHalf) -> Result<TcpStream, ReuniteError> {
        if Rc::ptr_eq(&self.socket.shared, &write.socket.shared) {
            Ok(TcpStream::of_halves(self, OwnedWriteHalf::ending(write, false)))
        } else {
            Err(ReuniteError(self, write))
        }
    }
}

impl OwnedWriteHalf {
    /// As [`OwnedReadHalf::reunite`].
    ///
    /// # Errors
    ///
    /// As there.
    #[allow(clippy::result_large_err, reason = "both halves come back")]
    pub fn reunite(self, read: OwnedReadHalf) -> Result<TcpStream, ReuniteError> {
        read.reunite(self)
    }
}

impl TryFrom<Socket> for TcpStream {
    type Error = OtherSocket;

    /// Takes any connected stream, of Unix sockets and of TLS too.
    fn try_from(socket: Socket) -> Result<Self, OtherSocket> {
        if !socket.shared.stream {
            let why = "a datagram socket is no stream: use handoff::tokio::UdpSocket";
            return Err(OtherSocket { socket, error: Error::Invalid(why) });
        }
        Ok(Self::of_stream(socket))
    }
}

stream!(TcpStream);
