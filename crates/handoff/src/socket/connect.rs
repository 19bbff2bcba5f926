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

use socket2::{Domain, Protocol, Type};

use super::Socket;
use crate::error::{Error, Result};
use crate::handle::Cancel;
use crate::memory::Buffer;
use crate::reactor::Reactor;
use crate::transfer::Transfer;

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

    /// Connects to an address, for a socket that was made with settings of your own.
    ///
    /// # Errors
    ///
    /// When too many operations are under way. What goes wrong later, [`Connecting`] tells.
    pub fn connect(&self, address: SocketAddr) -> Result<Connecting> {
        let transfer = Transfer::connect(&self.driver, &self.shared, address)?;
        Ok(Connecting { socket: self.clone(), transfer })
    }
}

/// A future of the connected socket. Dropping it gives the connection up.
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
    transfer: Transfer<Vec<Buffer>>,
}

impl Future for Connecting {
    type Output = Result<Socket>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Socket>> {
        let over = ready!(Pin::new(&mut self.transfer).poll(context));
        Poll::Ready(over.result.map(|_| self.socket.clone()))
    }
}

impl Cancel for Connecting {
    fn cancel(&self) {
        self.transfer.cancel();
    }
}

impl fmt::Debug for Connecting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connecting").field("socket", &self.socket).finish_non_exhaustive()
    }
}
