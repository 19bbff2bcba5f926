//! The mechanisms by name: what sends, and what receives.

use std::fmt;

/// A way to send.
///
/// ```no_run
/// # async fn example(socket: &handoff::Socket, buffer: handoff::Buffer) -> Result<(), Box<dyn std::error::Error>> {
/// use handoff::Engine;
///
/// socket.set_engine(Engine::Copy)?;
/// let finished = socket.send(buffer)?.await?;
/// assert_eq!(finished.receipt.engine, Some(Engine::Copy));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Engine {
    /// The socket chooses per size, by what it sees of its own sends.
    Auto,
    /// `IORING_OP_SEND_ZC` and `IORING_OP_SENDMSG_ZC` (Linux 6.0 and 6.1).
    UringZc,
    /// `MSG_ZEROCOPY` with the socket's error queue (Linux 4.14; UDP from 5.0). The kernel numbers the
    /// sends of an open socket across all its descriptors. So a socket that has `SO_ZEROCOPY` set already
    /// is refused, and nobody else may send this way on it.
    MsgZerocopy,
    /// `sendmsg`: the kernel copies.
    Copy,
    /// `sendmsg` on a TLS connection whose bytes the kernel ciphers: one pass reads them and writes packets. Of
    /// connections that `handoff::tls` made.
    KernelTls,
    /// TLS whose bytes this process ciphers, and the kernel then copies. Of connections that `handoff::tls` made.
    UserTls,
}

impl Engine {
    /// The name on command lines and in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::UringZc => "uring-zc",
            Self::MsgZerocopy => "msg-zerocopy",
            Self::Copy => "copy",
            Self::KernelTls => "kernel-tls",
            Self::UserTls => "user-tls",
        }
    }

    /// Whether it lends the memory beyond the request.
    pub(crate) fn lends(self) -> bool {
        matches!(self, Self::UringZc | Self::MsgZerocopy)
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How a socket receives.
///
/// ```no_run
/// # async fn example(receiver: handoff::Receiver) -> Result<(), Box<dyn std::error::Error>> {
/// let (engine, reason) = receiver.engine();
/// println!("receives by {engine}: {reason}");
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReceiveEngine {
    /// `IORING_OP_RECV_ZC` from an rx queue of a NIC (Linux 6.15).
    Zcrx,
    /// The same into a dma-buf, foreign memory (tried on Linux 7.2): the kernel cannot copy there.
    ZcrxDmabuf,
    /// The same without a device: the kernel copies (Linux 7.2).
    ZcrxNodev,
    /// `TCP_ZEROCOPY_RECEIVE` (Linux 4.18): the kernel maps whole pages, and copies the rest.
    TcpZerocopyReceive,
    /// Multishot `IORING_OP_RECV` into provided buffers (Linux 6.0): the kernel copies.
    Multishot,
    /// epoll and `recv`, without a ring: the kernel copies.
    Epoll,
}

impl ReceiveEngine {
    /// The name on command lines and in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Zcrx => "zcrx",
            Self::ZcrxDmabuf => "zcrx-dmabuf",
            Self::ZcrxNodev => "zcrx-nodev",
            Self::TcpZerocopyReceive => "tcp-zerocopy-receive",
            Self::Multishot => "multishot",
            Self::Epoll => "epoll",
        }
    }
}

impl fmt::Display for ReceiveEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
