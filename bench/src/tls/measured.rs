//! A measured end and its far end, as an engine of the measuring frame.
//!
//! Contract: the clock runs from an order to its fulfilment, over and over: so what is counted is what was ordered.

use handoff::Tally;

use super::far::Far;
use crate::{
    measure::{self, Engine, Slot},
    network::account::Account,
};

/// Bytes, or other units, of an order.
const BYTES: u64 = 4 << 20;
/// Pieces of an order, where bytes do not count.
const PIECES: u64 = 16;

/// The measured end.
pub(super) trait Works {
    /// Does its part of so many pieces, and returns when it is done. What the far end has done shows when.
    ///
    /// # Errors
    ///
    /// One line that says what ended it.
    fn work(&mut self, pieces: u64, far: &Far) -> Result<(), String>;

    /// What became of all bytes so far; `None` if nobody tells.
    fn tally(&self) -> Option<Tally> {
        None
    }
}

/// What an order has, and how the far end counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Counted {
    /// Pieces of so many bytes.
    Bytes(u64),
    /// Pieces, whatever they have.
    Pieces,
    /// Whatever the other end does: it is nobody's order.
    Uncounted,
}

pub(super) struct Measured<'a> {
    // It is dropped first, which ends the connection.
    works: Box<dyn Works + 'a>,
    far: Far,
    account: Account<'a>,
    counted: Counted,
    /// The witness's copies that nobody reports, of each byte.
    unreported: f64,
}

impl<'a> Measured<'a> {
    pub(super) fn new(
        works: Box<dyn Works + 'a>,
        far: Far,
        account: Account<'a>,
        counted: Counted,
        unreported: f64,
    ) -> Self {
        Self { works, far, account, counted, unreported }
    }

    /// Works for one order; returns its pieces and units.
    fn order(&mut self) -> Result<(u64, u64), String> {
        let (pieces, units) = match self.counted {
            Counted::Bytes(each) => {
                let pieces = (BYTES / each).max(1);
                (pieces, pieces * each)
            }
            Counted::Pieces => (PIECES, PIECES),
            Counted::Uncounted => return self.uncounted(),
        };
        self.far.order(pieces, units);
        let worked = self.works.work(pieces, &self.far);
        // The far end may know better why.
        if worked.is_err() && self.far.is_through() {
            self.far.await_all()?;
        }
        worked?;
        self.far.await_all()?;
        Ok((pieces, units))
    }

    /// Lets the other end do what it does.
    fn uncounted(&mut self) -> Result<(u64, u64), String> {
        let before = self.far.done();
        self.works.work(0, &self.far)?;
        let pieces = self.far.done() - before;
        Ok((pieces, pieces))
    }
}

impl Engine for Measured<'_> {
    fn run(&mut self, slot: &Slot<'_>) -> Result<measure::Tally, String> {
        let before = self.works.tally();
        let begun = self.account.begin(self.far.waits())?;
        let (mut pieces, mut units) = (0, 0);
        let slot = slot.anew();
        while pieces == 0 || !slot.is_over() {
            let (more_pieces, more_units) = self.order()?;
            pieces += more_pieces;
            units += more_units;
            if slot.is_stopped() {
                break;
            }
        }
        let spent = self.account.end(&begun, || self.far.waits())?;
        let told = self.works.tally().map(|after| (after, before.unwrap_or_default()));
        let told = told.filter(|(after, before)| after.unknown == before.unknown);
        Ok(measure::Tally {
            bytes: units,
            operations: Some(pieces),
            copied: told.map(|(after, before)| after.copied - before.copied),
            ciphered: told.map(|(after, before)| after.ciphered - before.ciphered),
            ..spent
        })
    }

    fn counts_bytes(&self) -> bool {
        matches!(self.counted, Counted::Bytes(_))
    }

    fn begin_witness(&mut self) -> Result<(), String> {
        self.account.leave_to_witness();
        Ok(())
    }

    fn counted_threads(&self) -> Vec<u32> {
        self.account.thread_ids()
    }

    fn implied(&self, reported: f64) -> f64 {
        reported + self.unreported
    }
}
