//! TLS in the kernel: the keys of a TCP connection, and records that are not data.
//!
//! Kernel interface: `TCP_ULP` "tls", and the options and control messages of linux/tls.h. (Linux 4.13 sends, 4.17
//! receives, 5.1 has TLS 1.3; `TLS_RX_EXPECT_NO_PAD` 6.0; other keys for an open connection 6.14)

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{Ordering, compiler_fence};

use libc::c_int;

use crate::sockopt;

const TCP_ULP: c_int = 31;
const SOL_TLS: c_int = 282;
const TLS_TX: c_int = 1;
const TLS_RX: c_int = 2;
const TLS_RX_EXPECT_NO_PAD: c_int = 4;
const TLS_SET_RECORD_TYPE: c_int = 1;
const TLS_GET_RECORD_TYPE: c_int = 2;

/// The most bytes of one record's content.
pub const MAX_RECORD: usize = 1 << 14;

/// What a record contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordKind(pub u8);

impl RecordKind {
    /// An alert: its level and its description.
    pub const ALERT: Self = Self(21);
    /// Messages of the handshake.
    pub const HANDSHAKE: Self = Self(22);
    /// The bytes of the program.
    pub const DATA: Self = Self(23);
}

/// A direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// What is sent.
    Transmit,
    /// What is received.
    Receive,
}

/// A cipher that the kernel knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cipher {
    /// AES-128-GCM.
    Aes128Gcm,
    /// AES-256-GCM.
    Aes256Gcm,
    /// ChaCha20-Poly1305. (Linux 5.11)
    Chacha20Poly1305,
}

impl Cipher {
    /// Its usual name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Aes128Gcm => "AES-128-GCM",
            Self::Aes256Gcm => "AES-256-GCM",
            Self::Chacha20Poly1305 => "ChaCha20-Poly1305",
        }
    }

    /// The bytes of a key.
    pub fn key_len(self) -> usize {
        self.shape().1
    }

    /// The kernel's number, the bytes of a key, and those of the part of the nonce that comes before it as "salt".
    fn shape(self) -> (u16, usize, usize) {
        match self {
            Self::Aes128Gcm => (51, 16, 4),
            Self::Aes256Gcm => (52, 32, 4),
            Self::Chacha20Poly1305 => (54, 32, 0),
        }
    }
}

/// The keys of one direction.
pub struct Keys<'a> {
    /// Whether this is TLS 1.3; else TLS 1.2.
    pub is_tls13: bool,
    /// The cipher.
    pub cipher: Cipher,
    /// 16 or 32 bytes.
    pub key: &'a [u8],
    /// The nonce, before it is joined with the number of a record.
    pub iv: &'a [u8; 12],
    /// The number of the next record.
    pub sequence: u64,
}

/// Gives a connection the kernel's TLS, without any keys yet.
///
/// # Errors
///
/// The kernel's; ENOENT if it has no TLS.
pub fn attach(connection: BorrowedFd<'_>) -> io::Result<()> {
    sockopt::set_bytes(connection, libc::IPPROTO_TCP, TCP_ULP, b"tls\0")
}

/// Gives one direction of a connection its keys, or other keys.
///
/// # Errors
///
/// The kernel's; EBUSY if it does not take other keys.
///
/// # Panics
///
/// When the key has not the length of its cipher's.
pub fn set_keys(connection: BorrowedFd<'_>, way: Way, keys: &Keys<'_>) -> io::Result<()> {
    let (number, key_len, salt_len) = keys.cipher.shape();
    assert_eq!(keys.key.len(), key_len, "a key of the cipher");
    // `struct tls12_crypto_info_*`: version and cipher, then iv, key, salt and number of a record.
    let version: u16 = if keys.is_tls13 { 0x0304 } else { 0x0303 };
    let (salt, iv) = keys.iv.split_at(salt_len);
    let mut bytes = [0; 4 + 12 + 32 + 8];
    let sequence = keys.sequence.to_be_bytes();
    let parts: [&[u8]; 6] =
        [&version.to_ne_bytes(), &number.to_ne_bytes(), iv, keys.key, salt, &sequence];
    let mut end = 0;
    for part in parts {
        bytes[end..end + part.len()].copy_from_slice(part);
        end += part.len();
    }
    let name = match way {
        Way::Transmit => TLS_TX,
        Way::Receive => TLS_RX,
    };
    let set = sockopt::set_bytes(connection, SOL_TLS, name, &bytes[..end]);
    bytes.fill(0);
    // Nobody reads them, and they are to be zero all the same.
    std::hint::black_box(&bytes);
    compiler_fence(Ordering::SeqCst);
    set
}

/// Has a TLS 1.3 connection decrypt into the memory of its readers at once: its records should have no padding. The
/// kernel decrypts a record with padding twice.
///
/// # Errors
///
/// The kernel's.
pub fn expect_no_padding(connection: BorrowedFd<'_>) -> io::Result<()> {
    sockopt::set(connection, SOL_TLS, TLS_RX_EXPECT_NO_PAD, 1)
}

/// A message with room for the kind of its record, `struct cmsghdr` with one byte.
#[repr(C, align(8))]
struct Control {
    head: libc::cmsghdr,
    kind: u8,
}

// SAFETY: computes from its argument only.
const CONTROL_LEN: usize = unsafe { libc::CMSG_LEN(1) } as usize;

impl Control {
    fn new(kind: u8) -> Self {
        // SAFETY: all-zero bytes are a valid head, which is plain data.
        let mut head: libc::cmsghdr = unsafe { std::mem::zeroed() };
        head.cmsg_len = CONTROL_LEN as _;
        (head.cmsg_level, head.cmsg_type) = (SOL_TLS, TLS_SET_RECORD_TYPE);
        Self { head, kind }
    }
}

/// Sends a record of this kind; without waiting. The kernel takes all of it or nothing if it is short.
///
/// # Errors
///
/// The kernel's; EAGAIN if there is no room.
pub fn send_record(
    connection: BorrowedFd<'_>,
    kind: RecordKind,
    content: &[u8],
) -> io::Result<usize> {
    let mut control = Control::new(kind.0);
    let mut piece =
        libc::iovec { iov_base: content.as_ptr().cast_mut().cast(), iov_len: content.len() };
    let message = message(&mut piece, &mut control);
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the message and all that it names live through the call, which reads them.
    let sent = unsafe { libc::sendmsg(connection.as_raw_fd(), &raw const message, flags) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Receives the next record, or the next part of data, with its kind; without waiting.
///
/// # Errors
///
/// The kernel's; EAGAIN if there is nothing.
pub fn receive_record(
    connection: BorrowedFd<'_>,
    into: &mut [u8],
) -> io::Result<(usize, RecordKind)> {
    let mut control = Control::new(RecordKind::DATA.0);
    let mut piece = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let mut message = message(&mut piece, &mut control);
    // SAFETY: the message and all that it names live through the call, which writes to them within their lengths.
    let received =
        unsafe { libc::recvmsg(connection.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
    let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
    let told = message.msg_controllen >= CONTROL_LEN
        && (control.head.cmsg_level, control.head.cmsg_type) == (SOL_TLS, TLS_GET_RECORD_TYPE);
    Ok((received, if told { RecordKind(control.kind) } else { RecordKind::DATA }))
}

fn message(piece: &mut libc::iovec, control: &mut Control) -> libc::msghdr {
    // SAFETY: all-zero bytes are a valid message, which is plain data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (piece, 1);
    message.msg_control = (&raw mut *control).cast();
    message.msg_controllen = size_of::<Control>() as _;
    message
}
