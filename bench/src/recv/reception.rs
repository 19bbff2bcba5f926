//! A connection to receive from, as an engine of the measuring frame.

use handoff_command::growth::Growth;

use crate::{
    measure::{Engine, Slot, Tally},
    network::{
        account::Account,
        far::{FarEnd, Network},
        pattern::Stream,
        placement::{Placed, Placement},
        queues::OwnQueue,
    },
};

/// A way to receive: what rows differ in.
pub(super) trait Receive {
    /// Hands what has arrived to `stream`, span by span. If nothing has arrived, it waits until something does
    /// or a signal comes.
    ///
    /// # Errors
    ///
    /// One line that says what ended the connection, also if the peer was silent for too long.
    fn receive(&mut self, stream: &mut Stream) -> Result<(), String>;

    /// The bytes handed over so far that the kernel reports as copied; `None` if it does not report.
    fn copied(&self) -> Option<u64>;

    /// How the memory of the receiver's queue has grown so far.
    fn growth(&self) -> Vec<Growth> {
        Vec::new()
    }

    /// The NIC's queue that only this receiver uses; `None` if it shares queues with others.
    fn own_queue(&self) -> Option<&OwnQueue<'_>> {
        None
    }
}

pub(super) struct Reception<'a, R> {
    // The receiver is dropped first. That ends the connection, so the sender ends, too.
    way: R,
    sender: Box<dyn FarEnd>,
    stream: Stream,
    account: Account<'a>,
    copies_of_lent: f64,
    placed: Option<Placed>,
}

impl<'a, R: Receive> Reception<'a, R> {
    /// Makes an engine that receives in this way what the sender sends. With a placement, the receiving thread
    /// runs there.
    ///
    /// # Errors
    ///
    /// One line that says why there is no such place.
    pub(super) fn new(
        network: &'a impl Network,
        (way, sender): (R, Box<dyn FarEnd>),
        check: bool,
        placement: Option<Placement>,
    ) -> Result<Self, String> {
        let place = |placement| Placed::new(network, way.own_queue(), placement);
        let placed = placement.map(place).transpose()?;
        let stream = Stream::new(network.pattern(), check);
        let (account, copies_of_lent) = (network.account(), network.copies_of_lent());
        Ok(Self { way, sender, stream, account, copies_of_lent, placed })
    }

    fn receive_for(&mut self, slot: &Slot<'_>) -> Result<(), String> {
        self.sender.begin()?;
        while !slot.is_over() {
            self.way.receive(&mut self.stream)?;
        }
        let total = self.sender.rest()?;
        while self.stream.position() != total && !slot.is_stopped() {
            self.way.receive(&mut self.stream)?;
        }
        self.stream.verdict()
    }
}

impl<R: Receive> Engine for Reception<'_, R> {
    fn run(&mut self, slot: &Slot<'_>) -> Result<Tally, String> {
        let _there = self.placed.as_ref().map(Placed::go).transpose()?;
        let (position, copied) = (self.stream.position(), self.way.copied());
        let begun = self.account.begin(self.sender.waits())?;
        let received = self.receive_for(&slot.anew());
        let spent = self.account.end(&begun, || self.sender.waits());
        received.map_err(|error| self.sender.failure().unwrap_or(error))?;
        Ok(Tally {
            bytes: self.stream.position() - position,
            copied: self.way.copied().zip(copied).map(|(after, before)| after - before),
            ..spent?
        })
    }

    fn growth(&self) -> Vec<Growth> {
        self.way.growth()
    }

    fn begin_witness(&mut self) -> Result<(), String> {
        self.account.leave_to_witness();
        Ok(())
    }

    /// The kernel also copies each byte that the sender lends, `copies_of_lent` times.
    fn implied(&self, reported: f64) -> f64 {
        reported + self.copies_of_lent
    }
}
