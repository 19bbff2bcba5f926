//! What a transfer's connections, or its messages, receive together, on all threads.
//!
//! Contracts:
//! - every byte is covered once before the transfer counts as whole;
//! - a thread's work is reported once, when its connections are through.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use handoff::{ReceiveEngine, Tally};
use handoff_command::Failure;
use handoff_net::arrived::Arrived;

use crate::checksum::{PieceSum, hexadecimal, zeros};
use crate::coverage::Coverage;
use crate::order::Order;
use crate::wire::{Attributes, Decoder, Event, Frame};

/// State shared by all connections of a transfer.
pub(crate) struct Intake<'a> {
    order: &'a Order<'a>,
    pub(crate) verify: bool,
    length: Option<u64>,
    /// What becomes of it if it fails.
    fate: &'static str,
    state: Mutex<State>,
}

struct State {
    coverage: Coverage,
    /// The sender's count at the end: bytes, checksum.
    end: Option<(u64, Option<u64>)>,
    /// Bytes of holes.
    holes: u64,
    /// Metadata of the source, if it sends them.
    attributes: Option<Attributes>,
    /// Of threads that are through, by their number.
    parts: BTreeMap<usize, Part>,
    /// By the NIC's queues, in the order of their threads.
    arrived: BTreeMap<usize, Arrived>,
}

/// A thread's work.
pub(crate) struct Part {
    pub(crate) connections: usize,
    pub(crate) received: Tally,
    pub(crate) engines: Vec<(ReceiveEngine, String)>,
    /// Bytes copied once more for alignment.
    pub(crate) staged: u64,
    /// Alignment of pieces that go past the page cache.
    pub(crate) unit: usize,
    pub(crate) written: Tally,
    /// Its memory is registered.
    pub(crate) registered: bool,
}

/// The sender's frames, as their bytes come.
pub(crate) struct Frames<'a> {
    intake: &'a Intake<'a>,
    decoder: Decoder,
    /// Offset, length and checksum of the current piece.
    piece: (u64, u64, PieceSum),
}

/// What bytes of the sender are.
pub(crate) enum Portion {
    /// Nothing to keep.
    Head,
    /// Payload for `offset`; `last` of its piece.
    Payload { offset: u64, last: bool },
    /// Bytes from `offset` on that are 0 and did not come.
    Hole { offset: u64, len: u64 },
    /// The end of the transfer.
    End,
}

impl<'a> Frames<'a> {
    pub(crate) fn new(intake: &'a Intake<'a>) -> Self {
        Self { intake, decoder: Decoder::new(), piece: (0, 0, PieceSum::new(false)) }
    }

    /// As [`Decoder::wanted`].
    pub(crate) fn wanted(&self) -> (usize, bool) {
        self.decoder.wanted()
    }

    /// What the first of these bytes are, and how many.
    ///
    /// # Errors
    ///
    /// When the sender gives up, or breaks the protocol.
    pub(crate) fn next(&mut self, bytes: &[u8]) -> Result<(usize, Portion), Failure> {
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
            // A sender that knows of holes knows the length of its file.
            Some(Event::Frame(Frame::Hole { .. })) if self.intake.length.is_none() => {
                return Err(Failure::failed(
                    "the sender breaks the protocol: a hole in a transfer whose length it did not say",
                ));
            }
            Some(Event::Frame(Frame::Hole { offset, len })) => {
                let sum = if self.intake.verify { zeros(len) } else { 0 };
                self.intake.cover(offset, len, sum)?;
                Portion::Hole { offset, len }
            }
            Some(Event::Frame(Frame::Attributes(attributes))) => {
                self.intake.state().attributes = Some(attributes);
                Portion::Head
            }
            Some(Event::Frame(Frame::End { bytes, checksum })) => {
                self.intake.ended(bytes, checksum)?;
                Portion::End
            }
            Some(Event::Frame(Frame::Abort { reason })) => {
                let gave_up = Failure::failed(format!("the sender gave up: {reason}"));
                return Err(self.intake.order.cut(gave_up));
            }
            Some(Event::Frame(Frame::Answer { .. } | Frame::AtWork)) => {
                return Err(Failure::failed("the sender breaks the protocol: it answers"));
            }
        };
        Ok((taken, portion))
    }
}

impl<'a> Intake<'a> {
    /// For a transfer of this length, if it is known; `fate` says what becomes of it if it fails.
    pub(crate) fn new(
        order: &'a Order<'a>,
        length: Option<u64>,
        verify: bool,
        fate: &'static str,
    ) -> Self {
        let state = State {
            coverage: Coverage::new(length, verify),
            end: None,
            holes: 0,
            attributes: None,
            parts: BTreeMap::new(),
            arrived: BTreeMap::new(),
        };
        Self { order, verify, length, fate, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// # Errors
    ///
    /// More than allowed (--max-size).
    pub(crate) fn check_size(&self, offset: u64, len: u64) -> Result<(), Failure> {
        match self.order.args.max_size {
            Some(most) if offset.saturating_add(len) > most => {
                Err(Failure::failed(format!("the sender sent more than {most} bytes (--max-size)")))
            }
            _ => Ok(()),
        }
    }

    /// So many bytes are a hole.
    pub(crate) fn count_hole(&self, len: u64) {
        self.state().holes += len;
    }

    /// Bytes of holes.
    pub(crate) fn holes(&self) -> u64 {
        self.state().holes
    }

    /// Metadata for the copy to keep.
    pub(crate) fn attributes(&self) -> Option<Attributes> {
        self.state().attributes.filter(|_| self.order.args.preserve)
    }

    pub(crate) fn cover(&self, offset: u64, len: u64, sum: u64) -> Result<(), Failure> {
        self.state()
            .coverage
            .add(offset, len, sum)
            .map_err(|error| Failure::failed(format!("the sender breaks the protocol: {error}")))
    }

    pub(crate) fn broken_off(&self) -> Failure {
        let got = self.state().coverage.bytes();
        let of = self.length.map(|length| format!(" of {length}")).unwrap_or_default();
        self.order.cut(Failure::failed(format!(
            "the sender ended the connection midway, after {got}{of} bytes: {}",
            self.fate
        )))
    }

    pub(crate) fn ended(&self, bytes: u64, checksum: Option<u64>) -> Result<(), Failure> {
        let before = self.state().end.replace((bytes, checksum));
        if before.is_some_and(|before| before != (bytes, checksum)) {
            return Err(Failure::failed(
                "the sender breaks the protocol: its streams end differently",
            ));
        }
        Ok(())
    }

    /// Whether everything came; returns bytes and checksum.
    ///
    /// # Errors
    ///
    /// What is missing or differs.
    pub(crate) fn check(&self) -> Result<(u64, Option<u64>), Failure> {
        let state = self.state();
        let (bytes, theirs) = state.end.unwrap_or_default();
        let Some(ours) = state.coverage.complete(bytes) else {
            return Err(Failure::failed(format!(
                "the sender speaks of {bytes} bytes, and {} came",
                state.coverage.bytes()
            )));
        };
        match (ours, theirs) {
            (Some(ours), Some(theirs)) if ours != theirs => Err(Failure::failed(format!(
                "the checksums differ: {} was sent and {} arrived; {}",
                hexadecimal(theirs),
                hexadecimal(ours),
                self.fate
            ))),
            (Some(_), None) if !self.order.args.raw => {
                Err(Failure::failed("the sender sent no checksum"))
            }
            _ => Ok((bytes, ours)),
        }
    }

    /// The thread of this number is through.
    pub(crate) fn add(&self, number: usize, part: Part) {
        self.state().parts.insert(number, part);
    }

    /// A thread that received from this queue is through. The last of several knows everything, so each looks in its
    /// turn.
    pub(crate) fn look(&self, queue: usize, look: impl FnOnce() -> Arrived) {
        let mut state = self.state();
        state.arrived.insert(queue, look());
    }

    /// The threads' work, and what came by all queues of the NIC.
    pub(crate) fn take_parts(&self) -> (Vec<Part>, Option<Arrived>) {
        let mut state = self.state();
        let parts = std::mem::take(&mut state.parts).into_values().collect();
        let arrived = std::mem::take(&mut state.arrived).into_values();
        (parts, arrived.reduce(Arrived::and))
    }
}
