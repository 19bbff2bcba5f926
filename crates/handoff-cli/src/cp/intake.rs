//! What a transfer's connections, or its messages, take in together, and where it goes.
//!
//! Contracts:
//! - every byte is covered once, and is where it belongs before the transfer is said to be whole;
//! - at most so many writes of a connection are under way.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use handoff::{Buffer, File, Payload, Tally, Transfer};

use super::Job;
use super::checksum::{PieceSum, zeros};
use super::coverage::Coverage;
use super::destination::Destination;
use super::job::streamed;
use super::ranged::Ranged;
use super::report::{Hop, hexadecimal};
use super::wire::{Attributes, Decoder, Event, Frame};
use crate::Failure;
use crate::failure::Failed;

/// The most writes of a connection under way: a NIC delivers by the packet.
const WRITES: usize = 64;

/// Bytes of a piece of a hole, for what takes all bytes.
const ZEROS: u64 = 64 << 10;

/// Where the bytes go.
pub(super) enum Outlet {
    /// Not under its name yet.
    File {
        /// To be written at offsets.
        file: Ranged,
        /// To be given its name.
        destination: Destination,
    },
    /// In order.
    Stream { file: File, name: String },
}

/// What all connections of a transfer share.
pub(super) struct Intake<'a> {
    pub(super) outlet: &'a Outlet,
    coverage: RefCell<Coverage>,
    pub(super) verify: bool,
    length: Option<u64>,
    /// What the sender said at the end: bytes, checksum.
    end: Cell<Option<(u64, Option<u64>)>>,
    /// Bytes written to a pipe.
    streamed: Cell<u64>,
    /// Bytes of holes.
    holes: Cell<u64>,
    /// What the source has beside its bytes, where it says so.
    attributes: Cell<Option<Attributes>>,
    /// Bytes copied once more to be aligned.
    pub(super) staged: Cell<u64>,
    pub(super) job: &'a Job<'a>,
}

/// Writes under way, oldest first.
pub(super) struct Writes<B: Payload>(pub(super) VecDeque<Transfer<B>>);

impl<B: Payload> Default for Writes<B> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

/// The sender's frames, in whatever portions their bytes come.
pub(super) struct Frames<'a> {
    intake: &'a Intake<'a>,
    decoder: Decoder,
    /// Offset, length and checksum of the piece that is coming.
    piece: (u64, u64, PieceSum),
}

/// What bytes of the sender are.
pub(super) enum Portion {
    /// Nothing to be kept.
    Head,
    /// Payload that belongs at `offset`; `last` of its piece.
    Payload { offset: u64, last: bool },
    /// Bytes from `offset` on that are 0 and did not come.
    Hole { offset: u64, len: u64 },
    /// The end of the transfer.
    End,
}

impl<'a> Frames<'a> {
    pub(super) fn new(intake: &'a Intake<'a>) -> Self {
        Self { intake, decoder: Decoder::new(), piece: (0, 0, PieceSum::new(false)) }
    }

    /// What the first of these bytes are, and how many.
    ///
    /// # Errors
    ///
    /// When the sender gives up, or breaks the protocol.
    pub(super) fn next(&mut self, bytes: &[u8]) -> Result<(usize, Portion), Failure> {
        let (taken, event) = self.decoder.next(bytes).map_err(Failure::failed)?;
        let portion = match event {
            None => Portion::Head,
            Some(Event::Frame(Frame::Data { offset, len })) => {
                self.piece = (offset, u64::from(len), PieceSum::new(self.intake.verify));
                Portion::Head
            }
            Some(Event::Payload { offset, last }) => {
                self.piece.2.update(&bytes[..taken]);
                if last {
                    let none = (0, 0, PieceSum::new(false));
                    let (offset, len, sum) = std::mem::replace(&mut self.piece, none);
                    self.intake.cover(offset, len, sum.finish())?;
                }
                Portion::Payload { offset, last }
            }
            Some(Event::Frame(Frame::Hole { offset, len })) => {
                let sum = if self.intake.verify { zeros(len) } else { 0 };
                self.intake.cover(offset, len, sum)?;
                Portion::Hole { offset, len }
            }
            Some(Event::Frame(Frame::Attributes(attributes))) => {
                self.intake.attributes.set(Some(attributes));
                Portion::Head
            }
            Some(Event::Frame(Frame::End { bytes, checksum })) => {
                self.intake.ended(bytes, checksum)?;
                Portion::End
            }
            Some(Event::Frame(Frame::Abort { reason })) => {
                return Err(Failure::failed(format!("the sender gave up: {reason}")));
            }
            Some(Event::Frame(Frame::Answer { .. })) => {
                return Err(Failure::failed("the sender breaks the protocol: it answers"));
            }
        };
        Ok((taken, portion))
    }
}

impl<'a> Intake<'a> {
    /// Of a transfer of this length, where that is known.
    pub(super) fn new(
        job: &'a Job<'a>,
        outlet: &'a Outlet,
        length: Option<u64>,
        verify: bool,
    ) -> Self {
        Self {
            outlet,
            coverage: RefCell::new(Coverage::new(length, verify)),
            verify,
            length,
            end: Cell::new(None),
            streamed: Cell::new(0),
            holes: Cell::new(0),
            attributes: Cell::new(None),
            staged: Cell::new(0),
            job,
        }
    }

    /// Finds out before anything is received whether the transfer can be taken.
    ///
    /// # Errors
    ///
    /// Several streams into what takes its bytes in order, and a disk without room.
    pub(super) fn prepare(&self, streams: usize, sparse: bool) -> Result<(), Failure> {
        match self.outlet {
            Outlet::Stream { name, .. } if streams > 1 => Err(Failure::failed(format!(
                "{name} takes its bytes in order, and so one stream, not {streams} (--streams 1)"
            ))),
            Outlet::File { destination, .. } if !sparse => {
                destination.check_room(self.length.unwrap_or(0))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn written<B>(&self, over: handoff::Transferred<B>) -> Result<(), Failure> {
        match self.outlet {
            Outlet::File { file, .. } => file.written(over).map(drop),
            Outlet::Stream { name, .. } => streamed(over, name).map(drop),
        }
    }

    /// Waits for writes.
    ///
    /// # Errors
    ///
    /// Theirs.
    pub(super) async fn finish<B: Payload>(&self, writes: Writes<B>) -> Result<(), Failure> {
        for write in writes.0 {
            self.written(write.await)?;
        }
        Ok(())
    }

    /// Puts a part of a piece where it belongs.
    pub(super) async fn put<B: Payload>(
        &self,
        part: B,
        len: usize,
        offset: u64,
        writes: &mut Writes<B>,
    ) -> Result<(), Failure> {
        self.check_size(offset, len as u64)?;
        match self.outlet {
            Outlet::File { file, .. } => {
                writes.0.push_back(file.write(part, len, offset)?);
                if writes.0.len() > WRITES
                    && let Some(oldest) = writes.0.pop_front()
                {
                    self.written(oldest.await)?;
                }
            }
            Outlet::Stream { file, .. } => {
                self.in_order(offset, len as u64)?;
                let write = file.write(part).failed("writing")?;
                self.written(write.await)?;
            }
        }
        self.job.progress.inc(len as u64);
        Ok(())
    }

    /// Leaves a hole out of a file; a stream has its bytes.
    pub(super) async fn leave_out(&self, offset: u64, len: u64) -> Result<(), Failure> {
        self.check_size(offset, len)?;
        self.holes.set(self.holes.get() + len);
        let Outlet::Stream { file, name } = self.outlet else {
            self.job.progress.inc(len);
            return Ok(());
        };
        self.in_order(offset, len)?;
        let mut left = len;
        while left > 0 {
            let part = left.min(ZEROS);
            let write = file.write(Buffer::from(vec![0; part as usize])).failed("writing")?;
            streamed(write.await, name)?;
            self.job.progress.inc(part);
            left -= part;
        }
        Ok(())
    }

    /// Takes note of bytes for what takes them in order.
    fn in_order(&self, offset: u64, len: u64) -> Result<(), Failure> {
        if offset != self.streamed.get() {
            return Err(Failure::failed("the sender left the order of the bytes"));
        }
        self.streamed.set(offset + len);
        Ok(())
    }

    /// # Errors
    ///
    /// More than was allowed (--max-size).
    pub(super) fn check_size(&self, offset: u64, len: u64) -> Result<(), Failure> {
        match self.job.args.max_size {
            Some(most) if offset.saturating_add(len) > most => {
                Err(Failure::failed(format!("the sender sent more than {most} bytes (--max-size)")))
            }
            _ => Ok(()),
        }
    }

    /// Bytes of holes.
    pub(super) fn holes(&self) -> u64 {
        self.holes.get()
    }

    /// What a copy is to keep beside the bytes.
    pub(super) fn attributes(&self) -> Option<Attributes> {
        self.attributes.get().filter(|_| self.job.args.preserve)
    }

    pub(super) fn cover(&self, offset: u64, len: u64, sum: u64) -> Result<(), Failure> {
        self.coverage
            .borrow_mut()
            .add(offset, len, sum)
            .map_err(|error| Failure::failed(format!("the sender breaks the protocol: {error}")))
    }

    pub(super) fn broken_off(&self) -> Failure {
        let got = self.coverage.borrow().bytes();
        let of = self.length.map(|length| format!(" of {length}")).unwrap_or_default();
        Failure::failed(format!(
            "the sender ended the connection midway, after {got}{of} bytes: nothing of it is kept"
        ))
    }

    pub(super) fn ended(&self, bytes: u64, checksum: Option<u64>) -> Result<(), Failure> {
        let before = self.end.replace(Some((bytes, checksum)));
        if before.is_some_and(|before| before != (bytes, checksum)) {
            return Err(Failure::failed(
                "the sender breaks the protocol: its streams end differently",
            ));
        }
        Ok(())
    }

    /// Whether everything came; bytes and checksum.
    ///
    /// # Errors
    ///
    /// What is missing or differs.
    pub(super) fn check(&self) -> Result<(u64, Option<u64>), Failure> {
        let (bytes, theirs) = self.end.get().unwrap_or_default();
        let coverage = self.coverage.borrow();
        let Some(ours) = coverage.complete(bytes) else {
            return Err(Failure::failed(format!(
                "the sender speaks of {bytes} bytes, and {} came",
                coverage.bytes()
            )));
        };
        match (ours, theirs) {
            (Some(ours), Some(theirs)) if ours != theirs => Err(Failure::failed(format!(
                "the checksums differ: {} was sent and {} arrived; nothing of it is kept",
                hexadecimal(theirs),
                hexadecimal(ours)
            ))),
            (Some(_), None) if !self.job.args.raw => {
                Err(Failure::failed("the sender sent no checksum"))
            }
            _ => Ok((bytes, ours)),
        }
    }

    /// What pieces are aligned to that go past the page cache.
    pub(super) fn unit(&self) -> usize {
        match self.outlet {
            Outlet::File { file, .. } => file.unit(),
            Outlet::Stream { .. } => 1,
        }
    }

    /// What became of the bytes on their way out.
    pub(super) fn hop_out(&self, registered: bool) -> Hop {
        let (tally, reason) = match self.outlet {
            Outlet::File { file, .. } => (file.tally(), file.reason()),
            Outlet::Stream { .. } => (
                Tally { copied: self.streamed.get(), ..Tally::default() },
                "a pipe or stream is written by copying".to_owned(),
            ),
        };
        Hop {
            from: "memory",
            to: self.job.destination_kind(),
            engine: self.job.file_engine("write", registered),
            reason,
            tally,
        }
    }
}
