//! The kernel ciphers what goes over a connection. rustls keeps the secrets that other keys are made of.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};

use handoff_sys::ktls::{self, Cipher as KernelsCipher, RecordKind, Way};
use rustls::client::ClientConnectionData;
use rustls::kernel::KernelConnection;
use rustls::server::ServerConnectionData;
use rustls::{ConnectionTrafficSecrets, ProtocolVersion};

use super::stop::{CLOSE_NOTIFY, Stop, cut_off, fail};

/// Of the records that one key may cipher, so many are kept for those that are counted too low.
const SAFE_PART: u64 = 2;
/// The most records that are no data which one call takes: a peer that sends nothing else waits for its turn.
const MOST_APART: u32 = 16;

const UNEXPECTED_MESSAGE: u8 = 10;
const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;

/// The side of a connection whose bytes the kernel ciphers.
pub(crate) enum KernelKeys {
    Client(KernelConnection<ClientConnectionData>),
    Server(KernelConnection<ServerConnectionData>),
}

impl KernelKeys {
    fn next(&mut self, way: Way) -> Result<(u64, ConnectionTrafficSecrets), rustls::Error> {
        match (self, way) {
            (Self::Client(keys), Way::Transmit) => keys.update_tx_secret(),
            (Self::Client(keys), Way::Receive) => keys.update_rx_secret(),
            (Self::Server(keys), Way::Transmit) => keys.update_tx_secret(),
            (Self::Server(keys), Way::Receive) => keys.update_rx_secret(),
        }
    }
}

/// Gives one direction of a connection to the kernel.
pub(crate) fn set_keys(
    socket: BorrowedFd<'_>,
    way: Way,
    version: ProtocolVersion,
    (sequence, secrets): &(u64, ConnectionTrafficSecrets),
) -> io::Result<()> {
    let (cipher, key, iv) = match secrets {
        ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (KernelsCipher::Aes128Gcm, key, iv),
        ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (KernelsCipher::Aes256Gcm, key, iv),
        ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => {
            (KernelsCipher::Chacha20Poly1305, key, iv)
        }
        _ => return Err(io::ErrorKind::Unsupported.into()),
    };
    let iv = iv.as_ref().try_into().map_err(|_| io::Error::from(io::ErrorKind::Unsupported))?;
    let is_tls13 = version == ProtocolVersion::TLSv1_3;
    let (key, sequence) = (key.as_ref(), *sequence);
    ktls::set_keys(socket, way, &ktls::Keys { is_tls13, cipher, key, iv, sequence })
}

/// The kernel ciphers what goes over the socket.
pub(crate) struct KernelCipher {
    keys: KernelKeys,
    version: ProtocolVersion,
    /// Records that one key may cipher.
    limit: u64,
    /// Of these, those that the current key for sending may still cipher.
    left: u64,
    /// Whether the kernel takes other keys for an open connection.
    takes_other_keys: bool,
    /// The peer has other keys, and asks us to have, too.
    update_asked: bool,
    /// The kernel deciphers into the memory of the reader, where a record has room.
    in_place: bool,
    /// The last receive filled its room, so that the kernel may have a part of a record.
    splits: bool,
    pub(super) closed: bool,
    /// We have said that nothing follows.
    ended: bool,
    /// The beginning of a handshake message whose rest has not come.
    begun: Vec<u8>,
    pub(super) failure: Option<String>,
}

impl KernelCipher {
    pub(crate) fn new(
        keys: KernelKeys,
        version: ProtocolVersion,
        limit: u64,
        takes_other_keys: bool,
        in_place: bool,
    ) -> Self {
        let limit = limit / SAFE_PART;
        Self {
            keys,
            version,
            limit,
            left: limit,
            takes_other_keys,
            update_asked: false,
            in_place,
            splits: false,
            closed: false,
            ended: false,
            begun: Vec::new(),
            failure: None,
        }
    }

    /// The kernel took so many bytes of one send.
    pub(crate) fn count(&mut self, bytes: usize) {
        self.left = self.left.saturating_sub(bytes.div_ceil(ktls::MAX_RECORD).max(1) as u64);
    }

    /// As [`count`](Self::count), for bytes that lay in pages of any length: a record has at most 17 of these, and the pipe
    /// that they come by at most 256.
    pub(crate) fn count_pages(&mut self, bytes: usize) {
        self.count(bytes);
        self.left = self.left.saturating_sub(bytes.min(256).div_ceil(16) as u64);
    }

    /// Tells the peer that nothing follows.
    pub(super) fn close(&mut self, socket: &OwnedFd) -> Result<(), Stop> {
        if !self.ended {
            ktls::send_record(socket.as_fd(), RecordKind::ALERT, &[1, CLOSE_NOTIFY])?;
            self.ended = true;
        }
        Ok(())
    }

    /// Receives by a call. The kernel's errors are negative.
    ///
    /// # Safety
    ///
    /// The memory is the caller's alone through the call, and has a byte.
    pub(super) unsafe fn receive(
        &mut self,
        socket: &OwnedFd,
        (into, len): (*mut u8, usize),
        flags: libc::c_int,
    ) -> i32 {
        for _ in 0..MOST_APART {
            if self.closed {
                return 0;
            }
            let flags = flags | libc::MSG_DONTWAIT;
            // SAFETY: the kernel writes at most so many bytes to the memory that the caller vouches for.
            let received = unsafe { libc::recv(socket.as_raw_fd(), into.cast(), len, flags) };
            let result = match i32::try_from(received) {
                Ok(received) if received >= 0 => received,
                _ => -io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO),
            };
            match self.received(socket, result) {
                told if told == -libc::EINTR => {}
                told => return told,
            }
        }
        -libc::EAGAIN
    }

    /// How the bytes of a receive came, which had room for `room`: `None` if that is unknown. The kernel deciphers a record
    /// for which there is no room into memory of its own, and copies that.
    pub(crate) fn came_in_place(&mut self, bytes: usize, room: usize) -> Option<bool> {
        let began_split = std::mem::replace(&mut self.splits, bytes == room);
        match self.in_place {
            false => Some(false),
            true => (!began_split && !self.splits).then_some(true),
        }
    }

    /// Makes sure that the key may cipher what is sent next.
    pub(crate) fn prepare(&mut self, socket: &OwnedFd) -> Result<(), Stop> {
        // Of the largest send that the kernel takes at once.
        const MARGIN: u64 = (1 << 31) / ktls::MAX_RECORD as u64;
        let worn = self.left < MARGIN;
        if !worn && !self.update_asked {
            return Ok(());
        }
        let can = self.takes_other_keys && self.version == ProtocolVersion::TLSv1_3;
        if !can {
            let reason = match self.version {
                ProtocolVersion::TLSv1_3 => {
                    "this kernel takes no other keys for an open connection (Linux 6.14 does)"
                }
                _ => "TLS 1.2 changes no keys",
            };
            return Err(Stop::Failed(format!(
                "the connection ends here, as its key may cipher no more, and {reason}: connect again"
            )));
        }
        let message = [KEY_UPDATE, 0, 0, 1, 0];
        ktls::send_record(socket.as_fd(), RecordKind::HANDSHAKE, &message)?;
        let next = self.keys.next(Way::Transmit)?;
        set_keys(socket.as_fd(), Way::Transmit, self.version, &next)?;
        (self.left, self.update_asked) = (self.limit, false);
        Ok(())
    }

    /// What a result of a receive means: the number of bytes, or why there are none.
    pub(crate) fn received(&mut self, socket: &OwnedFd, result: i32) -> i32 {
        let stop = match -result {
            _ if result > 0 => return result,
            0 if self.closed => return 0,
            0 => cut_off(),
            libc::EIO => match self.take_record(socket) {
                Ok(()) if self.closed => return 0,
                // It is asked again.
                Ok(()) => return -libc::EINTR,
                Err(stop) => stop,
            },
            libc::EBADMSG => Stop::Failed("a record is not what its sender ciphered".to_owned()),
            libc::EMSGSIZE | libc::EINVAL => Stop::Failed("a record has a wrong head".to_owned()),
            _ => return result,
        };
        fail(stop, &mut self.failure)
    }

    /// Takes a record that is not data.
    fn take_record(&mut self, socket: &OwnedFd) -> Result<(), Stop> {
        let mut content = [0; ktls::MAX_RECORD];
        let (len, kind) = ktls::receive_record(socket.as_fd(), &mut content)?;
        match (kind, &content[..len]) {
            (RecordKind::ALERT, [_, CLOSE_NOTIFY]) => self.closed = true,
            (RecordKind::ALERT, [_, number]) => {
                let alert = rustls::AlertDescription::from(*number);
                return Err(Stop::Failed(format!("the peer ended the connection: {alert:?}")));
            }
            (RecordKind::HANDSHAKE, messages) => {
                self.begun.extend_from_slice(messages);
                return self.take_messages(socket);
            }
            _ => return Err(self.refuse(socket)),
        }
        Ok(())
    }

    fn take_messages(&mut self, socket: &OwnedFd) -> Result<(), Stop> {
        let begun = std::mem::take(&mut self.begun);
        let mut left = &begun[..];
        while let [kind, a, b, c, rest @ ..] = left {
            let len = u32::from_be_bytes([0, *a, *b, *c]) as usize;
            if len > 2 * ktls::MAX_RECORD {
                return Err(self.refuse(socket));
            }
            let Some((message, rest)) = rest.split_at_checked(len) else { break };
            left = rest;
            match (*kind, &mut self.keys, message) {
                (NEW_SESSION_TICKET, KernelKeys::Client(keys), ticket) => {
                    keys.handle_new_session_ticket(ticket)?;
                }
                // Nothing of the old key may follow.
                (KEY_UPDATE, _, [asks @ 0..=1]) if left.is_empty() => {
                    self.update_asked |= *asks == 1;
                    let next = self.keys.next(Way::Receive)?;
                    set_keys(socket.as_fd(), Way::Receive, self.version, &next).map_err(|error| {
                        Stop::Failed(format!(
                            "the peer has other keys, which this kernel does not take ({error}): Linux 6.14 does"
                        ))
                    })?;
                }
                _ => return Err(self.refuse(socket)),
            }
        }
        self.begun = left.to_vec();
        Ok(())
    }

    fn refuse(&self, socket: &OwnedFd) -> Stop {
        // It tells the peer why, if there is room for that.
        let _ = ktls::send_record(socket.as_fd(), RecordKind::ALERT, &[2, UNEXPECTED_MESSAGE]);
        Stop::Failed("the peer sent a message that has no place here".to_owned())
    }
}
