//! Reads: pages that are lent, or memory that the device fills; holes are told as such where the client takes that.
//!
//! Contracts:
//! - what fails is answered by an error where the client can still get one, and else ends the connection;
//! - without shared memory a read goes on in small pieces of the connection's own.

use std::ops::Range;
use std::rc::Rc;

use futures_util::future::try_join_all;
use handoff::{BufferPool, Error, Lease, Region, Result};
use handoff_nbd::request::Request;
use handoff_nbd::server::Answer;
use handoff_nbd::wire::Head;

use crate::connection::{Connection, Held};
use crate::disk::{Disk, Place};
use crate::memory::LARGE;
use crate::other;
use crate::replies::Body;

/// The most bytes of a chunk.
const CHUNK: u64 = 1 << 20;
/// Reads of this size or more have their pages lent; smaller ones are copied, which takes less.
const LENT_FROM: u64 = 64 << 10;
/// Reads of this size or more are searched for holes.
const HOLES_FROM: u64 = 32 << 10;
/// Bytes of a piece where shared memory is in use.
const SCARCE: usize = 64 << 10;

pub(crate) struct Read {
    pub(crate) request: Request,
    pub(crate) answer: Answer,
    pub(crate) _held: [Held; 2],
}

/// Bytes of memory that a read takes at once.
pub(crate) fn memory_of(request: &Request, answer: &Answer) -> usize {
    let most = if answer.takes_parts() { CHUNK } else { u64::MAX };
    usize::try_from(request.length.min(most)).unwrap_or(usize::MAX)
}

/// Answers a read.
pub(crate) async fn answer(connection: Rc<Connection>, disk: Rc<Disk>, read: Read) {
    let Read { request, answer, _held } = read;
    let range = request.offset..request.offset + request.length;
    let reading = Reading { connection: &connection, disk: &disk };
    match answer.takes_parts() {
        true => reading.in_parts(range, answer).await,
        false => reading.in_one(range, answer).await,
    }
}

struct Reading<'a> {
    connection: &'a Connection,
    disk: &'a Disk,
}

impl Reading<'_> {
    /// Chunk by chunk.
    async fn in_parts(&self, range: Range<u64>, mut answer: Answer) {
        let finds_holes = range.end - range.start >= HOLES_FROM;
        let mut rest = range;
        while rest.start < rest.end && !self.connection.is_cut() {
            let (mut part, place) = self.disk.first(rest.clone(), finds_holes);
            if place == Place::Hole {
                let len = part.end - part.start;
                self.got(len);
                self.connection.thread.counters.write(|served| served.bytes_of_holes += len);
                if let Some(head) = self.head(answer.hole(len)) {
                    self.connection.reply(&head).await;
                }
                rest.start = part.end;
                continue;
            }
            part.end = part.end.min(part.start + CHUNK);
            let bodies = match self.bodies(part.clone(), place).await {
                Ok(Some(bodies)) => Ok(bodies),
                Ok(None) => {
                    part.end = part.end.min(part.start + SCARCE as u64);
                    self.scarce(&mut part, place).await
                }
                Err(error) => Err(error),
            };
            let bodies = match bodies {
                Ok(bodies) => bodies,
                Err(error) => return self.fail(answer, &error).await,
            };
            let len = part.end - part.start;
            self.got(len);
            rest.start = part.end;
            if rest.start == rest.end {
                if let Some(head) = self.head(answer.last_data()) {
                    self.connection.send(&head, bodies).await;
                }
                return;
            }
            if let Some(head) = self.head(answer.data(len)) {
                self.connection.send(&head, bodies).await;
            }
        }
        if let Some(head) = self.head(answer.done()).filter(|_| !self.connection.is_cut()) {
            self.connection.reply(&head).await;
        }
    }

    /// Whole, behind one header.
    async fn in_one(&self, range: Range<u64>, answer: Answer) {
        let mut all = Vec::new();
        let mut rest = range.clone();
        while rest.start < rest.end {
            let (mut part, place) = self.disk.first(rest.clone(), false);
            part.end = part.end.min(part.start + CHUNK);
            rest.start = part.end;
            match self.bodies(part, place).await {
                Ok(Some(bodies)) => all.extend(bodies),
                Ok(None) => {
                    drop(all);
                    return self.piece_by_piece(range, answer).await;
                }
                Err(error) => return self.fail(answer, &error).await,
            }
        }
        self.got(range.end - range.start);
        if let Some(head) = self.head(answer.last_data()) {
            self.connection.send(&head, all).await;
        }
    }

    /// Whole, with little memory: behind the header an error can only end the connection.
    async fn piece_by_piece(&self, range: Range<u64>, answer: Answer) {
        // One of the connection's reads at a time has memory of its own. It is not shared with what waits for the turn to
        // send, which this has: so neither waits for the other.
        let turn = self.connection.sends.lock().await;
        let pool = Region::anonymous(SCARCE).and_then(|region| BufferPool::new(region, SCARCE));
        let pool = match pool {
            Ok(pool) => pool,
            Err(error) => {
                drop(turn);
                return self.fail(answer, &error).await;
            }
        };
        let next = async |rest: &mut Range<u64>| {
            let (part, place) = self.disk.first(rest.clone(), false);
            let piece = self.disk.export.read_layout().piece(&part, SCARCE);
            let mut buffer = pool.get().await;
            buffer.set_len(buffer.capacity());
            rest.start = piece.wanted.end;
            self.disk.read(place, &piece, buffer).await
        };
        let mut rest = range;
        let first = match next(&mut rest).await {
            Ok(buffer) => buffer,
            Err(error) => {
                drop(turn);
                return self.fail(answer, &error).await;
            }
        };
        self.got(answer.remaining());
        let Some(head) = self.head(answer.last_data()) else { return };
        let going = self.connection.give(&head, vec![Body::Memory(first)]).await;
        self.connection.settle(going).await;
        while rest.start < rest.end && !self.connection.is_cut() {
            match next(&mut rest).await {
                Ok(buffer) => {
                    let going = self.connection.give(&[], vec![Body::Memory(buffer)]).await;
                    self.connection.settle(going).await;
                }
                Err(error) => self.connection.cut(format!("reading: {error}")),
            }
        }
    }

    /// The bytes of a range that lies in one place; `None` without memory for all of it.
    async fn bodies(&self, range: Range<u64>, place: Place) -> Result<Option<Vec<Body>>> {
        if place == Place::File
            && range.end - range.start >= LENT_FROM
            && let Some(pages) = self.lent(&range).await?
        {
            return Ok(Some(pages));
        }
        let layout = self.disk.export.read_layout();
        let mut pieces = Vec::new();
        let mut rest = range;
        while rest.start < rest.end {
            let piece = layout.piece(&rest, LARGE);
            let Some(buffer) = self.connection.thread.memory.try_take(piece.whole_len()) else {
                return Ok(None);
            };
            rest.start = piece.wanted.end;
            pieces.push((piece, buffer));
        }
        let read = async |(piece, buffer)| self.disk.read(place, &piece, buffer).await;
        let read = try_join_all(pieces.into_iter().map(read)).await?;
        Ok(Some(read.into_iter().map(Body::Memory).collect()))
    }

    /// A part of a range, with what memory there is; cuts the range to it.
    async fn scarce(&self, range: &mut Range<u64>, place: Place) -> Result<Vec<Body>> {
        let layout = self.disk.export.read_layout();
        let memory = &self.connection.thread.memory;
        let wish = layout.piece(range, SCARCE).whole_len();
        let buffer = memory.take(wish, &self.connection.own).await?;
        let piece = layout.piece(range, buffer.capacity().min(SCARCE));
        range.end = piece.wanted.end;
        let buffer = self.disk.read(place, &piece, buffer).await?;
        Ok(vec![Body::Memory(buffer)])
    }

    /// The page cache's pages; `None` where they are not lent, or not now.
    async fn lent(&self, range: &Range<u64>) -> Result<Option<Vec<Body>>> {
        let source = self.disk.source().filter(|_| self.connection.takes_leases);
        let Some(source) = source else { return Ok(None) };
        let get = async |part: Range<u64>| {
            let mut leases = Vec::<Lease>::new();
            let mut at = part.start;
            while at < part.end {
                let lease = source.get_at(at, (part.end - at) as u32)?.await?;
                let lease = lease.ok_or(Error::StreamEnded { received: 0, wanted: 1 })?;
                at += lease.len() as u64;
                leases.push(lease);
            }
            Ok::<_, Error>(leases)
        };
        let starts = (range.start..range.end).step_by(LARGE);
        let parts = starts.map(|start| start..range.end.min(start + LARGE as u64));
        match try_join_all(parts.map(get)).await {
            Ok(all) => {
                let len = range.end - range.start;
                self.connection.thread.counters.write(|served| served.read.zero_copy += len);
                Ok(Some(all.into_iter().flatten().map(Body::Pages).collect()))
            }
            // A plain read tells what is wrong.
            Err(error) => {
                tracing::debug!(%error, "pages are not lent");
                Ok(None)
            }
        }
    }

    /// So many bytes are sent, or told as a hole.
    fn got(&self, bytes: u64) {
        self.connection.thread.counters.write(|served| served.bytes_read += bytes);
    }

    fn head(&self, made: std::result::Result<Head, handoff_nbd::server::Misuse>) -> Option<Head> {
        made.map_err(|misuse| self.connection.cut(misuse.to_string())).ok()
    }

    async fn fail(&self, answer: Answer, error: &Error) {
        other::fail(self.connection, self.disk, answer, "reading", error).await;
    }
}
