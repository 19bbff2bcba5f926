//! The parts of PF_RDS that the libc crate lacks.
//!
//! Kernel interface: `include/uapi/linux/rds.h`.

use std::io;
use std::os::fd::BorrowedFd;

use crate::sockopt;

/// `PF_RDS`.
pub const PF_RDS: i32 = 21;
/// `SOL_RDS`.
pub const SOL_RDS: i32 = 276;
/// `SO_RDS_TRANSPORT`: the transport of a socket that is not bound yet.
pub const SO_RDS_TRANSPORT: i32 = 8;
/// `RDS_TRANS_TCP`.
pub const TRANS_TCP: i32 = 2;

/// Sets `SO_RDS_TRANSPORT` to TCP.
///
/// # Errors
///
/// `ENOPROTOOPT` if the kernel lacks the transport, which is a module of its own.
pub fn choose_tcp(socket: BorrowedFd<'_>) -> io::Result<()> {
    sockopt::set(socket, SOL_RDS, SO_RDS_TRANSPORT, TRANS_TCP)
}

/// `RDS_CMSG_ZCOPY_COOKIE`: on `sendmsg` with `MSG_ZEROCOPY`, the number (`u32`) that comes back.
pub const CMSG_ZCOPY_COOKIE: i32 = 12;
/// `RDS_CMSG_ZCOPY_COMPLETION`: on `recvmsg`, [`ZcopyCookies`].
pub const CMSG_ZCOPY_COMPLETION: i32 = 13;
/// `RDS_INFO_COUNTERS`: option that reads [`InfoCounter`]s of the whole system.
pub const INFO_COUNTERS: i32 = 10000;
/// `RDS6_INFO_CONNECTIONS`: option that reads [`Info6Connection`]s.
pub const INFO6_CONNECTIONS: i32 = 10011;
/// `RDS6_INFO_SEND_MESSAGES`: option that reads [`Info6Message`]s that were not sent.
pub const INFO6_SEND_MESSAGES: i32 = 10012;
/// `RDS6_INFO_RETRANS_MESSAGES`: option that reads [`Info6Message`]s that were sent and not acknowledged.
pub const INFO6_RETRANS_MESSAGES: i32 = 10013;
/// `RDS6_INFO_RECV_MESSAGES`: option that reads [`Info6Message`]s that were received and not read.
pub const INFO6_RECV_MESSAGES: i32 = 10014;
/// `RDS6_INFO_SOCKETS`: option that reads [`Info6Socket`]s.
pub const INFO6_SOCKETS: i32 = 10015;
/// `RDS_MAX_MSG_SIZE`: bytes of the longest message that a socket sends, from `net/rds/rds.h`.
pub const MAX_MSG_SIZE: usize = 1 << 20;
/// `RDS_MAX_ZCOOKIES`.
pub const MAX_ZCOOKIES: usize = 8;

/// `struct rds_zcopy_cookies`: numbers of messages whose pages the kernel has released.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ZcopyCookies {
    /// How many of `cookies` count.
    pub num: u32,
    /// The numbers.
    pub cookies: [u32; MAX_ZCOOKIES],
}

const _: () = assert!(size_of::<ZcopyCookies>() == 36);

/// `struct rds_info_counter`.
#[repr(C, packed)]
#[derive(Clone, Copy)]
pub struct InfoCounter {
    /// Name, ended by a zero.
    pub name: [u8; 32],
    /// Value.
    pub value: u64,
}

const _: () = assert!(size_of::<InfoCounter>() == 40);

/// `struct rds6_info_connection`: one path to a peer.
#[repr(C, packed)]
#[derive(Clone, Copy)]
pub struct Info6Connection {
    /// Number of the next message sent.
    pub next_tx_seq: u64,
    /// Number of the next message expected.
    pub next_rx_seq: u64,
    /// Own address; IPv4 is mapped.
    pub laddr: [u8; 16],
    /// The peer's.
    pub faddr: [u8; 16],
    /// Name of the transport, ended by a zero.
    pub transport: [u8; 16],
    /// [`CONNECTION_CONNECTED`] and others.
    pub flags: u8,
}

const _: () = assert!(size_of::<Info6Connection>() == 65);

/// `struct rds6_info_message`: one message in a queue.
#[repr(C, packed)]
#[derive(Clone, Copy)]
pub struct Info6Message {
    /// Number on its path.
    pub seq: u64,
    /// Bytes.
    pub len: u32,
    /// Own address; IPv4 is mapped.
    pub laddr: [u8; 16],
    /// The peer's.
    pub faddr: [u8; 16],
    /// Own port, big-endian.
    pub lport: u16,
    /// The peer's, big-endian.
    pub fport: u16,
    /// How it is acknowledged.
    pub flags: u8,
    /// Type of service.
    pub tos: u8,
}

const _: () = assert!(size_of::<Info6Message>() == 50);

/// `struct rds6_info_socket`.
#[repr(C, packed)]
#[derive(Clone, Copy)]
pub struct Info6Socket {
    /// Bytes of the send buffer.
    pub sndbuf: u32,
    /// Own address; IPv4 is mapped.
    pub bound_addr: [u8; 16],
    /// The peer's, if it is connected.
    pub connected_addr: [u8; 16],
    /// Own port, big-endian.
    pub bound_port: u16,
    /// The peer's, big-endian.
    pub connected_port: u16,
    /// Bytes of the receive buffer.
    pub rcvbuf: u32,
    /// Inode.
    pub inum: u64,
}

const _: () = assert!(size_of::<Info6Socket>() == 52);

/// `RDS_INFO_CONNECTION_FLAG_CONNECTED`.
pub const CONNECTION_CONNECTED: u8 = 0x04;
