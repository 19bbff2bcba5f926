//! The kernel's information about RDS: counters, connections, sockets, and messages in queues.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use handoff_sys::rds::{
    CONNECTION_CONNECTED, INFO_COUNTERS, INFO6_CONNECTIONS, INFO6_RECV_MESSAGES,
    INFO6_RETRANS_MESSAGES, INFO6_SEND_MESSAGES, INFO6_SOCKETS, Info6Connection, Info6Message,
    Info6Socket, InfoCounter, PF_RDS, SOL_RDS,
};
use serde::Serialize;
use socket2::{Domain, Type};

use super::socket::not_possible;
use crate::error::{Error, Result};

/// One of the kernel's counters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Counter {
    /// Its name, for instance `send_queued`.
    pub name: String,
    /// Its value since the module was loaded, over all sockets of the system.
    pub value: u64,
}

/// A path to a peer; with several lanes there are several between two addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Connection {
    /// This host's address.
    pub local: IpAddr,
    /// The peer's.
    pub peer: IpAddr,
    /// Number of the next message sent.
    pub next_sent: u64,
    /// Number of the next message expected.
    pub next_expected: u64,
    /// Whether it is up.
    pub connected: bool,
}

/// A socket with its buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Bound {
    /// Where.
    pub address: SocketAddr,
    /// Bytes of the send buffer.
    pub send_buffer: u32,
    /// Bytes of the receive buffer.
    pub receive_buffer: u32,
}

/// Where a message may lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// It was not sent.
    Waiting,
    /// It was sent, and the peer has not acknowledged it.
    Unacknowledged,
    /// It was received, and nobody has read it.
    Unread,
}

/// A message in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queued {
    /// This host's address and port.
    pub local: SocketAddr,
    /// The peer's.
    pub peer: SocketAddr,
    /// Bytes.
    pub len: u32,
}

fn ip(bytes: [u8; 16]) -> IpAddr {
    Ipv6Addr::from(bytes).to_canonical()
}

fn at(bytes: [u8; 16], port: u16) -> SocketAddr {
    SocketAddr::new(ip(bytes), u16::from_be(port))
}

/// Asks the kernel, for the network namespace of the thread that opens this; takes no address and no port.
///
/// ```no_run
/// use handoff_rds::kernel::Information;
///
/// # fn main() -> handoff_rds::Result<()> {
/// for connection in Information::open()?.connections()? {
///     println!("{} to {}: {}", connection.local, connection.peer, connection.connected);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Information {
    socket: socket2::Socket,
}

impl Information {
    /// Begins to ask.
    ///
    /// # Errors
    ///
    /// [`Error::NotPossible`] if the kernel has no RDS, with what would help.
    pub fn open() -> Result<Self> {
        let socket = socket2::Socket::new(Domain::from(PF_RDS), Type::SEQPACKET, None);
        Ok(Self { socket: socket.map_err(not_possible("socket(PF_RDS)"))? })
    }

    /// The kernel's counters.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn counters(&self) -> Result<Vec<Counter>> {
        let counters = self.list::<InfoCounter>(INFO_COUNTERS)?;
        let told = |counter: InfoCounter| Counter {
            name: String::from_utf8_lossy(&counter.name).trim_end_matches('\0').to_owned(),
            value: counter.value,
        };
        Ok(counters.into_iter().map(told).collect())
    }

    /// The connections.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn connections(&self) -> Result<Vec<Connection>> {
        let connections = self.list::<Info6Connection>(INFO6_CONNECTIONS)?;
        let told = |connection: Info6Connection| Connection {
            local: ip(connection.laddr),
            peer: ip(connection.faddr),
            next_sent: connection.next_tx_seq,
            next_expected: connection.next_rx_seq,
            connected: connection.flags & CONNECTION_CONNECTED != 0,
        };
        Ok(connections.into_iter().map(told).collect())
    }

    /// The bound sockets.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn sockets(&self) -> Result<Vec<Bound>> {
        let sockets = self.list::<Info6Socket>(INFO6_SOCKETS)?;
        let told = |socket: Info6Socket| Bound {
            address: at(socket.bound_addr, socket.bound_port),
            send_buffer: socket.sndbuf,
            receive_buffer: socket.rcvbuf,
        };
        let bound = |socket: &Info6Socket| socket.bound_port != 0;
        Ok(sockets.into_iter().filter(bound).map(told).collect())
    }

    /// The messages in all queues of a kind.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn messages(&self, queue: Queue) -> Result<Vec<Queued>> {
        messages(self.socket.as_fd(), queue)
    }

    fn list<T: Copy>(&self, which: i32) -> Result<Vec<T>> {
        list(self.socket.as_fd(), which)
    }
}

/// The messages in all queues of a kind, in the namespace of an RDS socket.
pub(super) fn messages(socket: BorrowedFd<'_>, queue: Queue) -> Result<Vec<Queued>> {
    let which = match queue {
        Queue::Waiting => INFO6_SEND_MESSAGES,
        Queue::Unacknowledged => INFO6_RETRANS_MESSAGES,
        Queue::Unread => INFO6_RECV_MESSAGES,
    };
    let told = |message: Info6Message| Queued {
        local: at(message.laddr, message.lport),
        peer: at(message.faddr, message.fport),
        len: message.len,
    };
    Ok(list::<Info6Message>(socket, which)?.into_iter().map(told).collect())
}

/// Reads a list of plain structures. `T` is one of `handoff_sys::rds`.
fn list<T: Copy>(socket: BorrowedFd<'_>, which: i32) -> Result<Vec<T>> {
    let action = "ask for information about RDS";
    let mut room: Vec<T> = Vec::with_capacity(64);
    loop {
        let mut len = (room.capacity() * size_of::<T>()) as libc::socklen_t;
        // SAFETY: the kernel writes at most `len` bytes, which are all the vector's.
        let answer = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                SOL_RDS,
                which,
                room.as_mut_ptr().cast(),
                &raw mut len,
            )
        };
        // The kernel returns the length of all, and of each if all had room.
        let count = len as usize / size_of::<T>();
        if answer >= 0 {
            if answer as usize != size_of::<T>() {
                return Err(Error::NotPossible(format!(
                    "this kernel tells about RDS in structures of {answer} bytes, not {}",
                    size_of::<T>()
                )));
            }
            // SAFETY: the kernel has written so many structures, for which every bit pattern is valid.
            unsafe { room.set_len(count) };
            return Ok(room);
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::ENOSPC) {
            return Err(Error::io(action)(error));
        }
        // Some more may come meanwhile.
        room.reserve_exact(count + 64);
    }
}
