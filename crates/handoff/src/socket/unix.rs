//! Unix sockets: made, bound, connected, listened at.
//!
//! Minimum kernel: as of connections over TCP. Capability: none. The kernel has no zero-copy send for them, so sends
//! copy, and say so; bytes of files and of other sockets may go by [`Route`](crate::Route)s, which splice.

use std::fmt;
use std::future::Future;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use socket2::{Domain, SockRef};

use super::Socket;
use super::connect::Connecting;
use super::listen::Acceptor;
use crate::error::{Error, Result};
use crate::reactor::Reactor;
use crate::unix::{Credentials, SocketFile, UnixAddress, UnixKind, credentials, named, pidfd};

/// The most connections that are not accepted yet; the kernel's own limit is `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

fn make(kind: UnixKind) -> Result<socket2::Socket> {
    socket2::Socket::new(Domain::UNIX, kind.socket_type(), None).map_err(no_socket)
}

fn no_socket(error: std::io::Error) -> Error {
    Error::descriptor("making a socket", error.raw_os_error().unwrap_or(libc::EIO))
}

impl Socket {
    /// A Unix socket of this kind, without a name and a peer.
    pub(crate) fn unix(driver: &Rc<Reactor>, kind: UnixKind) -> Result<Self> {
        Ok(Self::attach_unix(Rc::clone(driver), make(kind)?.into(), kind))
    }

    pub(crate) fn unix_pair(driver: &Rc<Reactor>, kind: UnixKind) -> Result<(Self, Self)> {
        let (one, other) =
            socket2::Socket::pair(Domain::UNIX, kind.socket_type(), None).map_err(no_socket)?;
        let attach = |end: socket2::Socket| Self::attach_unix(Rc::clone(driver), end.into(), kind);
        Ok((attach(one), attach(other)))
    }

    /// A datagram socket with this name.
    pub(crate) fn unix_bound(driver: &Rc<Reactor>, address: &UnixAddress) -> Result<Self> {
        let kind = UnixKind::Datagram;
        let socket = make(kind)?;
        let file = SocketFile::bind(&socket, address, kind.socket_type(), |_| Ok(()))?;
        let socket = Self::attach_unix(Rc::clone(driver), socket.into(), kind);
        if let Some(file) = file {
            // Nobody else has the socket yet.
            let _ = socket.shared.file.set(file);
        }
        Ok(socket)
    }

    /// As [`connect`](Self::connect), for a Unix socket. If the listener has no room for connections, this waits until it
    /// has. A datagram socket sends to this name from now on, and receives from there only.
    ///
    /// # Errors
    ///
    /// When the socket is none of Unix, or too many operations are under way. [`Connecting`] reports later errors.
    pub fn connect_unix(&self, address: &UnixAddress) -> Result<Connecting> {
        if !self.shared.unix {
            return Err(Error::Invalid("only a Unix socket connects to a name of one"));
        }
        if address.is_unnamed() {
            return Err(Error::Invalid(
                "nobody has no name: connect to a path or an abstract name",
            ));
        }
        self.connect_by(address.as_socket_address().clone())
    }

    /// Who is at the other end of a Unix connection, as of when it was made (`SO_PEERCRED`).
    ///
    /// # Errors
    ///
    /// When the socket is none of Unix, or not connected.
    pub fn peer_credentials(&self) -> Result<Credentials> {
        self.check_unix_peer()?;
        credentials(self)
    }

    /// The process at the other end of a Unix connection, as a descriptor that stays with it (`SO_PEERPIDFD`, Linux 6.5).
    ///
    /// # Errors
    ///
    /// When the socket is none of Unix, or not connected; when the kernel is older; when the process is gone.
    pub fn peer_pidfd(&self) -> Result<OwnedFd> {
        self.check_unix_peer()?;
        pidfd(self)
    }

    fn check_unix_peer(&self) -> Result<()> {
        if !self.shared.unix {
            return Err(Error::Invalid("only Unix sockets know the credentials of their peers"));
        }
        UnixAddress::peer(self).map(drop)
    }
}

/// A listening Unix socket.
///
/// It accepts as a [`Listener`](crate::Listener) does. It removes its file when you drop it, unless another has taken the
/// name by then, or you [keep](Self::keep_file) it. A process that is killed leaves the file; the next listener replaces
/// it if nobody listens there any more.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use handoff::{Driver, UnixAddress, UnixKind};
///
/// let driver = Driver::new()?;
/// let name = UnixAddress::abstract_name(format!("example-{}", std::process::id()))?;
/// let mut listener = driver.listen_unix(&name, UnixKind::Stream)?;
/// driver.block_on(async {
///     let near = driver.connect_unix(&name, UnixKind::Stream)?.await?;
///     let (far, peer) = listener.accept().await?;
///     assert!(peer.is_unnamed());
///     assert_eq!(far.peer_credentials()?.pid, Some(std::process::id()));
///     drop(near);
///     Ok::<_, handoff::Error>(())
/// })??;
/// # Ok(()) }
/// ```
pub struct UnixListener {
    acceptor: Acceptor,
    kind: UnixKind,
    file: Option<SocketFile>,
}

impl UnixListener {
    pub(crate) fn bind(
        driver: &Rc<Reactor>,
        address: &UnixAddress,
        kind: UnixKind,
    ) -> Result<Self> {
        if kind == UnixKind::Datagram {
            return Err(Error::Invalid(
                "datagram sockets take no connections: use Driver::bind_unix",
            ));
        }
        driver.core.check_room()?;
        let socket = make(kind)?;
        let file = SocketFile::bind(&socket, address, kind.socket_type(), |it| it.listen(BACKLOG))?;
        Ok(Self { acceptor: Acceptor::open(driver, socket.into())?, kind, file })
    }

    /// Takes over a socket that listens already; its file, if there is one, is left alone.
    pub(crate) fn open(driver: &Rc<Reactor>, listener: OwnedFd) -> Result<Self> {
        let failed = |error| Error::io("looking at a listener", error);
        let socket = SockRef::from(&listener);
        let listens = socket.domain().map_err(failed)? == Domain::UNIX
            && socket.is_listener().map_err(failed)?;
        if !listens {
            return Err(Error::Invalid("this is no Unix socket that listens"));
        }
        let kind = match socket.r#type().map_err(failed)? {
            socket2::Type::SEQPACKET => UnixKind::Seqpacket,
            _ => UnixKind::Stream,
        };
        Ok(Self { acceptor: Acceptor::open(driver, listener)?, kind, file: None })
    }

    /// The next connection, and the name of its peer, which most clients lack.
    ///
    /// If the process has no descriptor for it, you get [`Error::NoDescriptor`] once; the listener goes on
    /// when there is one.
    pub fn accept(&mut self) -> AcceptingUnix<'_> {
        AcceptingUnix { listener: self }
    }

    /// The next connection if it is there already.
    pub fn try_accept(&mut self) -> Option<Result<(Socket, UnixAddress)>> {
        let accepted = match self.acceptor.try_take()? {
            Ok(accepted) => accepted,
            Err(error) => return Some(Err(error)),
        };
        // A peer that has gone had bytes to say, perhaps.
        let peer = SockRef::from(&accepted).peer_addr().ok().and_then(|peer| named(peer).ok());
        let driver = Rc::clone(&self.acceptor.driver);
        let socket = Socket::attach_unix(driver, accepted, self.kind);
        Some(Ok((socket, peer.unwrap_or_else(UnixAddress::unnamed))))
    }

    /// As [`accept`](Self::accept), for your own future: the task that polled last is woken.
    pub fn poll_accept(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<(Socket, UnixAddress)>> {
        if let Some(accepted) = self.try_accept() {
            return Poll::Ready(accepted);
        }
        match self.acceptor.wait(context) {
            Ok(()) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    /// Stops accepting until you ask for the next connection. Connections wait in the kernel, as many as
    /// its backlog has room for.
    pub fn pause(&mut self) {
        self.acceptor.pause();
    }

    /// Leaves the file when the listener goes, such as for a successor that has the same open socket.
    pub fn keep_file(&mut self) {
        if let Some(file) = self.file.take() {
            file.keep();
        }
    }

    /// The name that it listens at.
    ///
    /// # Errors
    ///
    /// The kernel's error about the socket.
    pub fn local_addr(&self) -> Result<UnixAddress> {
        UnixAddress::local(self)
    }
}

impl AsFd for UnixListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.acceptor.endpoint.fd.as_fd()
    }
}

impl fmt::Debug for UnixListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fd = &self.acceptor.endpoint.fd;
        f.debug_struct("UnixListener").field("fd", fd).finish_non_exhaustive()
    }
}

/// Future of [`UnixListener::accept`]. Dropping it loses no connection.
#[must_use = "futures do nothing unless polled"]
#[derive(Debug)]
pub struct AcceptingUnix<'a> {
    listener: &'a mut UnixListener,
}

impl Drop for AcceptingUnix<'_> {
    fn drop(&mut self) {
        self.listener.acceptor.forget_waiter();
    }
}

impl Future for AcceptingUnix<'_> {
    type Output = Result<(Socket, UnixAddress)>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.listener.poll_accept(context)
    }
}
