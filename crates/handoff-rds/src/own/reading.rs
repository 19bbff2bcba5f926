//! Reads a connection as the host asks.
//!
//! Headers, short payloads and the beginning of long ones come by calls, many at a time, into one buffer. The library
//! receives the rest of a long payload into its final place, once something is there. A receive that waits would
//! count as an operation of the driver for as long as the peer likes, and where the error queue reports
//! acknowledgements, a kernel thread would wait for it.

use std::io;
use std::mem;
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

/// Bytes read at a time if their destination is not known.
const BUFFER: usize = 64 << 10;
/// From this size on, the rest of a payload is received into its final place.
const DIRECT: usize = 16 << 10;
/// A payload has room for so many times what has arrived of it, or of the longest before it, and for no more than was
/// announced. Memory that was only set aside counts too: the allocator may hand out pages that were used before, and
/// the kernel may fill the gaps with huge pages.
const GROWTH: usize = 4;
/// Bytes of the rest of a payload to wait for.
const AT_ONCE: usize = 256 << 10;
/// Bytes read in a row before others have their turn, such as the driver and the takers of messages.
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
    /// The kernel has reported it.
    Something,
    /// The last read filled its room.
    Unknown,
    /// The last read took everything.
    Nothing,
}

struct Reader {
    link: Rc<Link>,
    /// [`BUFFER`] bytes while it reads, and otherwise what is there: there may be very many connections that say nothing,
    /// or that announce more than the host has room for.
    buffer: Box<[u8]>,
    begin: usize,
    end: usize,
    /// A payload whose beginning has arrived.
    payload: Option<Vec<u8>>,
    /// Bytes of the longest payload that has arrived whole.
    longest: usize,
    skipped: usize,
    /// Bytes of the payload that have not arrived.
    missing: usize,
    /// From this many bytes on the connection counts as readable.
    readable_from: usize,
    there: There,
    /// Bytes taken in a row.
    taken: usize,
    /// Bytes that another connection waits for, until they are read.
    behind: Option<usize>,
}

/// Reads until the connection ends.
pub(super) async fn run(shared: Rc<Shared>, link: Rc<Link>) {
    let mut reader = Reader {
        link: link.clone(),
        buffer: Box::default(),
        begin: 0,
        end: 0,
        payload: None,
        longest: 0,
        skipped: 0,
        missing: 0,
        readable_from: 1,
        there: There::Unknown,
        taken: 0,
        behind: None,
    };
    // Nothing was there, and now TCP has something to report.
    let mut woken_by_tcp = false;
    while !link.over.get() {
        let stirred = link.stirred.seen();
        if link.awaited.take() {
            reader.behind = Some(link.unread());
        }
        // Usually an acknowledgement is all there is; if not, the socket wakes us again at once. A connection that
        // must end is not waited for again: its peer does not resend what TCP has acknowledged on it.
        let told_only = link.hear() && woken_by_tcp && !reader.is_pressed();
        let pause = match told_only {
            true => {
                // It was not woken by bytes to read.
                reader.there = There::Unknown;
                Pause::Empty
            }
            false => reader.take_in(&shared).await,
        };
        woken_by_tcp = false;
        if reader.take_caught_up(&pause) {
            shared.host().caught_up(link.id);
        }
        shared.look(&link);
        shared.tell();
        match pause {
            Pause::End => break,
            // It ends since that look: what came until then is read before the end.
            Pause::Empty if link.ending.get() => {}
            Pause::Full => {
                reader.put_down(&shared);
                link.stirred.after(stirred).await;
            }
            // Nothing more need be there, and then nobody would report it.
            Pause::Turn if reader.is_pressed() => yield_now().await,
            // The kernel reports bytes through the driver, and so after the others' turn.
            Pause::Empty | Pause::Turn => {
                if matches!(pause, Pause::Empty) {
                    link.acknowledge();
                }
                reader.put_down(&shared);
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
    /// Reads what is there.
    async fn take_in(&mut self, shared: &Shared) -> Pause {
        if self.is_pressed() {
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

    /// Reads what is there, up to the rest of a payload that the library will receive.
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
                    let begin = || Vec::with_capacity(len.min(GROWTH * self.longest));
                    let mut payload = self.payload.take().unwrap_or_else(begin);
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
                // From now on, counts the bytes that another connection waits for.
                if self.taken >= TURN || self.link.awaited.get() {
                    return Some(Pause::Turn);
                }
                match self.there {
                    There::Nothing => return Some(Pause::Empty),
                    _ if !is_payload || missing < DIRECT || !self.may_receive(shared) => {}
                    There::Unknown => return Some(Pause::Turn),
                    There::Something if self.link.may_wake_for_nothing() => {}
                    There::Something => return None,
                }
                match self.read(shared) {
                    Ok(0) => return Some(Pause::End),
                    Ok(len) => self.count_taken(len),
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
                    self.longest = self.longest.max(payload.len());
                    shared.host().payload_received(id, payload);
                }
                Expect::Nothing => unreachable!("returned above"),
            }
        }
    }

    /// Whether to read without a report that there is something, and to wait for nothing.
    fn is_pressed(&self) -> bool {
        self.link.ending.get() || self.link.awaited.get() || self.behind.is_some()
    }

    /// Whether the library may have the rest of a payload: not if it takes no more operations.
    fn may_receive(&self, shared: &Shared) -> bool {
        let under_way = shared.driver.in_flight() - shared.driver.loan_stats().unclaimed;
        !self.is_pressed() && under_way < shared.driver.in_flight_limit()
    }

    /// Counts bytes that were read.
    fn count_taken(&mut self, len: usize) {
        self.taken += len;
        self.behind = self.behind.map(|bytes| bytes.saturating_sub(len));
    }

    /// Receives what is there of the rest of a payload, as far as it has room; returns whether the connection goes
    /// on.
    async fn receive_rest(&mut self) -> bool {
        let payload = self.payload.take().expect("has begun");
        let arrived = payload.len();
        let most = (GROWTH * self.longest.max(arrived)).max(arrived + DIRECT);
        let room = self.missing.min(most - arrived);
        if self.readable_from > self.missing {
            self.await_much();
        }
        let stirred = &self.link.stirred;
        let mut seen = stirred.seen();
        let begun = self.link.socket.receive_into(Append::to(payload, room));
        let Ok(mut receive) = begun else { return false };
        let received = loop {
            match select(&mut receive, pin!(stirred.after(seen))).await {
                Either::Left((received, _)) => break received,
                Either::Right(_) => seen = stirred.seen(),
            }
            // Nothing was there after all.
            if self.is_pressed() || self.link.over.get() {
                receive.cancel();
            }
        };
        let Ok(received) = received else { return false };
        // More may have come before the urgent part.
        self.there = match received.result {
            Ok(_) if received.buffer.room() > 0 && !self.is_pressed() => There::Nothing,
            _ => There::Unknown,
        };
        self.payload = Some(received.buffer.into_vec());
        match received.result {
            Ok(len @ 1..) | Err(Error::Canceled { done: len }) => self.count_taken(len),
            _ => return false,
        }
        true
    }

    /// Ends the wait for what was read once all of it is; returns whether it did.
    fn take_caught_up(&mut self, pause: &Pause) -> bool {
        let taken_in = match pause {
            Pause::Empty => self.behind.is_some(),
            Pause::Turn => self.behind == Some(0),
            Pause::Full | Pause::End => false,
        };
        if taken_in {
            self.behind = None;
        }
        taken_in
    }

    /// Makes the kernel wake us less often while the rest of a long payload is on its way.
    fn await_much(&mut self) {
        let from = self.missing.clamp(1, AT_ONCE);
        if from != self.readable_from
            && handoff_sys::tcp::set_readable_from(self.link.file.as_fd(), from).is_ok()
        {
            self.readable_from = from;
        }
    }

    /// At most `most` of the bytes already read.
    fn take(&mut self, most: usize) -> &[u8] {
        let begin = self.begin;
        self.begin += most.min(self.end - begin);
        &self.buffer[begin..self.begin]
    }

    /// Has the next reader have the buffer.
    fn put_down(&mut self, shared: &Shared) {
        if self.buffer.len() == BUFFER {
            let rest = self.buffer[self.begin..self.end].into();
            (self.begin, self.end) = (0, self.end - self.begin);
            shared.buffer.replace(Some(mem::replace(&mut self.buffer, rest)));
        }
    }

    /// Reads into the buffer.
    fn read(&mut self, shared: &Shared) -> io::Result<usize> {
        if self.buffer.len() < BUFFER {
            let buffer = shared.buffer.take().unwrap_or_else(|| vec![0; BUFFER].into());
            let rest = mem::replace(&mut self.buffer, buffer);
            self.buffer[..rest.len()].copy_from_slice(&rest);
        }
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
