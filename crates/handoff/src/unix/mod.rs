//! Words about Unix sockets: their names, their kinds, who is at the other end, and the files that stand for names.

mod address;
mod file;
mod peer;

pub use address::UnixAddress;
pub(crate) use address::named;
pub(crate) use file::SocketFile;
pub use peer::Credentials;
pub(crate) use peer::{credentials, pidfd};
use socket2::Type;

/// A kind of Unix socket.
///
/// ```
/// # fn main() -> handoff::Result<()> {
/// use handoff::{Buffer, Driver, UnixKind};
///
/// let driver = Driver::new()?;
/// let (near, far) = driver.unix_pair(UnixKind::Seqpacket)?;
/// driver.block_on(async {
///     near.send(Buffer::from(vec![7; 100])).map_err(|refused| refused.error)?.await?.sent?;
///     let packet = far.receive_into(Buffer::from(vec![0; 4096])).map_err(|refused| refused.error)?;
///     assert_eq!(packet.await?.result?, 100);
///     Ok::<_, handoff::Error>(())
/// })?
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UnixKind {
    /// A connection of bytes (`SOCK_STREAM`).
    Stream,
    /// Messages without a connection, each whole and in order; the sender waits where the receiver has no room
    /// (`SOCK_DGRAM`).
    Datagram,
    /// A connection of messages, with an end (`SOCK_SEQPACKET`). An empty message could not be told from the end, so
    /// none is sent.
    Seqpacket,
}

impl UnixKind {
    pub(crate) fn socket_type(self) -> Type {
        match self {
            Self::Stream => Type::STREAM,
            Self::Datagram => Type::DGRAM,
            Self::Seqpacket => Type::SEQPACKET,
        }
    }
}
