//! Datagrams with their senders in the chunks of a pool: a head that names the sender, and the payload behind it.
//!
//! Minimum kernel: 6.0 with a ring (multishot `RECVMSG`, which lays a chunk out in this way), any without: then the
//! engine makes the head. The kernel copies.

use std::net::SocketAddr;
use std::ptr;

use io_uring::types::RecvMsgOut;
use socket2::{SockAddr, SockAddrStorage};

/// Bytes at the beginning of a chunk that a datagram with its sender leaves to the pool: see
/// [`Pool::with_senders`](crate::Pool::with_senders).
pub const DATAGRAM_HEAD: usize = 64;

/// Where the address is in a head: behind four numbers, which are the lengths of the address, of control data and of
/// the datagram, and flags.
pub(crate) const ADDRESS: usize = 4 * size_of::<u32>();

const _: () = assert!(DATAGRAM_HEAD - ADDRESS >= size_of::<libc::sockaddr_in6>());

/// Which datagram a span is of: see [`Span::datagram`](crate::Span::datagram).
///
/// ```no_run
/// # async fn example(driver: &handoff::Driver, socket: &handoff::Socket) -> Result<(), Box<dyn std::error::Error>> {
/// let chunk = handoff::DATAGRAM_HEAD + 2048;
/// let pool = driver.pool(handoff::Region::anonymous(1 << 20)?, chunk)?;
/// let mut receiver = socket.receive(pool.with_senders())?;
/// while let Some(span) = receiver.next_span().await {
///     let span = span?;
///     let datagram = span.datagram().expect("the pool keeps senders");
///     if datagram.len == span.len() {
///         socket.message(span).to(datagram.sender).send()?; // back from where it was received
///     }
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Who sent it.
    pub sender: SocketAddr,
    /// Its bytes as they were sent: more than there are where the chunk had no room for all.
    pub len: usize,
}

/// The message of a request: no more than room for an address.
pub(crate) struct Message(libc::msghdr);

// SAFETY: it has no pointers but NULL, and nobody writes it.
unsafe impl Sync for Message {}

pub(crate) static MESSAGE: Message = Message({
    // SAFETY: all-zero bytes are a valid, empty message header.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_namelen = (DATAGRAM_HEAD - ADDRESS) as libc::socklen_t;
    message
});

impl Message {
    pub(crate) fn as_ptr(&self) -> *const libc::msghdr {
        &raw const self.0
    }
}

/// A head for a datagram of `len` bytes, without the address, of which `address` bytes follow.
pub(crate) fn head(address: u32, len: u32, flags: u32) -> [u8; ADDRESS] {
    let mut head = [0; ADDRESS];
    let numbers = [address, 0, len, flags];
    for (place, number) in head.chunks_exact_mut(size_of::<u32>()).zip(numbers) {
        place.copy_from_slice(&number.to_ne_bytes());
    }
    head
}

/// What a head says, if it has an address of the internet.
pub(crate) fn parse(head: &[u8]) -> Option<Datagram> {
    let told = RecvMsgOut::parse(head, &MESSAGE.0).ok()?;
    let address = told.name_data();
    let mut storage = SockAddrStorage::zeroed();
    assert!(address.len() <= size_of::<SockAddrStorage>(), "a head has less room");
    // SAFETY: there is room for so many bytes.
    unsafe {
        ptr::copy_nonoverlapping(address.as_ptr(), (&raw mut storage).cast(), address.len());
    }
    // SAFETY: so many bytes of it are an address, and the rest is zero.
    let sender = unsafe { SockAddr::new(storage, address.len() as libc::socklen_t) }.as_socket()?;
    Some(Datagram { sender, len: told.incoming_payload_len() as usize })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_says_who_sent_how_much() {
        for sender in ["127.0.0.1:80", "[fe80::1%3]:9", "[::ffff:10.0.0.1]:65535"] {
            let sender: SocketAddr = sender.parse().unwrap();
            let address = SockAddr::from(sender);
            let mut head = [&head(address.len(), 70_000, 0)[..], &[0; 48]].concat();
            // SAFETY: an address is that long.
            let bytes = unsafe {
                std::slice::from_raw_parts(address.as_ptr().cast::<u8>(), address.len() as usize)
            };
            head[ADDRESS..][..bytes.len()].copy_from_slice(bytes);
            assert_eq!(parse(&head), Some(Datagram { sender, len: 70_000 }));
        }
    }

    #[test]
    fn a_head_without_an_internet_address_names_nobody() {
        let local = [&head(2, 5, 0)[..], &(libc::AF_UNIX as u16).to_ne_bytes(), &[0; 46]].concat();
        assert_eq!(parse(&local), None);
        assert_eq!(parse(&[0; DATAGRAM_HEAD]), None);
        assert_eq!(parse(&[0; DATAGRAM_HEAD - 1]), None);
    }
}
