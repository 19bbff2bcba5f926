//! Datagrams with the addresses of their senders.

use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll};

use socket2::SockRef;

use super::buffers::{Datagrams as PoolDatagrams, address_of};
use super::datagrams::{Datagrams, datagrams};
use super::tcp::OtherSocket;
use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::memory::BufferPool;
use crate::socket::{Socket, internet_address};

/// A UDP socket that reports the sender of each datagram, and the [`Socket`] for everything that lends.
///
/// **Copies:** receiving and sending by slices copy each byte once, in the kernel. Sends by [`socket`](Self::socket),
/// or a [`SendSink`](super::SendSink) of it, lend.
///
/// **Dropped futures:** a dropped receive has taken no datagram, and a dropped send has sent none.
#[derive(Debug)]
pub struct UdpSocket(Datagrams);

impl UdpSocket {
    /// Makes a socket bound to an address; port 0 means any free port.
    ///
    /// # Errors
    ///
    /// When the address is taken, or is not of this machine.
    pub fn bind(driver: &Driver, address: SocketAddr) -> Result<Self> {
        let socket = std::net::UdpSocket::bind(address).map_err(|error| {
            Error::descriptor("binding a socket", error.raw_os_error().unwrap_or(libc::EIO))
        })?;
        Ok(Self(Datagrams::of(driver.socket(socket)?)))
    }

    /// Sends to an address by default, and receives from it only.
    ///
    /// # Errors
    ///
    /// The kernel's error about the address.
    pub fn connect(&self, address: SocketAddr) -> Result<()> {
        let connected = SockRef::from(&self.0.socket).connect(&address.into());
        connected.map_err(|error| Error::io("connecting a datagram socket", error))
    }

    /// The address that it is bound to.
    ///
    /// # Errors
    ///
    /// What the kernel says of the socket.
    pub fn local_addr(&self) -> Result<SocketAddr> {
        internet_address(SockRef::from(&self.0.socket).local_addr())
    }

    /// The address that it is [connected](Self::connect) to.
    ///
    /// # Errors
    ///
    /// The kernel's error about the socket; when it is not connected.
    pub fn peer_addr(&self) -> Result<SocketAddr> {
        internet_address(SockRef::from(&self.0.socket).peer_addr())
    }

    /// As [`send`](Self::send), to an address.
    ///
    /// # Errors
    ///
    /// As `send`.
    pub async fn send_to(&self, bytes: &[u8], address: SocketAddr) -> io::Result<usize> {
        self.0.send(bytes, Some(&address)).await
    }

    /// As [`send_to`](Self::send_to), for code that polls.
    ///
    /// # Errors
    ///
    /// As `send`.
    pub fn poll_send_to(
        &self,
        context: &mut Context<'_>,
        bytes: &[u8],
        address: SocketAddr,
    ) -> Poll<io::Result<usize>> {
        self.0.poll_send(context, bytes, Some(&address))
    }

    /// As [`send_to`](Self::send_to), without a wait.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if there is no room; as of `send`.
    pub fn try_send_to(&self, bytes: &[u8], address: SocketAddr) -> io::Result<usize> {
        self.0.try_send(bytes, Some(&address))
    }

    /// Receives datagrams into buffers of a pool, each cut at the buffer's length: a `Stream` of datagrams with
    /// their senders.
    ///
    /// # Errors
    ///
    /// When the socket has a receiver of any kind.
    pub fn datagrams(&self, pool: &BufferPool) -> Result<PoolDatagrams> {
        PoolDatagrams::new(self.0.socket.clone(), pool)
    }
}

datagrams!(UdpSocket, SocketAddr, address_of, SocketAddr);

impl TryFrom<Socket> for UdpSocket {
    type Error = OtherSocket;

    fn try_from(socket: Socket) -> Result<Self, OtherSocket> {
        if !socket.shared.udp {
            return Err(OtherSocket { socket, error: Error::Invalid("this is not a UDP socket") });
        }
        Ok(Self(Datagrams::of(socket)))
    }
}
