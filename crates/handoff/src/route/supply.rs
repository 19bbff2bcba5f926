//! Pieces of a route that go through memory: a file read into it, or received spans.

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::{PIECE, PIECES};
use crate::error::{Error, Result};
use crate::file::File;
use crate::lease::{self, Intake, Pool};
use crate::memory::{Backed as _, Buffer, Region};
use crate::op::loan::Payload;
use crate::outcome::Tally;
use crate::reactor::Reactor;
use crate::socket::Socket;
use crate::socket::receive::Receiver;
use crate::transfer::{Transfer, Transferred};

/// Bytes of a chunk to receive a stream into.
pub(super) const CHUNK: usize = 64 << 10;

/// Pieces of a file for a cipher, and the bytes of each. It takes one after the other, so a few small ones keep it busy, and
/// a peer that reads nothing holds little.
const FOR_A_CIPHER: (usize, usize) = (4, CHUNK);

pub(super) trait Supply {
    type Piece: Payload;

    /// Whether it has an operation under way all the time: then it must not wait for the room of others, who may wait
    /// for its room.
    const KEEPS_ROOM: bool = false;

    /// The next piece; `None` at the end. If all memory is in use, it is pending until a piece is put back,
    /// and is then asked again.
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Self::Piece>>>;

    /// Takes a piece back.
    fn put_back(&mut self, piece: Self::Piece);

    /// Bytes by whether they were copied on their way here.
    fn taken(&self) -> Tally;
}

/// A file or pipe, read into memory piece by piece.
pub(super) struct FromFile {
    file: File,
    /// The rest of a file; a pipe goes on to its end.
    range: Option<Range<u64>>,
    /// Empty buffers, and the bytes of each.
    free: Vec<Buffer>,
    piece: usize,
    reading: Option<Transfer<Buffer>>,
    taken: u64,
}

impl FromFile {
    pub(super) fn new(
        driver: &Rc<Reactor>,
        file: &File,
        range: Option<Range<u64>>,
        registered: bool,
        for_a_cipher: bool,
    ) -> Result<Self> {
        let (most, piece) = if for_a_cipher { FOR_A_CIPHER } else { (PIECES, PIECE) };
        let pieces = pieces_for(range.as_ref(), most, piece);
        let mut region = memory(driver, pieces * piece, registered)?;
        let free = region.chunks(piece);
        Ok(Self { file: file.clone(), range, free, piece, reading: None, taken: 0 })
    }

    /// The most bytes of the next piece.
    fn left(&self) -> usize {
        let left = self.range.as_ref().map(|range| range.end.saturating_sub(range.start));
        left.map_or(self.piece, |left| left.min(self.piece as u64) as usize)
    }
}

impl Supply for FromFile {
    type Piece = Buffer;

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Buffer>>> {
        if self.reading.is_none() {
            if self.left() == 0 {
                return Poll::Ready(None);
            }
            let Some(mut buffer) = self.free.pop() else { return Poll::Pending };
            // Past the page cache whole pages are read, even where the file ends before.
            buffer.set_len(if self.file.is_direct() { self.piece } else { self.left() });
            let started = match &self.range {
                Some(range) => self.file.read_at(buffer, range.start),
                None => self.file.read(buffer),
            };
            match started {
                Ok(reading) => self.reading = Some(reading),
                Err(refused) => {
                    self.free.push(refused.buffer);
                    return Poll::Ready(Some(Err(refused.error)));
                }
            }
        }
        let reading = self.reading.as_mut().expect("was just started");
        let Poll::Ready(read) = Pin::new(reading).poll(context) else { return Poll::Pending };
        self.reading = None;
        let Transferred { result, mut buffer } = read?;
        Poll::Ready(match result {
            Ok(0) => None,
            Ok(len) => {
                let len = len.min(self.left());
                buffer.set_len(len);
                if let Some(range) = &mut self.range {
                    range.start += len as u64;
                }
                self.taken += len as u64;
                Some(Ok(buffer))
            }
            Err(error) => Some(Err(error)),
        })
    }

    fn put_back(&mut self, buffer: Buffer) {
        self.free.push(buffer);
    }

    fn taken(&self) -> Tally {
        let mut tally = Tally::default();
        tally.count(self.taken, Some(!self.file.is_direct()));
        tally
    }
}

/// Spans that a socket receives: as many at a time as are there, up to a limit.
pub(super) struct FromStream {
    receiver: Receiver,
    /// A piece of this many bytes gets no further span.
    enough: usize,
    /// What came behind the last piece.
    failure: Option<Error>,
}

impl FromStream {
    pub(super) fn new(
        driver: &Rc<Reactor>,
        socket: &Socket,
        intake: Option<Intake>,
        registered: bool,
        enough: usize,
    ) -> Result<Self> {
        let intake = match intake {
            Some(intake) => intake,
            None => {
                let region = memory(driver, PIECES * CHUNK, registered)?;
                Intake::from(&Pool::new(&driver.core.io, &driver.core.pending, region, CHUNK)?)
            }
        };
        Ok(Self { receiver: socket.receive(intake)?, enough, failure: None })
    }
}

impl Supply for FromStream {
    type Piece = Vec<lease::Span>;

    const KEEPS_ROOM: bool = true;

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Self::Piece>>> {
        if let Some(error) = self.failure.take() {
            return Poll::Ready(Some(Err(error)));
        }
        let Poll::Ready(first) = Pin::new(&mut self.receiver.next_span()).poll(context) else {
            return Poll::Pending;
        };
        let first = match first {
            Some(Ok(span)) => span,
            Some(Err(error)) => return Poll::Ready(Some(Err(error))),
            None => return Poll::Ready(None),
        };
        let mut bytes = first.count();
        let mut spans = vec![first];
        while bytes < self.enough {
            match self.receiver.try_next_span() {
                Some(Some(Ok(span))) => {
                    bytes += span.count();
                    spans.push(span);
                }
                Some(Some(Err(error))) => {
                    self.failure = Some(error);
                    break;
                }
                // An end is told again.
                Some(None) | None => break,
            }
        }
        Poll::Ready(Some(Ok(spans)))
    }

    fn put_back(&mut self, spans: Self::Piece) {
        drop(spans);
    }

    fn taken(&self) -> Tally {
        self.receiver.tally()
    }
}

/// The pieces of a range that are on their way at once: to make and register memory costs more than to copy a short file.
fn pieces_for(range: Option<&Range<u64>>, most: usize, piece: usize) -> usize {
    let len = range.map_or(u64::MAX, |range| range.end.saturating_sub(range.start));
    len.div_ceil(piece as u64).clamp(1, most as u64) as usize
}

/// Memory for pieces, registered if wanted and possible; otherwise unregistered.
fn memory(driver: &Rc<Reactor>, len: usize, registered: bool) -> Result<Region> {
    let region = Region::anonymous(len)?;
    if registered && let Err(error) = driver.core.register(region.backing()) {
        tracing::info!(%error, "memory of a route is not registered");
    }
    Ok(region)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_range_gets_no_more_memory_than_it_needs() {
        let pieces = |range: Option<&Range<u64>>| pieces_for(range, PIECES, PIECE);
        let piece = PIECE as u64;
        assert_eq!([0, 1, piece].map(|len| pieces(Some(&(7..7 + len)))), [1; 3]);
        assert_eq!(pieces(Some(&(7..8 + piece))), 2);
        assert_eq!(pieces(Some(&(0..u64::MAX))), PIECES);
        assert_eq!(pieces(None), PIECES);
        assert_eq!(pieces_for(Some(&(0..piece)), 4, CHUNK), 4);
    }
}
