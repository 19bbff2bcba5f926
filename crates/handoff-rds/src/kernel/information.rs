//! What the kernel tells about RDS: counters, and the connections of a namespace.

use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::AsRawFd;

use handoff_sys::rds::{
    CONNECTION_CONNECTED, INFO_COUNTERS, INFO6_CONNECTIONS, Info6Connection, InfoCounter, SOL_RDS,
};

use super::socket::Socket;
use crate::error::{Error, Result};
use crate::payload::Payload;

/// One of the kernel's counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter {
    /// Its name, for instance `send_queued`.
    pub name: String,
    /// Its value since the module was loaded, over all sockets of the system.
    pub value: u64,
}

/// A path to a peer; with several lanes there are several between two addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

impl<P: Payload> Socket<P> {
    /// The kernel's counters.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn counters(&self) -> Result<Vec<Counter>> {
        let counters = self.information::<InfoCounter>(INFO_COUNTERS)?;
        let told = |counter: InfoCounter| Counter {
            name: String::from_utf8_lossy(&counter.name).trim_end_matches('\0').to_owned(),
            value: counter.value,
        };
        Ok(counters.into_iter().map(told).collect())
    }

    /// The connections of the socket's namespace.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn connections(&self) -> Result<Vec<Connection>> {
        let connections = self.information::<Info6Connection>(INFO6_CONNECTIONS)?;
        let address = |bytes: [u8; 16]| Ipv6Addr::from(bytes).to_canonical();
        let told = |connection: Info6Connection| Connection {
            local: address(connection.laddr),
            peer: address(connection.faddr),
            next_sent: connection.next_tx_seq,
            next_expected: connection.next_rx_seq,
            connected: connection.flags & CONNECTION_CONNECTED != 0,
        };
        Ok(connections.into_iter().map(told).collect())
    }

    /// Reads a list of plain structures. `T` is one of `handoff_sys::rds`.
    fn information<T: Copy>(&self, which: i32) -> Result<Vec<T>> {
        let action = "ask for information about RDS";
        let mut room: Vec<T> = Vec::with_capacity(64);
        loop {
            let mut len = (room.capacity() * size_of::<T>()) as libc::socklen_t;
            // SAFETY: the kernel writes at most `len` bytes, which are all the vector's.
            let answer = unsafe {
                libc::getsockopt(
                    self.socket.as_raw_fd(),
                    SOL_RDS,
                    which,
                    room.as_mut_ptr().cast(),
                    &raw mut len,
                )
            };
            // The kernel tells the length of all, and of each, if all had room.
            let count = len as usize / size_of::<T>();
            if answer >= 0 {
                if answer as usize != size_of::<T>() {
                    return Err(Error::NotPossible(format!(
                        "this kernel tells about RDS in structures of {answer} bytes, not {}",
                        size_of::<T>()
                    )));
                }
                // SAFETY: the kernel has written so many structures, whose every bit pattern is valid.
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
}
