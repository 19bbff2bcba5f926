//! A connection that is received from, as an engine of the measuring frame.

use std::time::{Duration, Instant};

use handoff_lab::instructions;

use super::{bed::Bed, pattern::Stream, sender::Sender};
use crate::{
    measure::{Cpu, Engine, Slot, Tally, Time},
    processor::kept_waiting,
    tasks::{own_cpu, spent},
};

/// A way to receive: what tells one row from another.
pub(super) trait Receive {
    /// Hands what has arrived to `stream`, span by span; if nothing has, it waits until something
    /// does or a signal comes.
    ///
    /// # Errors
    ///
    /// What ends the connection, and a peer that is silent for too long, in one line.
    fn receive(&mut self, stream: &mut Stream) -> Result<(), String>;

    /// Of all that it handed over, the bytes that the kernel says its CPU has copied; none where it
    /// does not say.
    fn copied(&self) -> Option<u64>;
}

pub(super) struct Reception<'a, R> {
    // Ends the connection, which nobody waits for any more, and with it the sender.
    way: R,
    sender: Sender,
    stream: Stream,
    bed: &'a Bed,
    /// Whether it is the witness's turn: what the threads spent is not asked for then, since the
    /// answers are copied too.
    attested: bool,
}

impl<'a, R: Receive> Reception<'a, R> {
    /// Receives in this way what the sender at the other end sends.
    pub(super) fn new(bed: &'a Bed, (way, sender): (R, Sender), check: bool) -> Self {
        let stream = Stream::new(bed.pattern(), check);
        Self { way, sender, stream, bed, attested: false }
    }

    fn receive_for(&mut self, slot: &Slot<'_>) -> Result<(), String> {
        self.sender.begin();
        while !slot.is_over() {
            self.way.receive(&mut self.stream)?;
        }
        self.sender.rest();
        while self.sender.total() != Some(self.stream.position()) && !slot.is_stopped() {
            self.way.receive(&mut self.stream)?;
        }
        self.stream.verdict()
    }

    /// CPU time of the receiving NIC's threads.
    fn napi(&self) -> Duration {
        if self.attested { Duration::ZERO } else { spent(self.bed.napi()).cpu }
    }

    fn simulated_dma(&self) -> Result<Option<u64>, String> {
        if self.attested { Ok(None) } else { self.bed.simulated_dma() }
    }
}

impl<R: Receive> Engine for Reception<'_, R> {
    fn run(&mut self, slot: &Slot<'_>) -> Result<Tally, String> {
        let waited = |this: &Self| (kept_waiting(), this.sender.kept_waiting());
        let (position, copied) = (self.stream.position(), self.way.copied());
        let (moved, waited_before) = (self.simulated_dma()?, waited(self));
        let (napi, own, begin) = (self.napi(), own_cpu(), Instant::now());
        let received = self.receive_for(&slot.anew());
        let (elapsed, own) = (begin.elapsed(), own_cpu().saturating_sub(own));
        let cpu = own + self.napi().saturating_sub(napi);
        received.map_err(|error| self.sender.failure().unwrap_or(error))?;
        let waited = waited(self);

        // Where each instruction takes a nanosecond, those of receiving are what counts.
        let time = match instructions::counting() {
            true => Time { elapsed: cpu, kept_waiting: Duration::ZERO },
            // Each of the two is waited for by the other.
            false => Time {
                elapsed,
                kept_waiting: waited
                    .0
                    .saturating_sub(waited_before.0)
                    .max(waited.1.saturating_sub(waited_before.1)),
            },
        };
        Ok(Tally {
            bytes: self.stream.position() - position,
            copied: self.way.copied().zip(copied).map(|(after, before)| after - before),
            simulated_dma: self.simulated_dma()?.zip(moved).map(|(after, before)| after - before),
            cpu: Cpu::Known(cpu),
            time: Some(time),
            ..Tally::default()
        })
    }

    fn begin_witness(&mut self) -> Result<(), String> {
        self.attested = true;
        Ok(())
    }
}
