//! The way of pieces through our memory: read, summed, handed on, several at a time.
//!
//! Contracts:
//! - each lane owns one buffer, so that memory and what is under way are bounded by their number;
//! - pieces of a file may go in any order when their places go with them (more than one stream, or
//!   a file to a file), else in the order of their offsets;
//! - the first failure ends all lanes.

use std::cell::{Cell, RefCell};

use futures_util::stream::{FuturesUnordered, StreamExt};
use handoff::{Buffer, File, Socket, Tally};
use indicatif::ProgressBar;

use super::checksum::PieceSum;
use super::coverage::Coverage;
use super::job::streamed;
use super::ranged::Ranged;
use super::report::Hop;
use super::send::SENDING;
use super::turn::Turnstile;
use super::wire::Frame;
use super::{Failed, Job};
use crate::Failure;

/// Where pieces come from.
pub(super) enum Inlet {
    /// A file of known length.
    File { file: Ranged, len: u64 },
    /// What there is, in order, until it ends.
    Stream { file: File, ended: Cell<bool>, name: String },
}

/// Where pieces go.
pub(super) enum Outlet {
    /// Connections, with the place of each piece before it unless `raw`.
    Sockets { streams: Vec<Stream>, raw: bool },
    /// A file.
    File(Ranged),
    /// In order.
    Stream { file: File, name: String },
}

/// A connection, and the bytes that were accepted and are not back.
pub(super) struct Stream {
    pub(super) socket: Socket,
    on_loan: Cell<usize>,
}

impl Stream {
    pub(super) fn new(socket: Socket) -> Self {
        Self { socket, on_loan: Cell::new(0) }
    }
}

/// A copy from an inlet to an outlet.
pub(super) struct Carriage<'a> {
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
    progress: &'a ProgressBar,
}

/// A piece that was read.
struct Piece {
    buffer: Buffer,
    offset: u64,
}

impl<'a> Carriage<'a> {
    /// Pieces are of at most `piece` bytes; `sums` tells whether to sum them.
    pub(super) fn new(
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
            progress,
        }
    }

    /// Copies all, with one lane for each buffer. Bytes and checksum.
    ///
    /// # Errors
    ///
    /// The first failure of any lane.
    pub(super) async fn run(&self, buffers: Vec<Buffer>) -> Result<(u64, Option<u64>), Failure> {
        let mut lanes: FuturesUnordered<_> =
            buffers.into_iter().map(|buffer| self.lane(buffer)).collect();
        while let Some(ended) = lanes.next().await {
            ended?;
        }
        let coverage = self.coverage.borrow();
        let bytes = coverage.bytes();
        let sum = coverage
            .complete(bytes)
            .ok_or_else(|| Failure::failed("pieces of the source are missing"))?;
        Ok((bytes, sum))
    }

    async fn lane(&self, mut buffer: Buffer) -> Result<(), Failure> {
        while let Some(piece) = self.read(buffer).await? {
            let len = piece.buffer.len() as u64;
            let mut sum = PieceSum::new(self.sums);
            sum.update(&piece.buffer);
            self.coverage
                .borrow_mut()
                .add(piece.offset, len, sum.finish())
                .map_err(Failure::failed)?;
            buffer = self.deliver(piece).await?;
            self.progress.inc(len);
        }
        Ok(())
    }

    /// Reads the next piece; `None` at the end. Where there is an order, the turn is left on.
    async fn read(&self, mut buffer: Buffer) -> Result<Option<Piece>, Failure> {
        match &self.inlet {
            Inlet::File { file, len } => {
                let offset = self.next.get();
                if offset == *len {
                    return Ok(None);
                }
                let piece = file.piece(self.piece, len - offset);
                self.next.set(offset + piece as u64);
                let number = self.turns.draw();
                buffer.set_len(piece);
                let buffer = file.read(buffer, piece, offset).await?;
                if self.ordered {
                    self.turns.turn(number).await;
                }
                Ok(Some(Piece { buffer, offset }))
            }
            Inlet::Stream { file, ended, name } => {
                self.turns.turn(self.turns.draw()).await;
                if ended.get() {
                    self.turns.pass();
                    return Ok(None);
                }
                buffer.set_len(self.piece);
                let read = file.read(buffer).failed("reading")?.await;
                let got = read.result.failed(&format!("reading {name}"))?;
                if got == 0 {
                    ended.set(true);
                    self.turns.pass();
                    return Ok(None);
                }
                let mut buffer = read.buffer;
                buffer.set_len(got);
                let offset = self.next.replace(self.next.get() + got as u64);
                self.streamed_in.set(self.streamed_in.get() + got as u64);
                Ok(Some(Piece { buffer, offset }))
            }
        }
    }

    /// Hands a piece on, ending its turn as soon as its place is taken; its buffer, once it is back.
    async fn deliver(&self, piece: Piece) -> Result<Buffer, Failure> {
        let Piece { buffer, offset } = piece;
        let len = buffer.len();
        match &self.outlet {
            Outlet::Sockets { streams, raw } => {
                let stream = streams
                    .iter()
                    .min_by_key(|stream| stream.on_loan.get())
                    .ok_or_else(|| Failure::failed("no connection to send on"))?;
                let header = Frame::data(offset, len as u32);
                let mut message = stream.socket.message(buffer);
                if !raw {
                    message = message.header(&header);
                }
                let sending = message.send().failed(SENDING)?;
                self.pass();
                stream.on_loan.set(stream.on_loan.get() + len);
                let finished = sending.await;
                stream.on_loan.set(stream.on_loan.get() - len);
                finished.sent.failed(SENDING)?;
                Ok(finished.buffer)
            }
            Outlet::File(file) => {
                let writing = file.write(buffer, len, offset)?;
                self.pass();
                file.written(writing.await)
            }
            Outlet::Stream { file, name } => {
                let written = file.write(buffer).failed("writing")?.await;
                let buffer = streamed(written, name)?;
                self.pass();
                self.streamed_out.set(self.streamed_out.get() + len as u64);
                Ok(buffer)
            }
        }
    }

    fn pass(&self) {
        if self.ordered {
            self.turns.pass();
        }
    }

    /// What became of the bytes on their way in.
    pub(super) fn hop_in(&self, job: &Job<'_>, registered: bool) -> Hop {
        let (tally, reason) = match &self.inlet {
            Inlet::File { file, .. } => (file.tally(), file.reason()),
            Inlet::Stream { .. } => (
                Tally { copied: self.streamed_in.get(), ..Tally::default() },
                "a pipe or stream is read by copying".to_owned(),
            ),
        };
        let engine = job.file_engine("read", registered);
        Hop { from: job.source_kind(), to: "memory", engine, reason, tally }
    }

    /// What became of the bytes on their way out.
    pub(super) fn hop_out(&self, job: &Job<'_>, registered: bool) -> Hop {
        let to_file = |tally, reason| Hop {
            from: "memory",
            to: job.destination_kind(),
            engine: job.file_engine("write", registered),
            reason,
            tally,
        };
        match &self.outlet {
            Outlet::File(file) => to_file(file.tally(), file.reason()),
            Outlet::Stream { .. } => to_file(
                Tally { copied: self.streamed_out.get(), ..Tally::default() },
                "a pipe or stream is written by copying".to_owned(),
            ),
            Outlet::Sockets { streams, .. } => {
                let mut tally = Tally::default();
                for stream in streams {
                    tally += stream.socket.send_stats().returned;
                }
                let choice = streams[0].socket.choice(self.piece);
                let (engine, reason) = (choice.engine.name().to_owned(), choice.reason);
                Hop { from: "memory", to: "socket", engine, reason, tally }
            }
        }
    }

    /// The connections, where it goes to some.
    pub(super) fn streams(&self) -> &[Stream] {
        if let Outlet::Sockets { streams, .. } = &self.outlet { streams } else { &[] }
    }

    pub(super) fn sockets(&self) -> impl Iterator<Item = &Socket> {
        self.streams().iter().map(|stream| &stream.socket)
    }
}
