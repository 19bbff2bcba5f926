//! What arrives on a connection: taken in as the host asks for it.
//!
//! Headers, short payloads and the beginning of long ones come by calls, many at a time, into one buffer. The rest of
//! a long payload is received by the library to where it stays. That is begun when something is there: a receive that
//! waits would count as an operation of the driver for as long as the peer likes, and the kernel would wait for it in
//! a thread where the error queue tells of acknowledgements.

use std::io;
use std::os::fd::AsFd;
use std::pin::pin;
use std::rc::Rc;

use futures_lite::future::yield_now;
use futures_util::future::{Either, select};
use handoff::{Append, Error};

use super::engine::Shared;
use super::link::Link;
use crate::protocol::Expect;
use crate::wire::{HEADER_LEN, MAP_LEN};

/// Bytes read at a time where it is not known to whom they belong.
const BUFFER: usize = 64 << 10;
/// From how many on the rest of a payload is received to where it stays.
const DIRECT: usize = 16 << 10;
/// Of the rest of a payload, bytes that are waited for.
const AT_ONCE: usize = 256 << 10;
/// Bytes read in a row before others have their turn, among them the driver and whoever takes the messages.
const TURN: usize = 1 << 20;

/// Why no more is read now.
enum Pause {
    /// Nothing is there.
    Empty,
    /// The host has no room.
    Full,
    /// Others have their turn.
    Turn,
    /// The connection has ended.
    End,
}

/// Whether there is something to read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum There {
    /// The kernel has told so.
    Something,
    /// The last read filled its room.
    Unknown,
    /// The last read took everything.
    Nothing,
}

struct Reader {
    link: Rc<Link>,
    buffer: Box<[u8]>,
    begin: usize,
    end: usize,
    /// A payload of which the beginning has arrived.
    payload: Option<Vec<u8>>,
    skipped: usize,
    /// Bytes of a payload that have not arrived.
    missing: usize,
    /// Bytes from which on the connection counts as readable.
    readable_from: usize,
    there: There,
    /// Bytes taken in a row.
    taken: usize,
}

/// Reads until the connection ends.
pub(super) async fn run(shared: Rc<Shared>, link: Rc<Link>) {
    let mut reader = Reader {
        link: link.clone(),
        buffer: vec![0; BUFFER].into(),
        begin: 0,
        end: 0,
        payload: None,
        skipped: 0,
        missing: 0,
        readable_from: 1,
        there: There::Unknown,
        taken: 0,
    };
    // Nothing was there, and now TCP has something to tell.
    let mut woken_by_tcp = false;
    while !link.over.get() {
        let stirred = link.stirred.seen();
        // That it has told of an acknowledgement is most often all; if not, it wakes us again at once. A connection
        // that is to end is not waited for again: what TCP has acknowledged on it, its peer does not send again.
        let told_only = link.hear() && woken_by_tcp && !link.ending.get();
        let pause = match told_only {
            true => {
                // It was not woken for what there is to read.
                reader.there = There::Unknown;
                Pause::Empty
            }
            false => reader.take_in(&shared).await,
        };
        woken_by_tcp = false;
        shared.look(&link);
        shared.tell();
        match pause {
            Pause::End => break,
            Pause::Empty if link.ending.get() => break,
            Pause::Full => link.stirred.after(stirred).await,
            // Nothing more need be there, and then nobody would tell.
            Pause::Turn if link.ending.get() => yield_now().await,
            // What is there the kernel tells by way of the driver, and so behind the others.
            Pause::Empty | Pause::Turn => {
                if matches!(pause, Pause::Empty) {
                    link.acknowledge();
                }
                reader.await_much();
                let Ok(readable) = link.file.readable() else { break };
                let stirred = pin!(link.stirred.after(stirred));
                if let Either::Left((woken, _)) = select(readable, stirred).await {
                    if woken.is_err() {
                        break;
                    }
                    woken_by_tcp = true;
                    reader.there = There::Something;
                }
            }
        }
    }
    shared.ended(&link);
}

impl Reader {
    /// Takes in what is there.
    async fn take_in(&mut self, shared: &Shared) -> Pause {
        if self.link.ending.get() {
            self.there = There::Unknown;
        }
        self.taken = 0;
        loop {
            match self.read_in(shared) {
                Some(pause) => return pause,
                None if self.receive_rest().await => {}
                None => return Pause::End,
            }
        }
    }

    /// Takes in what is there, up to the rest of a payload that the library is to receive.
    fn read_in(&mut self, shared: &Shared) -> Option<Pause> {
        let id = self.link.id;
        loop {
            if self.link.over.get() {
                return Some(Pause::End);
            }
            let expect = shared.host().expect(id);
            let missing = match expect {
                Expect::Nothing => return Some(Pause::Full),
                Expect::Header => HEADER_LEN.saturating_sub(self.end - self.begin),
                Expect::Map => MAP_LEN.saturating_sub(self.end - self.begin),
                Expect::Skip(len) => {
                    self.skipped += self.take(len - self.skipped).len();
                    len - self.skipped
                }
                Expect::Payload(len) => {
                    let mut payload =
                        self.payload.take().unwrap_or_else(|| Vec::with_capacity(len));
                    let missing = len - payload.len();
                    payload.extend_from_slice(self.take(missing));
                    let missing = len - payload.len();
                    shared.host().payload_arrived(id, payload.len());
                    self.payload = Some(payload);
                    missing
                }
            };
            let is_payload = matches!(expect, Expect::Payload(_));
            self.missing = if is_payload { missing } else { 0 };
            if missing > 0 {
                if self.taken >= TURN {
                    return Some(Pause::Turn);
                }
                match self.there {
                    There::Nothing => return Some(Pause::Empty),
                    _ if !is_payload || missing < DIRECT || !self.may_receive(shared) => {}
                    There::Unknown => return Some(Pause::Turn),
                    There::Something => return None,
                }
                match self.read() {
                    Ok(0) => return Some(Pause::End),
                    Ok(len) => self.taken += len,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        return Some(Pause::Empty);
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(_) => return Some(Pause::End),
                }
                continue;
            }
            match expect {
                Expect::Header => {
                    let bytes = *self.take(HEADER_LEN).first_chunk().expect("is there");
                    shared.host().header(id, &bytes);
                }
                Expect::Map => {
                    let bytes = *self.take(MAP_LEN).first_chunk().expect("is there");
                    shared.host().map(id, &bytes);
                }
                Expect::Skip(_) => {
                    self.skipped = 0;
                    shared.host().skipped(id);
                }
                Expect::Payload(_) => {
                    let payload = self.payload.take().expect("put there above");
                    shared.host().payload_received(id, payload);
                }
                Expect::Nothing => unreachable!("returned above"),
            }
        }
    }

    /// Whether the library may have the payload: not where it takes no more, nor at the end, when nothing is waited for.
    fn may_receive(&self, shared: &Shared) -> bool {
        let driver = &shared.driver;
        !self.link.ending.get() && driver.in_flight() < driver.in_flight_limit()
    }

    /// Receives of the rest of a payload what is there; whether the connection goes on.
    async fn receive_rest(&mut self) -> bool {
        let payload = self.payload.take().expect("has begun");
        if self.readable_from > self.missing {
            self.await_much();
        }
        let stirred = &self.link.stirred;
        let mut seen = stirred.seen();
        let begun = self.link.socket.receive_into(Append::to(payload, self.missing));
        let Ok(mut receive) = begun else { return false };
        let received = loop {
            match select(&mut receive, pin!(stirred.after(seen))).await {
                Either::Left((received, _)) => break received,
                Either::Right(_) => seen = stirred.seen(),
            }
            // Nothing was there after all.
            if self.link.ending.get() || self.link.over.get() {
                receive.cancel();
            }
        };
        self.there = match received.result {
            Ok(_) if received.buffer.room() > 0 => There::Nothing,
            _ => There::Unknown,
        };
        self.payload = Some(received.buffer.into_vec());
        match received.result {
            Ok(len @ 1..) | Err(Error::Canceled { done: len }) => self.taken += len,
            _ => return false,
        }
        true
    }

    /// Has the kernel wake us less often while the rest of a long payload is on its way.
    fn await_much(&mut self) {
        let from = self.missing.clamp(1, AT_ONCE);
        if from != self.readable_from
            && handoff_sys::tcp::set_readable_from(self.link.file.as_fd(), from).is_ok()
        {
            self.readable_from = from;
        }
    }

    /// At most `most` of the bytes that have been read.
    fn take(&mut self, most: usize) -> &[u8] {
        let begin = self.begin;
        self.begin += most.min(self.end - begin);
        &self.buffer[begin..self.begin]
    }

    /// Reads into the buffer.
    fn read(&mut self) -> io::Result<usize> {
        self.buffer.copy_within(self.begin..self.end, 0);
        (self.begin, self.end) = (0, self.end - self.begin);
        let room = &mut self.buffer[self.end..];
        let most = room.len();
        let (len, _) = rustix::net::recv(&self.link.file, room, rustix::net::RecvFlags::DONTWAIT)?;
        self.there = if len < most { There::Nothing } else { There::Unknown };
        self.end += len;
        Ok(len)
    }
}
