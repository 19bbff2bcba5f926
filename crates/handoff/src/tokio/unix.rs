//! Unix sockets with tokio's names: connections, and datagrams.

use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use ::tokio::task::coop::consume_budget;
use futures_core::Stream;
use rustix::net::{SocketAddrAny, SocketAddrUnix};
use socket2::SockRef;

use super::datagrams::{Datagrams, datagrams};
use super::halves::{OwnedReadHalf, OwnedWriteHalf};
use super::ready::LOOK_AGAIN;
use super::stream::stream;
use super::tcp::{OtherSocket, ReuniteError};
use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::sleep::Sleep;
use crate::socket::Socket;
use crate::socket::unix::UnixListener as Listener;
use crate::unix::{Credentials, UnixAddress, UnixKind};

/// A Unix socket that gives a [`UnixStream`] for each connection: by [`accept`](Self::accept), or as a `Stream`, which
/// never ends. [`handoff::UnixListener`](crate::UnixListener) says what becomes of its file.
///
/// ```
/// use handoff::tokio::{UnixListener, UnixStream};
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("socket");
/// handoff::tokio::run(|driver| async move {
///     let mut listener = UnixListener::bind(&driver, &path)?;
///     let mut near = UnixStream::connect(&driver, &path).await?;
///     let (mut far, _) = listener.accept().await?;
///     println!("user {} has connected", far.peer_cred()?.uid);
///     near.write_all(b"hello").await?;
///     near.shutdown().await?;
///     let mut said = String::new();
///     far.read_to_string(&mut said).await?;
///     assert_eq!(said, "hello");
///     Ok::<_, std::io::Error>(())
/// })??;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct UnixListener(Listener);

impl UnixListener {
    /// Listens at a path.
    ///
    /// # Errors
    ///
    /// As [`Driver::listen_unix`], and for a path that cannot be a name.
    pub fn bind(driver: &Driver, path: impl AsRef<Path>) -> Result<Self> {
        Self::bind_addr(driver, &UnixAddress::path(path)?)
    }

    /// Listens at a name of any kind.
    ///
    /// # Errors
    ///
    /// As [`Driver::listen_unix`].
    pub fn bind_addr(driver: &Driver, address: &UnixAddress) -> Result<Self> {
        driver.listen_unix(address, UnixKind::Stream).map(Self)
    }

    /// The next connection, and the name of its peer, which most clients lack. Dropping it loses no connection.
    ///
    /// # Errors
    ///
    /// As [`handoff::UnixListener::accept`](crate::UnixListener::accept) says.
    pub async fn accept(&mut self) -> Result<(UnixStream, UnixAddress)> {
        poll_fn(|context| self.poll_accept(context)).await
    }

    fn poll_accept(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<(UnixStream, UnixAddress)>> {
        let (socket, peer) = ready!(self.0.poll_accept(context))?;
        Poll::Ready(Ok((UnixStream::of_stream(socket), peer)))
    }

    /// The name that it listens at.
    ///
    /// # Errors
    ///
    /// The kernel's error about the socket.
    pub fn local_addr(&self) -> Result<UnixAddress> {
        self.0.local_addr()
    }
}

impl AsFd for UnixListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Stream for UnixListener {
    type Item = Result<(UnixStream, UnixAddress)>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_accept(context).map(Some)
    }
}

/// A connection over a Unix socket, used as a [`TcpStream`](super::TcpStream) is. Its sends copy: the kernel has no other
/// way. [`socket`](Self::socket) passes descriptors.
#[derive(Debug)]
pub struct UnixStream {
    read: OwnedReadHalf,
    write: OwnedWriteHalf,
}

impl UnixStream {
    /// Connects to a path. Dropping the future abandons it.
    ///
    /// # Errors
    ///
    /// As [`Driver::connect_unix`], and the kernel's error about the peer.
    pub async fn connect(driver: &Driver, path: impl AsRef<Path>) -> Result<Self> {
        Self::connect_addr(driver, &UnixAddress::path(path)?).await
    }

    /// Connects to a name of any kind.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect).
    pub async fn connect_addr(driver: &Driver, address: &UnixAddress) -> Result<Self> {
        Ok(Self::of_stream(driver.connect_unix(address, UnixKind::Stream)?.await?))
    }

    /// Two ends of a connection without a name.
    ///
    /// # Errors
    ///
    /// As [`Driver::unix_pair`].
    pub fn pair(driver: &Driver) -> Result<(Self, Self)> {
        let (one, other) = driver.unix_pair(UnixKind::Stream)?;
        Ok((Self::of_stream(one), Self::of_stream(other)))
    }

    /// A reader and a writer, as of [`TcpStream::into_split`](super::TcpStream::into_split). Their
    /// [`socket`](OwnedReadHalf::socket) has the names ([`UnixAddress::local`], [`UnixAddress::peer`]), and
    /// [`reunite`](Self::reunite) joins them again.
    pub fn into_split(self) -> (OwnedReadHalf, OwnedWriteHalf) {
        (self.read, self.write.ending(true))
    }

    /// The stream of two halves.
    ///
    /// # Errors
    ///
    /// Returns both if they are of two streams, or of TCP.
    #[allow(clippy::result_large_err, reason = "both halves come back")]
    pub fn reunite(read: OwnedReadHalf, write: OwnedWriteHalf) -> Result<Self, ReuniteError> {
        if Rc::ptr_eq(&read.socket.shared, &write.socket.shared) && read.socket.shared.unix {
            Ok(Self { read, write: write.ending(false) })
        } else {
            Err(ReuniteError(read, write))
        }
    }

    /// The name of this end.
    ///
    /// # Errors
    ///
    /// The kernel's error about the socket.
    pub fn local_addr(&self) -> Result<UnixAddress> {
        UnixAddress::local(self)
    }

    /// The name of the peer, which most clients lack.
    ///
    /// # Errors
    ///
    /// As [`local_addr`](Self::local_addr).
    pub fn peer_addr(&self) -> Result<UnixAddress> {
        UnixAddress::peer(self)
    }

    /// Who is at the other end.
    ///
    /// # Errors
    ///
    /// As [`Socket::peer_credentials`].
    pub fn peer_cred(&self) -> Result<Credentials> {
        self.socket().peer_credentials()
    }
}

impl TryFrom<Socket> for UnixStream {
    type Error = OtherSocket;

    fn try_from(socket: Socket) -> Result<Self, OtherSocket> {
        if !(socket.shared.unix && socket.shared.stream) {
            return Err(OtherSocket { socket, error: Error::Invalid("this is no Unix stream") });
        }
        Ok(Self::of_stream(socket))
    }
}

stream!(UnixStream);

/// A Unix datagram socket that reports the sender of each datagram, and the [`Socket`] for descriptors.
///
/// **Dropped futures:** a dropped receive has taken no datagram, and a dropped send has sent none.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use handoff::tokio::UnixDatagram;
///
/// handoff::tokio::run(|driver| async move {
///     let (near, far) = UnixDatagram::pair(&driver)?;
///     near.send(b"hello").await?;
///     let mut got = [0; 64];
///     assert_eq!(far.recv(&mut got).await?, 5);
///     Ok::<_, std::io::Error>(())
/// })??;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct UnixDatagram(Datagrams);

impl UnixDatagram {
    /// Makes a socket with a path as its name.
    ///
    /// # Errors
    ///
    /// As [`Driver::bind_unix`], and for a path that cannot be a name.
    pub fn bind(driver: &Driver, path: impl AsRef<Path>) -> Result<Self> {
        Self::bind_addr(driver, &UnixAddress::path(path)?)
    }

    /// Makes a socket with a name of any kind.
    ///
    /// # Errors
    ///
    /// As [`Driver::bind_unix`].
    pub fn bind_addr(driver: &Driver, address: &UnixAddress) -> Result<Self> {
        Ok(Self(Datagrams::of(driver.bind_unix(address)?)))
    }

    /// Makes a socket without a name, to which nobody can answer.
    ///
    /// # Errors
    ///
    /// As [`Driver::unix_socket`].
    pub fn unbound(driver: &Driver) -> Result<Self> {
        Ok(Self(Datagrams::of(driver.unix_socket(UnixKind::Datagram)?)))
    }

    /// Two sockets that are connected to each other.
    ///
    /// # Errors
    ///
    /// As [`Driver::unix_pair`].
    pub fn pair(driver: &Driver) -> Result<(Self, Self)> {
        let (one, other) = driver.unix_pair(UnixKind::Datagram)?;
        Ok((Self(Datagrams::of(one)), Self(Datagrams::of(other))))
    }

    /// Sends to a path by default, and receives from there only.
    ///
    /// # Errors
    ///
    /// The kernel's error about the path.
    pub fn connect(&self, path: impl AsRef<Path>) -> Result<()> {
        self.connect_addr(&UnixAddress::path(path)?)
    }

    /// As [`connect`](Self::connect), for a name of any kind.
    ///
    /// # Errors
    ///
    /// The kernel's error about the name.
    pub fn connect_addr(&self, address: &UnixAddress) -> Result<()> {
        let connected = SockRef::from(&self.0.socket).connect(address.as_socket_address());
        connected.map_err(|error| Error::io("connecting a datagram socket", error))
    }

    /// The name that it is bound to.
    ///
    /// # Errors
    ///
    /// What the kernel says of the socket.
    pub fn local_addr(&self) -> Result<UnixAddress> {
        UnixAddress::local(self)
    }

    /// The name that it is [connected](Self::connect) to.
    ///
    /// # Errors
    ///
    /// The kernel's error about the socket; when it is not connected.
    pub fn peer_addr(&self) -> Result<UnixAddress> {
        UnixAddress::peer(self)
    }

    /// As [`send`](Self::send), to a path.
    ///
    /// # Errors
    ///
    /// As `send`, and for a path that cannot be a name.
    pub async fn send_to(&self, bytes: &[u8], path: impl AsRef<Path>) -> io::Result<usize> {
        self.send_to_addr(bytes, &UnixAddress::path(path)?).await
    }

    /// As [`send`](Self::send), to a name of any kind.
    ///
    /// # Errors
    ///
    /// As `send`.
    pub async fn send_to_addr(&self, bytes: &[u8], address: &UnixAddress) -> io::Result<usize> {
        let name = name_of(address)?;
        loop {
            consume_budget().await;
            self.0.socket.driver.core.check_driven()?;
            match self.0.try_send(bytes, Some(&name)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    // The kernel does not tell of room at a peer that a socket is not connected to.
                    Sleep::new(&self.0.socket.driver, Instant::now() + LOOK_AGAIN).await?;
                }
                over => return over,
            }
        }
    }

    /// As [`send_to`](Self::send_to), without a wait.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if the peer has no room; as of `send_to`.
    pub fn try_send_to(&self, bytes: &[u8], path: impl AsRef<Path>) -> io::Result<usize> {
        self.try_send_to_addr(bytes, &UnixAddress::path(path)?)
    }

    /// As [`try_send_to`](Self::try_send_to), to a name of any kind.
    ///
    /// # Errors
    ///
    /// As `try_send_to`.
    pub fn try_send_to_addr(&self, bytes: &[u8], address: &UnixAddress) -> io::Result<usize> {
        self.0.try_send(bytes, Some(&name_of(address)?))
    }
}

datagrams!(UnixDatagram, UnixAddress, sender_of, SocketAddrUnix);

/// A name for rustix's calls.
fn name_of(address: &UnixAddress) -> io::Result<SocketAddrUnix> {
    Ok(match (address.as_path(), address.as_abstract_name()) {
        (Some(path), _) => SocketAddrUnix::new(path)?,
        (None, Some(name)) => SocketAddrUnix::new_abstract_name(name)?,
        (None, None) => SocketAddrUnix::new_unnamed(),
    })
}

/// The name that a datagram came from.
fn sender_of(from: Option<SocketAddrAny>) -> Result<UnixAddress> {
    let from = from.and_then(|from| SocketAddrUnix::try_from(from).ok());
    match from.as_ref().map(|from| (from.path_bytes(), from.abstract_name())) {
        Some((Some(path), _)) => {
            use std::os::unix::ffi::OsStrExt as _;
            UnixAddress::path(std::ffi::OsStr::from_bytes(path))
        }
        Some((None, Some(name))) => UnixAddress::abstract_name(name),
        _ => Ok(UnixAddress::unnamed()),
    }
}

impl TryFrom<Socket> for UnixDatagram {
    type Error = OtherSocket;

    fn try_from(socket: Socket) -> Result<Self, OtherSocket> {
        if !socket.shared.unix || socket.shared.has_end() {
            let error = Error::Invalid("this is no Unix datagram socket");
            return Err(OtherSocket { socket, error });
        }
        Ok(Self(Datagrams::of(socket)))
    }
}
