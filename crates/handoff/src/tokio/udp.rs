//! Datagrams with the addresses of their senders.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::net::{RecvFlags, SendFlags, recvfrom, send, sendto};
use socket2::SockRef;

use super::buffers::{Datagrams, address_of};
use super::call::{Receiving, poll_call, poll_receive};
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
pub struct UdpSocket(Socket);

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
        driver.socket(socket).map(Self)
    }

    /// Sends to an address by default, and receives from it only.
    ///
    /// # Errors
    ///
    /// The kernel's error about the address.
    pub fn connect(&self, address: SocketAddr) -> Result<()> {
        let connected = SockRef::from(&self.0).connect(&address.into());
        connected.map_err(|error| Error::io("connecting a datagram socket", error))
    }

    /// The address that it is bound to.
    ///
    /// # Errors
    ///
    /// What the kernel says of the socket.
    pub fn local_addr(&self) -> Result<SocketAddr> {
        internet_address(SockRef::from(&self.0).local_addr())
    }

    /// The address that it is [connected](Self::connect) to.
    ///
    /// # Errors
    ///
    /// The kernel's error about the socket; when it is not connected.
    pub fn peer_addr(&self) -> Result<SocketAddr> {
        internet_address(SockRef::from(&self.0).peer_addr())
    }

    /// Receives a datagram, cut at the slice's length: its number of bytes, and its sender.
    ///
    /// # Errors
    ///
    /// While the socket has another receiver; the kernel's error about the socket, also one of an earlier
    /// send.
    pub async fn recv_from(&self, into: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let mut receiving = Receiving::default();
        poll_fn(|context| {
            poll_receive(&self.0, &mut receiving, context, || {
                let (bytes, _, from) = recvfrom(&self.0, &mut *into, RecvFlags::DONTWAIT)?;
                Ok((bytes, address_of(from)?))
            })
        })
        .await
    }

    /// As [`recv_from`](Self::recv_from), without the sender.
    ///
    /// # Errors
    ///
    /// As `recv_from`.
    pub async fn recv(&self, into: &mut [u8]) -> io::Result<usize> {
        self.recv_from(into).await.map(|(bytes, _)| bytes)
    }

    /// Sends a datagram to the address that the socket is [connected](Self::connect) to. The kernel copies the bytes;
    /// sends by [`socket`](Self::socket) lend. If you drop it, it has sent nothing.
    ///
    /// # Errors
    ///
    /// The kernel's error about the socket, the address or the length.
    pub async fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        self.send_by(|| Ok(send(&self.0, bytes, SendFlags::DONTWAIT)?)).await
    }

    /// As [`send`](Self::send), to an address.
    ///
    /// # Errors
    ///
    /// As `send`.
    pub async fn send_to(&self, bytes: &[u8], address: SocketAddr) -> io::Result<usize> {
        self.send_by(|| Ok(sendto(&self.0, bytes, SendFlags::DONTWAIT, &address)?)).await
    }

    async fn send_by(&self, mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
        let mut waiting = None;
        poll_fn(|context| poll_call(&self.0, &mut waiting, Socket::writable, context, &mut call))
            .await
    }

    /// Receives datagrams into buffers of a pool, each cut at the buffer's length: a `Stream` of datagrams with
    /// their senders.
    ///
    /// # Errors
    ///
    /// When the socket has a receiver of any kind.
    pub fn datagrams(&self, pool: &BufferPool) -> Result<Datagrams> {
        Datagrams::new(self.0.clone(), pool)
    }

    /// The socket, for lending.
    pub fn socket(&self) -> &Socket {
        &self.0
    }

    /// The socket alone.
    pub fn into_socket(self) -> Socket {
        self.0
    }
}

impl TryFrom<Socket> for UdpSocket {
    type Error = OtherSocket;

    fn try_from(socket: Socket) -> Result<Self, OtherSocket> {
        if !socket.shared.udp {
            return Err(OtherSocket { socket, error: Error::Invalid("this is not a UDP socket") });
        }
        Ok(Self(socket))
    }
}

impl AsFd for UdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
