//! Carries pieces through our memory: read, summed, handed on, several at a time.
//!
//! Contracts:
//! - each worker, a task on the thread, owns one buffer, so the number of workers limits memory and operations
//!   under way;
//! - pieces of a file may go in any order if their offsets go with them (more than one stream, or a file to
//!   a file), otherwise in the order of their offsets;
//! - the first failure ends all workers.

use std::cell::{Cell, RefCell};

use futures_util::FutureExt as _;
use futures_util::stream::{FuturesUnordered, StreamExt};
use handoff::tls::TlsSession;
use handoff::{Buffer, Payload, Socket, Tally};
use handoff_command::Failure;
use handoff_command::failure::Failed;
use indicatif::ProgressBar;

use crate::checksum::{PieceSum, zeros};
use crate::coverage::Coverage;
use crate::inlet::Inlet;
use crate::job::Job;
use crate::lending::Lending;
use crate::outlet::{Outlet, Stream};
use crate::ranged::Ranged;
use crate::report::Hop;
use crate::stream;
use crate::turn::Turnstile;
use crate::wire::Frame;

/// The beginning of the message when a send fails.
pub(crate) const SENDING: &str = "sending to the peer";

/// Said of sends behind one that failed.
const FOLLOWS: &str = "the stream is broken";

/// A copy from an inlet to an outlet.
pub(crate) struct Copier<'a> {
    inlet: Inlet,
    outlet: Outlet,
    piece: usize,
    ordered: bool,
    turns: Turnstile,
    /// The offset of the next piece.
    next: Cell<u64>,
    coverage: RefCell<Coverage>,
    sums: bool,
    /// Bytes of streams, which are always copied.
    streamed_in: Cell<u64>,
    streamed_out: Cell<u64>,
    /// Bytes of holes.
    holes: Cell<u64>,
    /// Bytes of the longest piece that was sent.
    longest: Cell<usize>,
    progress: &'a ProgressBar,
}

/// The one of two failures that says more.
fn because(one: Failure, other: Failure) -> Failure {
    let tells = |failure: &Failure| failure.line().is_some_and(|line| !line.contains(FOLLOWS));
    if tells(&one) || !tells(&other) { one } else { other }
}

/// A piece that was read.
struct Piece {
    buffer: Buffer,
    offset: u64,
}

/// A piece of a file that only this worker has.
struct Drawn {
    offset: u64,
    len: u64,
    /// It has no bytes.
    hole: bool,
    /// Its turn, if there is an order.
    turn: u64,
}

impl<'a> Copier<'a> {
    /// Pieces have at most `piece` bytes; `sums` says whether to sum them.
    pub(crate) fn new(
        inlet: Inlet,
        outlet: Outlet,
        piece: usize,
        sums: bool,
        progress: &'a ProgressBar,
    ) -> Self {
        let ordered = match (&inlet, &outlet) {
            (Inlet::Stream { .. }, _) | (_, Outlet::Stream { .. }) => true,
            (_, Outlet::Sockets { streams, raw }) => *raw || streams.len() == 1,
            (_, Outlet::File(_)) => false,
        };
        let length = if let Inlet::File { len, .. } = &inlet { Some(*len) } else { None };
        Self {
            inlet,
            outlet,
            piece,
            ordered,
            turns: Turnstile::default(),
            next: Cell::new(0),
            coverage: RefCell::new(Coverage::new(length, sums)),
            sums,
            streamed_in: Cell::new(0),
            streamed_out: Cell::new(0),
            holes: Cell::new(0),
            longest: Cell::new(0),
            progress,
        }
    }

    /// Copies everything, with one worker for each buffer. Returns bytes and checksum.
    ///
    /// # Errors
    ///
    /// The first failure of any worker.
    pub(crate) async fn run(&self, buffers: Vec<Buffer>) -> Result<(u64, Option<u64>), Failure> {
        let mut workers: FuturesUnordered<_> =
            buffers.into_iter().map(|buffer| self.worker(buffer)).collect();
        while let Some(ended) = workers.next().await {
            if let Err(failure) = ended {
                // All that is on a stream ends in one turn, and one of it knows the cause.
                let others = std::iter::from_fn(|| workers.next().now_or_never().flatten());
                return Err(others.filter_map(Result::err).fold(failure, because));
            }
        }
        let coverage = self.coverage.borrow();
        let bytes = coverage.bytes();
        let sum = coverage
            .complete(bytes)
            .ok_or_else(|| Failure::failed("pieces of the source are missing"))?;
        Ok((bytes, sum))
    }

    async fn worker(&self, mut buffer: Buffer) -> Result<(), Failure> {
        if let Inlet::File { file, lending, .. } = &self.inlet {
            while let Some(drawn) = self.draw() {
                if drawn.hole {
                    self.leave_out(drawn).await?;
                } else if let Some(lending) = lending {
                    buffer = self.lend(lending, drawn, buffer).await?;
                } else {
                    let Drawn { offset, len, turn, .. } = drawn;
                    let filled = self.fill(file, buffer, offset, len as usize).await?;
                    if self.ordered {
                        self.turns.turn(turn).await;
                    }
                    buffer = self.hand_on(Piece { buffer: filled, offset }).await?;
                }
            }
            return Ok(());
        }
        while let Some(piece) = self.read(buffer).await? {
            buffer = self.hand_on(piece).await?;
        }
        Ok(())
    }

    /// Announces a hole instead of handing its bytes on.
    async fn leave_out(&self, drawn: Drawn) -> Result<(), Failure> {
        let Drawn { offset, len, turn, .. } = drawn;
        let sum = if self.sums { zeros(len) } else { 0 };
        self.cover(offset, len, sum)?;
        if self.ordered {
            self.turns.turn(turn).await;
        }
        if let Outlet::Sockets { .. } = &self.outlet {
            let frame = Buffer::from(Frame::Hole { offset, len }.encode());
            let sending = self.least_loaded()?.socket.send(frame).failed(SENDING)?;
            self.pass();
            sending.await.failed(SENDING)?.sent.failed(SENDING)?;
        } else {
            self.pass();
        }
        self.holes.set(self.holes.get() + len);
        self.progress.inc(len);
        Ok(())
    }

    /// The connection with the least under way.
    fn least_loaded(&self) -> Result<&Stream, Failure> {
        self.streams()
            .iter()
            .min_by_key(|stream| stream.on_loan.get())
            .ok_or_else(|| Failure::failed("no connection to send on"))
    }

    /// Bytes of holes that were left out.
    pub(crate) fn holes(&self) -> u64 {
        self.holes.get()
    }

    /// Hands on a piece that was read; returns its buffer, once it is back.
    async fn hand_on(&self, piece: Piece) -> Result<Buffer, Failure> {
        let Piece { buffer, offset } = piece;
        let len = buffer.len();
        let mut sum = PieceSum::new(self.sums);
        sum.update(&buffer);
        self.cover(offset, len as u64, sum.finish())?;
        let buffer = self.deliver(buffer, len, offset, true).await?;
        self.progress.inc(len as u64);
        Ok(buffer)
    }

    fn cover(&self, offset: u64, len: u64, sum: u64) -> Result<(), Failure> {
        self.coverage.borrow_mut().add(offset, len, sum).map_err(Failure::failed)
    }

    /// Hands on a piece that the kernel lends, in as many parts as it lends it. Parts that it does not lend
    /// are read into `spare`, which is returned.
    async fn lend(
        &self,
        lending: &Lending,
        drawn: Drawn,
        spare: Buffer,
    ) -> Result<Buffer, Failure> {
        let Inlet::File { file, .. } = &self.inlet else { return Ok(spare) };
        let (mut offset, mut len, turn) = (drawn.offset, drawn.len as usize, drawn.turn);
        let begin = offset;
        while len > 0 {
            let lease = lending.get(offset, len, file.name()).await?;
            if self.ordered && offset == begin {
                self.turns.turn(turn).await;
            }
            let Some(lease) = lease else {
                let buffer = self.fill(file, spare, offset, len).await?;
                return self.hand_on(Piece { buffer, offset }).await;
            };
            let part = lease.len();
            len -= part;
            self.cover(offset, part as u64, PieceSum::new(false).finish())?;
            self.deliver(lease, part, offset, len == 0).await?;
            self.progress.inc(part as u64);
            offset += part as u64;
        }
        Ok(spare)
    }

    /// The next piece of a file, for this caller only; `None` at the end.
    fn draw(&self) -> Option<Drawn> {
        let Inlet::File { file, .. } = &self.inlet else { return None };
        let offset = self.next.get();
        let hole = self.inlet.hole_at(offset);
        let len = hole
            .unwrap_or_else(|| file.piece(self.piece, self.inlet.data_end(offset) - offset) as u64);
        self.next.set(offset + len);
        (len > 0).then(|| Drawn { offset, len, hole: hole.is_some(), turn: self.turns.draw() })
    }

    async fn fill(
        &self,
        file: &Ranged,
        mut buffer: Buffer,
        offset: u64,
        len: usize,
    ) -> Result<Buffer, Failure> {
        buffer.set_len(len);
        file.read(buffer, len, offset).await
    }

    /// Reads the next piece of a stream; `None` at the end. The turn stays open.
    async fn read(&self, buffer: Buffer) -> Result<Option<Piece>, Failure> {
        let Inlet::Stream { ended, .. } = &self.inlet else { return Ok(None) };
        self.turns.turn(self.turns.draw()).await;
        if ended.get() {
            self.turns.pass();
            return Ok(None);
        }
        let Some(buffer) = self.inlet.read_at(buffer, self.piece, 0).await? else {
            ended.set(true);
            self.turns.pass();
            return Ok(None);
        };
        let got = buffer.len();
        let offset = self.next.replace(self.next.get() + got as u64);
        self.streamed_in.set(self.streamed_in.get() + got as u64);
        Ok(Some(Piece { buffer, offset }))
    }

    /// Hands bytes on, and ends their turn as soon as the last has its place; returns their buffer, once it
    /// is back.
    async fn deliver<B: Payload>(
        &self,
        bytes: B,
        len: usize,
        offset: u64,
        last: bool,
    ) -> Result<B, Failure> {
        let pass = || {
            if last {
                self.pass();
            }
        };
        match &self.outlet {
            Outlet::Sockets { raw, .. } => {
                let stream = self.least_loaded()?;
                let header = Frame::data(offset, len as u32);
                // As records of its own, so that the payload begins with one, and is deciphered in its place.
                let heading = match !raw && stream.ciphered {
                    true => {
                        Some(stream.socket.send(Buffer::from(header.to_vec())).failed(SENDING)?)
                    }
                    false => None,
                };
                let mut message = stream.socket.message(bytes);
                if !raw && !stream.ciphered {
                    message = message.header(&header);
                }
                let sending = message.send().failed(SENDING)?;
                self.longest.set(self.longest.get().max(len));
                pass();
                stream.on_loan.set(stream.on_loan.get() + len);
                if let Some(heading) = heading {
                    heading.await.failed(SENDING)?.sent.failed(SENDING)?;
                }
                let over = sending.await;
                stream.on_loan.set(stream.on_loan.get() - len);
                let finished = over.failed(SENDING)?;
                finished.sent.failed(SENDING)?;
                Ok(finished.buffer)
            }
            Outlet::File(file) => {
                let writing = file.write(bytes, len, offset)?;
                pass();
                file.written(writing.await)
            }
            Outlet::Stream { file, name } => {
                let written = file.write(bytes).failed("writing")?.await;
                let bytes = stream::written(written, name)?;
                pass();
                self.streamed_out.set(self.streamed_out.get() + len as u64);
                Ok(bytes)
            }
        }
    }

    fn pass(&self) {
        if self.ordered {
            self.turns.pass();
        }
    }

    /// What happened to the bytes on their way in.
    pub(crate) fn hop_in(&self, job: &Job<'_>, registered: bool) -> Hop {
        self.inlet.hop(job, registered, self.streamed_in.get())
    }

    /// What happened to the bytes on their way out.
    pub(crate) fn hop_out(
        &self,
        job: &Job<'_>,
        session: Option<&TlsSession>,
        registered: bool,
    ) -> Hop {
        let from = match &self.inlet {
            Inlet::File { lending: Some(_), .. } => "ring",
            _ => "memory",
        };
        let to_file = |tally, reason| Hop {
            from,
            to: job.order.destination_kind(),
            engine: job.file_engine("write", registered),
            reason,
            tally,
        };
        match &self.outlet {
            Outlet::File(file) => to_file(file.tally(), file.reason(file.tally())),
            Outlet::Stream { .. } => to_file(
                Tally { copied: self.streamed_out.get(), ..Tally::default() },
                "a pipe or stream is written by copying".to_owned(),
            ),
            Outlet::Sockets { streams, .. } => {
                let mut tally = Tally::default();
                for stream in streams {
                    tally += stream.sent();
                }
                let choice = streams[0].socket.choice(self.longest.get());
                let engine = choice.engine.name().to_owned();
                let reason = session.map_or(choice.reason, |session| session.reason.clone());
                Hop { from, to: "socket", engine, reason, tally }
            }
        }
    }

    /// The connections, if it has some.
    pub(crate) fn streams(&self) -> &[Stream] {
        if let Outlet::Sockets { streams, .. } = &self.outlet { streams } else { &[] }
    }

    pub(crate) fn sockets(&self) -> impl Iterator<Item = &Socket> {
        self.streams().iter().map(|stream| &stream.socket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_a_failure_does_not_hide_it() {
        let follows = Failure::failed(handoff::Error::StreamBroken { sent: 1, total: 2 });
        let cause = Failure::failed("sending to the peer: Connection reset by peer");
        assert_eq!(because(follows.clone(), cause.clone()), cause);
        assert_eq!(because(cause.clone(), follows.clone()), cause);
        assert_eq!(because(follows.clone(), follows.clone()), follows);
    }
}
