//! Accepting connections.
//!
//! Minimum kernel and capability: as the engine's.

use std::fmt;
use std::future::Future;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use socket2::SockRef;

use super::{Socket, internet_address};
use crate::engine::accepting;
use crate::error::{Error, Result};
use crate::op::{AcceptOp, Op};
use crate::reactor::Reactor;
use crate::ring::{Endpoint, Key};

/// A listening socket.
///
/// It begins to accept connections when you first ask for one, and goes on until 64 wait for you: ask for the
/// next soon, or [pause](Self::pause). A ring accepts all that the kernel has ready at once, so as many as the backlog of
/// `listen(2)` may come with them, each with its descriptor. Dropping it closes connections that nobody has taken.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use handoff::{Driver, Executor};
///
/// let driver = Driver::new()?;
/// let mut listener = driver.listen(std::net::TcpListener::bind("127.0.0.1:9000")?)?;
/// let executor = Executor::new(&driver);
/// executor.run(async {
///     while let Ok((socket, peer)) = listener.accept().await {
///         executor.spawn(async move { println!("{peer} on {socket:?}") }).detach();
///     }
/// })?;
/// # Ok(()) }
/// ```
pub struct Listener {
    acceptor: Acceptor,
}

/// What listeners of all families do.
pub(crate) struct Acceptor {
    pub(crate) driver: Rc<Reactor>,
    key: Key,
    pub(crate) endpoint: Rc<Endpoint>,
}

impl Acceptor {
    pub(crate) fn open(driver: &Rc<Reactor>, listener: OwnedFd) -> Result<Self> {
        driver.core.check_room()?;
        // The ring waits for a blocking socket; a call must not.
        SockRef::from(&listener)
            .set_nonblocking(!driver.core.io.has_ring())
            .map_err(|error| Error::io("readying a listener", error))?;
        let endpoint = Rc::new(Endpoint::attach(&driver.core.io, listener));
        let op = AcceptOp::new(Rc::clone(&endpoint));
        let key = driver.core.records.borrow_mut().insert(|| Op::Accept(op));
        Ok(Self { driver: Rc::clone(driver), key, endpoint })
    }

    /// The next connection if it is there already.
    pub(crate) fn try_take(&mut self) -> Option<Result<OwnedFd>> {
        if let Err(error) = self.driver.core.check_here() {
            return Some(Err(error));
        }
        accepting::take(&self.driver.core, self.key)
    }

    /// Has the task woken when there is a connection.
    pub(crate) fn wait(&mut self, context: &mut Context<'_>) -> Result<()> {
        self.driver.core.check_driven()?;
        let waker = context.waker().clone();
        let before = self.driver.core.records.borrow_mut().accept(self.key).holder.wait(waker);
        drop(before);
        Ok(())
    }

    /// No task waits any more.
    pub(crate) fn forget_waiter(&self) {
        let waker = self.driver.core.records.borrow_mut().accept(self.key).holder.take_waker();
        drop(waker);
    }

    pub(crate) fn pause(&mut self) {
        if self.driver.core.is_here() {
            accepting::pause(&self.driver.core, self.key);
        }
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        if self.driver.core.is_here() {
            accepting::let_go(&self.driver.core, self.key);
        }
    }
}

impl Listener {
    pub(crate) fn open(driver: &Rc<Reactor>, listener: TcpListener) -> Result<Self> {
        Ok(Self { acceptor: Acceptor::open(driver, listener.into())? })
    }

    /// The next connection, and the address of its peer. A connection that its peer has reset by now is dropped: the
    /// kernel no longer knows whose it was.
    ///
    /// If the process has no descriptor for it, you get [`Error::NoDescriptor`] once; the listener goes on
    /// when there is one.
    pub fn accept(&mut self) -> Accepting<'_> {
        Accepting { listener: self }
    }

    /// The next connection if it is there already.
    pub fn try_accept(&mut self) -> Option<Result<(Socket, SocketAddr)>> {
        loop {
            let accepted = match self.acceptor.try_take()? {
                Ok(accepted) => accepted,
                Err(error) => return Some(Err(error)),
            };
            let Some(peer) = peer_of(&accepted) else { continue };
            let driver = Rc::clone(&self.acceptor.driver);
            let socket = Socket::attach_tcp(driver, accepted, peer.is_ipv6());
            return Some(Ok((socket, peer)));
        }
    }

    /// As [`accept`](Self::accept), for your own future: the task that polled last is woken.
    pub fn poll_accept(&mut self, context: &mut Context<'_>) -> Poll<Result<(Socket, SocketAddr)>> {
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

    /// The address that it listens on.
    ///
    /// # Errors
    ///
    /// The kernel's error about the socket.
    pub fn local_addr(&self) -> Result<SocketAddr> {
        internet_address(SockRef::from(&self.acceptor.endpoint.fd).local_addr())
    }
}

/// Whose connection it is; `None` if it is reset.
fn peer_of(accepted: &OwnedFd) -> Option<SocketAddr> {
    SockRef::from(accepted).peer_addr().ok()?.as_socket()
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.acceptor.endpoint.fd.as_fd()
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("fd", &self.acceptor.endpoint.fd).finish_non_exhaustive()
    }
}

/// Future of [`Listener::accept`]. Dropping it loses no connection.
///
/// ```no_run
/// # async fn example(mut listener: handoff::Listener) -> Result<(), Box<dyn std::error::Error>> {
/// let (socket, peer) = listener.accept().await?;
/// println!("{peer} on {socket:?}");
/// # Ok(()) }
/// ```
#[must_use = "futures do nothing unless polled"]
#[derive(Debug)]
pub struct Accepting<'a> {
    listener: &'a mut Listener,
}

impl Drop for Accepting<'_> {
    fn drop(&mut self) {
        self.listener.acceptor.forget_waiter();
    }
}

impl Future for Accepting<'_> {
    type Output = Result<(Socket, SocketAddr)>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.listener.poll_accept(context)
    }
}
