//! A failed send: what its error number means.
//!
//! The kernel uses one number for many causes. This module looks for the cause only after a failure: in the
//! send itself, and for a send of several datagrams in what the socket says about its path.

use std::os::fd::AsFd as _;

use handoff_sys::udp;
use socket2::SockRef;

use super::socket_state::SocketShared;
use crate::error::Error;
use crate::ring::memlock_or;

/// The longest datagrams, in bytes of payload.
const MAX_UDP4: usize = 65_507;
const MAX_UDP6: usize = 65_527;

/// Bytes of headers before the payload of a datagram.
const HEADERS4: usize = 20 + 8;
const HEADERS6: usize = 40 + 8;

const PAGES: &str = "without copying it may touch 17 pages at most, or as many as the kernel's MAX_SKB_FRAGS \
                     says: start buffers on a page, lend fewer of them, or use the copy engine";

/// A failed send, as far as its error concerns it.
pub(crate) struct Failed<'a> {
    pub(crate) socket: &'a SocketShared,
    /// Bytes that the kernel took before.
    pub(crate) done: usize,
    pub(crate) total: usize,
    /// Bytes of each datagram if the send has several; else 0.
    pub(crate) segment: u16,
    /// Whether it named its destination.
    pub(crate) addressed: bool,
    pub(crate) copies: bool,
}

impl Failed<'_> {
    fn fits_a_datagram(&self) -> bool {
        self.total <= if self.socket.ipv6 { MAX_UDP6 } else { MAX_UDP4 }
    }

    /// Whether a failure may be about zero copy itself.
    pub(crate) fn is_about_zero_copy(&self, errno: i32) -> bool {
        match errno {
            libc::ENOMEM | libc::ENOBUFS | libc::EOPNOTSUPP | libc::EINVAL => true,
            libc::EMSGSIZE => self.segment > 0 || self.fits_a_datagram(),
            _ => false,
        }
    }

    /// An error for the caller, with the limit that was hit.
    pub(crate) fn error(&self, errno: i32) -> Error {
        match errno {
            libc::EMSGSIZE | libc::EINVAL | libc::EIO if self.segment > 0 => self.uncut(errno),
            libc::EMSGSIZE if self.socket.unix => {
                let room = SockRef::from(&self.socket.endpoint.fd).send_buffer_size();
                // The kernel keeps 32 bytes of the buffer for itself.
                let most = room.map_or(0, |room| room.saturating_sub(32));
                let limit = format!(
                    "a message takes {most} bytes at most, by the socket's send buffer (SO_SNDBUF; net.core.wmem_max \
                     bounds that)"
                );
                self.too_long(self.total, limit)
            }
            libc::EMSGSIZE => self.too_long(
                self.total,
                if !self.copies && self.fits_a_datagram() {
                    PAGES
                } else if self.socket.ipv6 {
                    "UDP over IPv6 takes 65527 bytes at most"
                } else {
                    "UDP over IPv4 takes 65507 bytes at most"
                },
            ),
            libc::ETOOMANYREFS => Error::errno(
                "passing descriptors (as many are on their way as this process may open: wait until the peers have \
                 received some, or allow more by ulimit -n)",
                errno,
            ),
            libc::ECANCELED => Error::Canceled { done: self.done },
            _ => Error::errno("sending", errno),
        }
    }

    /// As [`error`](Self::error) for memory that must be locked for the send.
    pub(crate) fn zero_copy_error(&self, errno: i32) -> Error {
        if !matches!(errno, libc::ENOMEM | libc::ENOBUFS) {
            return self.error(errno);
        }
        let need = (self.total - self.done) as u64;
        memlock_or("sending", need, std::io::Error::from_raw_os_error(errno))
    }

    fn too_long(&self, size: usize, limit: impl Into<String>) -> Error {
        Error::MessageTooLong { size, limit: limit.into() }
    }

    /// The kernel could not cut a message into datagrams.
    ///
    /// Linux checks in this order: whether a piece fits the path's MTU (`EINVAL` before 6.14, then `EMSGSIZE`),
    /// whether there is a checksum to fill in (`EINVAL`), whether the route can have messages cut (`EIO`).
    #[cold]
    fn uncut(&self, errno: i32) -> Error {
        if errno == libc::EIO {
            return Error::errno(
                "cutting a message into datagrams (not possible through IPsec, and before Linux 6.11 not to a \
                 device without checksum offload; sent without `segment`, each buffer is one datagram)",
                errno,
            );
        }
        let socket = self.socket.endpoint.fd.as_fd();
        let unsummed = udp::sends_without_checksum(socket, self.socket.ipv6);
        if errno == libc::EINVAL && matches!(unsummed, Ok(true)) {
            return Error::Invalid(
                "the kernel cuts only what has a checksum, and the socket sends without (SO_NO_CHECK, over IPv6 \
                 UDP_NO_CHECK6_TX): clear that option, or send each datagram by itself",
            );
        }
        // The last piece is shorter.
        let size = usize::from(self.segment).min(self.total - self.done);
        match self.path() {
            Some(Path { mtu, headers }) if size + headers > mtu => self.too_long(
                size,
                format!(
                    "each piece goes as a datagram of its own, and the path to the peer has an MTU of {mtu}, \
                     which leaves {} bytes",
                    mtu.saturating_sub(headers)
                ),
            ),
            Some(_) if errno == libc::EMSGSIZE && !self.copies => self.too_long(self.total, PAGES),
            Some(_) => Error::errno("sending a buffer as several datagrams", errno),
            None => self.too_long(
                size,
                format!(
                    "each piece goes as a datagram of its own, which has to fit the path's MTU with its headers \
                     (at an MTU of 1500, 1472 bytes over IPv4 and 1452 over IPv6){}",
                    match errno {
                        libc::EINVAL => ", and the destination needs a port other than 0",
                        _ if self.copies => "",
                        _ => ", and what goes at once without copying may touch 17 pages",
                    }
                ),
            ),
        }
    }

    /// The path to the peer; `None` where the message went elsewhere, or the socket has no peer.
    fn path(&self) -> Option<Path> {
        if self.addressed {
            return None;
        }
        let socket = &self.socket.endpoint.fd;
        let peer = SockRef::from(socket).peer_addr().ok()?.as_socket()?;
        let mtu = udp::path_mtu(socket.as_fd(), self.socket.ipv6).ok()?;
        let headers = if peer.ip().to_canonical().is_ipv4() { HEADERS4 } else { HEADERS6 };
        Some(Path { mtu, headers })
    }
}

struct Path {
    mtu: usize,
    headers: usize,
}
