//! Connecting.
//!
//! Minimum kernel: 5.5 with a ring (`CONNECT`), any without. Capability: none.

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use socket2::{Domain, Protocol, SockAddr, Type};

use super::Socket;
use crate::engine::transfer;
use crate::error::{Error, Result};
use crate::handle::{Cancel, Handle};
use crate::reactor::Reactor;
use crate::transfer::{Over, connect};

impl Socket {
    /// A TCP socket for such addresses, attached.
    pub(crate) fn tcp(driver: &Rc<Reactor>, address: SocketAddr) -> Result<Self> {
        let made =
            socket2::Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP));
        let made = made.map_err(|error| {
            Error::descriptor("making a socket", error.raw_os_error().unwrap_or(libc::EIO))
        })?;
        Ok(Self::attach_tcp(Rc::clone(driver), OwnedFd::from(made), address.is_ipv6()))
    }

    /// Connects a socket with settings of your own to an address.
    ///
    /// # Errors
    ///
    /// When too many operations are under way. [`Connecting`] reports later errors.
    pub fn connect(&self, address: SocketAddr) -> Result<Connecting> {
        self.connect_by(address.into())
    }

    /// As [`connect`](Self::connect), to an address of any family.
    pub(crate) fn connect_by(&self, address: SockAddr) -> Result<Connecting> {
        let connected = connect(&self.driver, &self.shared, address)?;
        Ok(Connecting { socket: self.clone(), connected })
    }
}

/// A future of the connected socket. Dropping it abandons the connection.
///
/// ```no_run
/// # async fn example(driver: &handoff::Driver) -> Result<(), Box<dyn std::error::Error>> {
/// let socket = driver.connect("192.0.2.1:9000".parse()?)?.await?;
/// println!("connected: {socket:?}");
/// # Ok(()) }
/// ```
#[must_use = "futures do nothing unless polled"]
pub struct Connecting {
    socket: Socket,
    connected: Handle<Over>,
}

impl Future for Connecting {
    type Output = Result<Socket>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Socket>> {
        ready!(Pin::new(&mut self.connected).poll(context))?;
        Poll::Ready(Ok(self.socket.clone()))
    }
}

impl Cancel for Connecting {
    fn cancel(&self) {
        if let Some(key) = self.connected.key() {
            transfer::cancel(&self.connected.driver().core, key);
        }
    }
}

impl fmt::Debug for Connecting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connecting").field("socket", &self.socket).finish_non_exhaustive()
    }
}
