//! What ciphers the bytes of a socket: the kernel, or rustls in user space.
//!
//! Contracts:
//! - a connection that ends without close-notify is cut off, which is an error and no end; nor do we say close-notify when
//!   a send has not gone whole;
//! - keys are changed, or the connection ends, before they have ciphered more records than is safe;
//! - keys are in no message and no log. rustls wipes its own, and so does what hands them to the kernel.
//!
//! Minimum kernel: any in user space; see [`ktls`] for what the kernel's needs.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use handoff_sys::ktls::{self, Cipher as KernelsCipher, RecordKind, Way};
use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::kernel::KernelConnection;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};
use rustls::{ConnectionTrafficSecrets, ProtocolVersion};

use crate::error::Error;
use crate::memory::View;

/// Room for the largest record: head, content, and what a cipher adds.
const RECORD: usize = 5 + ktls::MAX_RECORD + 256;
/// Bytes of payload that are ciphered in one go.
const AT_ONCE: usize = 4 * ktls::MAX_RECORD;
/// Of the records that one key may cipher, so many are kept for those that are counted too low.
const SAFE_PART: u64 = 2;

const CLOSE_NOTIFY: u8 = 0;
const UNEXPECTED_MESSAGE: u8 = 10;
const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;

/// What ciphers.
pub(crate) enum Cipher {
    Kernel(Box<KernelCipher>),
    User(Box<UserCipher>),
}

/// Why nothing was sent or received now.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The socket has no room, or nothing for us.
    Blocked,
    /// The kernel's error.
    Errno(i32),
    /// The connection cannot go on.
    Failed(String),
}

impl Stop {
    pub(crate) fn of_errno(errno: i32) -> Self {
        if errno == libc::EAGAIN { Self::Blocked } else { Self::Errno(errno) }
    }

    pub(crate) fn error(self, action: &'static str) -> Error {
        match self {
            Self::Blocked => Error::io(action, io::ErrorKind::WouldBlock.into()),
            Self::Errno(errno) => Error::errno(action, errno),
            Self::Failed(reason) => Error::Tls { reason },
        }
    }
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::of_errno(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl From<rustls::Error> for Stop {
    fn from(error: rustls::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

fn cut_off() -> Stop {
    Stop::Failed(
        "the connection ended without close-notify: what came may be cut off, by the peer's failure or by \
         somebody in between"
            .to_owned(),
    )
}

impl Cipher {
    /// Whether the peer has ended its direction properly.
    pub(crate) fn is_closed(&self) -> bool {
        match self {
            Self::Kernel(cipher) => cipher.closed,
            Self::User(cipher) => cipher.closed && cipher.plain_left().is_empty(),
        }
    }

    /// Why the connection cannot go on, if it cannot.
    pub(crate) fn failure(&self) -> Option<String> {
        match self {
            Self::Kernel(cipher) => cipher.failure.clone(),
            Self::User(cipher) => cipher.failure.clone(),
        }
    }

    /// Whether payload of a send that has not gone whole is in records.
    pub(crate) fn has_part(&self) -> bool {
        matches!(self, Self::User(cipher) if cipher.payload > 0)
    }

    /// Tells the peer that nothing follows.
    pub(crate) fn close(&mut self, socket: &OwnedFd) -> Result<(), Stop> {
        match self {
            Self::Kernel(cipher) if cipher.ended => Ok(()),
            Self::Kernel(cipher) => {
                ktls::send_record(socket.as_fd(), RecordKind::ALERT, &[1, CLOSE_NOTIFY])?;
                cipher.ended = true;
                Ok(())
            }
            Self::User(cipher) => cipher.close(socket),
        }
    }
}

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
    closed: bool,
    /// We have said that nothing follows.
    ended: bool,
    /// The beginning of a handshake message whose rest has not come.
    begun: Vec<u8>,
    failure: Option<String>,
}

impl KernelCipher {
    pub(crate) fn new(
        keys: KernelKeys,
        version: ProtocolVersion,
        limit: u64,
        takes_other_keys: bool,
    ) -> Self {
        let limit = limit / SAFE_PART;
        Self {
            keys,
            version,
            limit,
            left: limit,
            takes_other_keys,
            update_asked: false,
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

/// Notes why a connection failed, and returns the errno that stands for it.
fn fail(stop: Stop, failure: &mut Option<String>) -> i32 {
    match stop {
        Stop::Blocked => -libc::EAGAIN,
        Stop::Errno(errno) => -errno,
        Stop::Failed(reason) => {
            failure.get_or_insert(reason);
            -libc::EPROTO
        }
    }
}

/// A connection whose bytes rustls ciphers.
pub(crate) enum UserKeys {
    Client(UnbufferedClientConnection),
    Server(UnbufferedServerConnection),
}

/// Calls the same of either side.
macro_rules! either {
    ($keys:expr, $incoming:expr, |$status:ident| $does:expr) => {
        match $keys {
            UserKeys::Client(keys) => {
                let $status = keys.process_tls_records($incoming);
                $does
            }
            UserKeys::Server(keys) => {
                let $status = keys.process_tls_records($incoming);
                $does
            }
        }
    };
}
pub(crate) use either;

/// rustls ciphers what goes over the socket.
pub(crate) struct UserCipher {
    keys: UserKeys,
    /// Records of ours, and how many of their bytes the socket has taken.
    sealed: Vec<u8>,
    taken: usize,
    /// Payload of the send under way that they contain.
    payload: usize,
    /// The content of the next record: it is ciphered from memory that nobody else writes.
    content: Vec<u8>,
    /// Our end is in a record.
    ended: bool,
    /// Records of the peer's, of which the first bytes may be used up.
    incoming: Vec<u8>,
    /// Bytes received and not taken.
    plain: Vec<u8>,
    plain_taken: usize,
    closed: bool,
    failure: Option<String>,
}

impl UserCipher {
    pub(crate) fn new(keys: UserKeys) -> Self {
        Self {
            keys,
            sealed: Vec::new(),
            taken: 0,
            payload: 0,
            content: Vec::new(),
            ended: false,
            incoming: Vec::new(),
            plain: Vec::new(),
            plain_taken: 0,
            closed: false,
            failure: None,
        }
    }

    fn plain_left(&self) -> &[u8] {
        &self.plain[self.plain_taken..]
    }

    /// Sends the beginning of these pieces, and says how many of their bytes went. After
    /// [`Blocked`](Stop::Blocked), the same pieces must come again.
    pub(crate) fn send<'a>(
        &mut self,
        socket: &OwnedFd,
        pieces: impl Iterator<Item = View<'a>>,
    ) -> Result<usize, Stop> {
        if self.payload == 0 {
            self.flush(socket)?;
            self.seal(pieces)?;
        }
        self.flush(socket)?;
        Ok(std::mem::take(&mut self.payload))
    }

    /// Sends the records that are left.
    fn flush(&mut self, socket: &OwnedFd) -> Result<(), Stop> {
        while self.taken < self.sealed.len() {
            let left = &self.sealed[self.taken..];
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            // SAFETY: the kernel reads the given number of bytes, which live through the call.
            let sent = unsafe {
                libc::send(
                    std::os::fd::AsRawFd::as_raw_fd(socket),
                    left.as_ptr().cast(),
                    left.len(),
                    flags,
                )
            };
            match usize::try_from(sent) {
                Ok(sent) => self.taken += sent,
                Err(_) => match io::Error::last_os_error() {
                    error if error.kind() == io::ErrorKind::Interrupted => {}
                    error => return Err(error.into()),
                },
            }
        }
        self.sealed.clear();
        self.taken = 0;
        Ok(())
    }

    /// Ciphers the beginning of these pieces.
    fn seal<'a>(&mut self, pieces: impl Iterator<Item = View<'a>>) -> Result<(), Stop> {
        let mut content = std::mem::take(&mut self.content);
        content.resize(ktls::MAX_RECORD, 0);
        let mut filled = 0;
        for piece in pieces {
            let mut at = 0;
            while at < piece.len() && self.payload < AT_ONCE {
                let now = (piece.len() - at).min(ktls::MAX_RECORD - filled);
                piece.read(at, &mut content[filled..filled + now]);
                (at, filled) = (at + now, filled + now);
                self.payload += now;
                if filled == ktls::MAX_RECORD {
                    self.go_on(Some(Write::Data(&content)))?;
                    filled = 0;
                }
            }
        }
        if filled > 0 {
            self.go_on(Some(Write::Data(&content[..filled])))?;
        }
        self.content = content;
        Ok(())
    }

    /// As [`Cipher::close`].
    fn close(&mut self, socket: &OwnedFd) -> Result<(), Stop> {
        if !self.ended {
            self.go_on(Some(Write::Close))?;
            self.ended = true;
        }
        self.flush(socket)
    }

    /// Receives bytes into memory of this length; the number, or an errno.
    ///
    /// # Safety
    ///
    /// The memory is the caller's alone through the call.
    pub(crate) unsafe fn receive(&mut self, socket: &OwnedFd, into: *mut u8, len: usize) -> i32 {
        match self.fill(socket) {
            Ok(()) => {
                let left = self.plain_left();
                let now = left.len().min(len);
                // SAFETY: the caller has the memory, of at least so many bytes, and it is not our vector's.
                unsafe { into.copy_from_nonoverlapping(left.as_ptr(), now) };
                self.plain_taken += now;
                now as i32
            }
            Err(stop) => {
                if matches!(stop, Stop::Failed(_)) {
                    // It tells the peer why, if there is room for that.
                    let _ = self.flush(socket);
                }
                fail(stop, &mut self.failure)
            }
        }
    }

    /// Receives until there are bytes to take, or the peer has ended.
    fn fill(&mut self, socket: &OwnedFd) -> Result<(), Stop> {
        while self.plain_left().is_empty() && !self.closed {
            self.plain.clear();
            self.plain_taken = 0;
            self.go_on(None)?;
            if !self.plain.is_empty() || self.closed {
                break;
            }
            // What the peer makes us answer, and does not take.
            if self.sealed.len() - self.taken > 2 * AT_ONCE {
                return Err(Stop::Failed(
                    "the peer asks again and again, and takes no answer".to_owned(),
                ));
            }
            self.receive_more(socket)?;
        }
        // Answers to the peer's messages.
        match self.payload {
            0 => match self.flush(socket) {
                Err(Stop::Blocked) => Ok(()),
                flushed => flushed,
            },
            _ => Ok(()),
        }
    }

    fn receive_more(&mut self, socket: &OwnedFd) -> Result<(), Stop> {
        let before = self.incoming.len();
        if before >= 2 * RECORD {
            return Err(Stop::Failed("the peer sends what is no record".to_owned()));
        }
        self.incoming.resize(2 * RECORD, 0);
        let room = &mut self.incoming[before..];
        let received = rustix::net::recv(socket, room, rustix::net::RecvFlags::DONTWAIT);
        let received = received.map(|(_, len)| len).map_err(io::Error::from);
        self.incoming.truncate(before + received.as_ref().map_or(0, |len| *len));
        match received {
            Ok(0) => Err(cut_off()),
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes the bytes out of the records that are there; then writes a record, if asked to. After an error nothing more
    /// is taken or written: what follows a record that was changed is of no use.
    fn go_on(&mut self, write: Option<Write<'_>>) -> Result<(), Stop> {
        if let Some(reason) = &self.failure {
            return Err(Stop::Failed(reason.clone()));
        }
        let done = self.process(write);
        if let Err(Stop::Failed(reason)) = &done {
            self.failure = Some(reason.clone());
            self.alert()?;
        }
        done
    }

    /// What tells the peer of an error. rustls gives it before it looks at records, and only once: it must not see again
    /// what it has refused.
    fn alert(&mut self) -> Result<(), Stop> {
        let Self { keys, incoming, sealed, .. } = self;
        either!(keys, incoming, |status| match status.state {
            Ok(ConnectionState::EncodeTlsData(mut encodes)) => {
                append(sealed, 0, |room| encodes.encode(room))
            }
            _ => Ok(()),
        })
    }

    /// rustls remembers places in what has come, so it sees all of that each time.
    fn process(&mut self, mut write: Option<Write<'_>>) -> Result<(), Stop> {
        loop {
            let Self { keys, incoming, plain, sealed, closed, .. } = self;
            let (used, done) = either!(keys, incoming, |status| {
                let UnbufferedStatus { mut discard, state, .. } = status;
                let mut done = Ok(false);
                match state {
                    Ok(ConnectionState::ReadTraffic(mut reads)) => {
                        while let Some(record) = reads.next_record() {
                            let record = record?;
                            plain.extend_from_slice(record.payload);
                            discard += record.discard;
                        }
                    }
                    Ok(ConnectionState::PeerClosed) => *closed = true,
                    Ok(ConnectionState::EncodeTlsData(mut encodes)) => {
                        append(sealed, 0, |room| encodes.encode(room))?;
                    }
                    Ok(ConnectionState::TransmitTlsData(transmits)) => transmits.done(),
                    Ok(ConnectionState::WriteTraffic(mut writes)) => {
                        done = match write.take() {
                            Some(Write::Data(bytes)) => {
                                let room = bytes.len() + RECORD - ktls::MAX_RECORD;
                                append(sealed, room, |room| writes.encrypt(bytes, room))
                            }
                            Some(Write::Close) => {
                                append(sealed, 0, |room| writes.queue_close_notify(room))
                            }
                            None => Ok(()),
                        }
                        .map(|()| true);
                    }
                    Ok(ConnectionState::Closed) if write.is_none() => done = Ok(true),
                    Ok(_) => done = Err(unready()),
                    Err(error) => done = Err(error.into()),
                }
                (discard, done)
            });
            incoming.drain(..used);
            if done? {
                return Ok(());
            }
        }
    }
}

/// What is written into records.
enum Write<'a> {
    Data(&'a [u8]),
    /// That nothing follows.
    Close,
}

fn unready() -> Stop {
    Stop::Failed("the connection is in the midst of a handshake".to_owned())
}

/// What a call that writes into room may lack.
pub(crate) trait LacksRoom {
    /// The bytes that it needs, or why it failed.
    fn needs(self) -> Result<usize, Stop>;
}

impl LacksRoom for EncodeError {
    fn needs(self) -> Result<usize, Stop> {
        match self {
            Self::InsufficientSize(short) => Ok(short.required_size),
            Self::AlreadyEncoded => Err(Stop::Failed(self.to_string())),
        }
    }
}

impl LacksRoom for EncryptError {
    fn needs(self) -> Result<usize, Stop> {
        match self {
            Self::InsufficientSize(short) => Ok(short.required_size),
            Self::EncryptExhausted => Err(Stop::Failed(self.to_string())),
        }
    }
}

/// Appends what `write` puts into the room that it gets: first so much, then as much as it asks for.
pub(crate) fn append<E: LacksRoom>(
    to: &mut Vec<u8>,
    mut room: usize,
    mut write: impl FnMut(&mut [u8]) -> Result<usize, E>,
) -> Result<(), Stop> {
    let before = to.len();
    loop {
        to.resize(before + room, 0);
        match write(&mut to[before..]) {
            Ok(len) => {
                to.truncate(before + len);
                return Ok(());
            }
            Err(error) => room = error.needs().inspect_err(|_| to.truncate(before))?,
        }
    }
}
