//! rustls ciphers what goes over a connection, in this process.

use std::io;
use std::ops::Deref;
use std::os::fd::OwnedFd;

use handoff_sys::ktls;
use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};

use super::stop::{Stop, cut_off, discard, fail};
use crate::memory::View;

/// Room for the largest record: head, content, and what a cipher adds.
const RECORD: usize = 5 + ktls::MAX_RECORD + 256;
/// Bytes of payload that are ciphered in one go.
const AT_ONCE: usize = 4 * ktls::MAX_RECORD;
/// The most receives that bring no data before others have their turn.
const MOST_EMPTY: u32 = 16;

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
    sealed: Records,
    taken: usize,
    /// Payload of the send under way that they contain.
    pub(super) payload: usize,
    /// The content of the next record: it is ciphered from memory that nobody else writes.
    content: Vec<u8>,
    /// Our end is in a record.
    ended: bool,
    /// Records of the peer's, so many bytes of them; what is behind them means nothing.
    incoming: Vec<u8>,
    came: usize,
    /// Bytes received and not taken.
    plain: Vec<u8>,
    plain_taken: usize,
    pub(super) closed: bool,
    pub(super) failure: Option<String>,
}

impl UserCipher {
    pub(crate) fn new(keys: UserKeys) -> Self {
        Self {
            keys,
            sealed: Records::default(),
            taken: 0,
            payload: 0,
            content: Vec::new(),
            ended: false,
            incoming: Vec::new(),
            came: 0,
            plain: Vec::new(),
            plain_taken: 0,
            closed: false,
            failure: None,
        }
    }

    pub(super) fn plain_left(&self) -> &[u8] {
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

    /// Tells the peer that nothing follows.
    pub(super) fn close(&mut self, socket: &OwnedFd) -> Result<(), Stop> {
        if !self.ended {
            self.go_on(Some(Write::Close))?;
            self.ended = true;
        }
        self.flush(socket)
    }

    /// Receives bytes into memory of this length; the number, or an errno. With `keeps` they come again.
    ///
    /// # Safety
    ///
    /// The memory is the caller's alone through the call.
    pub(super) unsafe fn receive(
        &mut self,
        socket: &OwnedFd,
        (into, len): (*mut u8, usize),
        keeps: bool,
    ) -> i32 {
        match self.fill(socket) {
            Ok(()) => {
                let left = self.plain_left();
                let now = left.len().min(len);
                // SAFETY: the caller has the memory, of at least so many bytes, and it is not our vector's.
                unsafe { into.copy_from_nonoverlapping(left.as_ptr(), now) };
                self.plain_taken += if keeps { 0 } else { now };
                now as i32
            }
            Err(stop) => {
                // A peer hears at once why it fails, and what it has asked for, if there is room for that. Behind payload
                // the answer goes with the payload.
                let has_failed = matches!(stop, Stop::Failed(_));
                if has_failed || self.payload == 0 {
                    let _ = self.flush(socket);
                }
                if has_failed {
                    discard(socket);
                }
                fail(stop, &mut self.failure)
            }
        }
    }

    /// Receives until there are bytes to take, or the peer has ended.
    fn fill(&mut self, socket: &OwnedFd) -> Result<(), Stop> {
        let mut empty = 0;
        while self.plain_left().is_empty() && !self.closed {
            self.plain.clear();
            self.plain_taken = 0;
            let gone_on = self.go_on(None);
            // What came before a record that was changed is given out before the error.
            if !self.plain.is_empty() || self.closed {
                break;
            }
            gone_on?;
            // What the peer makes us answer, and does not take.
            if self.sealed.len() - self.taken > 2 * AT_ONCE {
                return Err(Stop::Failed(
                    "the peer asks again and again, and takes no answer".to_owned(),
                ));
            }
            // All that came is used up, so the socket tells when there is more.
            empty += 1;
            if empty > MOST_EMPTY {
                return Err(Stop::Blocked);
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
        let before = self.came;
        if before >= 2 * RECORD {
            return Err(Stop::Failed("the peer sends what is no record".to_owned()));
        }
        self.incoming.resize(2 * RECORD, 0);
        let room = &mut self.incoming[before..];
        let received = rustix::net::recv(socket, room, rustix::net::RecvFlags::DONTWAIT);
        let received = received.map(|(_, len)| len).map_err(io::Error::from);
        self.came = before + received.as_ref().map_or(0, |len| *len);
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
        let Self { keys, incoming, came, sealed, .. } = self;
        either!(keys, &mut incoming[..*came], |status| match status.state {
            Ok(ConnectionState::EncodeTlsData(mut encodes)) => {
                sealed.append(0, |room| encodes.encode(room))
            }
            _ => Ok(()),
        })
    }

    /// rustls remembers places in what has come, so it sees all of that each time.
    fn process(&mut self, mut write: Option<Write<'_>>) -> Result<(), Stop> {
        loop {
            let Self { keys, incoming, came, plain, sealed, closed, .. } = self;
            let (used, done) = either!(keys, &mut incoming[..*came], |status| {
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
                        sealed.append(0, |room| encodes.encode(room))?;
                    }
                    Ok(ConnectionState::TransmitTlsData(transmits)) => transmits.done(),
                    Ok(ConnectionState::WriteTraffic(mut writes)) => {
                        done = match write.take() {
                            Some(Write::Data(bytes)) => {
                                let room = bytes.len() + RECORD - ktls::MAX_RECORD;
                                sealed.append(room, |room| writes.encrypt(bytes, room))
                            }
                            Some(Write::Close) => {
                                sealed.append(0, |room| writes.queue_close_notify(room))
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
            incoming.copy_within(used..*came, 0);
            *came -= used;
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

/// Records, in memory that is kept: to clear it each time costs as much as to copy them.
#[derive(Default)]
pub(crate) struct Records {
    /// Behind the records, bytes that mean nothing.
    bytes: Vec<u8>,
    len: usize,
}

impl Deref for Records {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Records {
    /// Appends what `write` puts into the room that it gets: first so much, then as much as it asks for.
    pub(crate) fn append<E: LacksRoom>(
        &mut self,
        mut room: usize,
        mut write: impl FnMut(&mut [u8]) -> Result<usize, E>,
    ) -> Result<(), Stop> {
        loop {
            let end = self.len + room;
            if self.bytes.len() < end {
                self.bytes.resize(end, 0);
            }
            match write(&mut self.bytes[self.len..end]) {
                Ok(len) => {
                    self.len += len;
                    return Ok(());
                }
                Err(error) => room = error.needs()?,
            }
        }
    }

    fn clear(&mut self) {
        self.len = 0;
    }

    /// Gives all away, in a vector of their own.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        self.bytes.truncate(std::mem::take(&mut self.len));
        std::mem::take(&mut self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Short(usize);

    impl LacksRoom for Short {
        fn needs(self) -> Result<usize, Stop> {
            Ok(self.0)
        }
    }

    /// Writes this, if there is room for it.
    fn record(text: &'static [u8]) -> impl FnMut(&mut [u8]) -> Result<usize, Short> {
        move |room| match room.get_mut(..text.len()) {
            Some(room) => {
                room.copy_from_slice(text);
                Ok(text.len())
            }
            None => Err(Short(text.len())),
        }
    }

    #[test]
    fn records_follow_each_other_whatever_was_there_before() {
        let mut records = Records::default();
        for text in [&b"a long record"[..], b"short"] {
            assert!(records.append(0, record(text)).is_ok());
            assert!(records.append(40, record(b" and more")).is_ok());
            assert_eq!(&*records, [text, b" and more"].concat());
            records.clear();
            assert!(records.is_empty());
        }
        assert!(records.append(3, record(b"abc")).is_ok());
        assert_eq!(records.take(), b"abc");
        assert!(records.is_empty() && records.take().is_empty());
    }
}
