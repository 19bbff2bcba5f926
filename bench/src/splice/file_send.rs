//! A file that is sent over and over, as an engine of the measuring frame.

use super::{Drain, streams::LENGTH};
use crate::{
    measure::{Engine, Slot, Tally},
    network::{account::Account, testbed::Testbed},
};

/// Bytes of a piece.
pub(super) const PIECE: u64 = 64 << 10;
/// Pieces between two looks at the clock.
const LOOK: u32 = 16;

/// Where the next piece begins, in bytes; after the file's end the first piece follows.
#[derive(Debug, Default)]
pub(super) struct Offset(u64);

impl Offset {
    pub(super) fn next(&mut self) -> u64 {
        let here = self.0;
        self.0 = (here + PIECE) % LENGTH;
        here
    }
}

/// A way to send: what rows differ in.
pub(super) trait Way {
    /// Sends a piece, or starts one more.
    ///
    /// # Errors
    ///
    /// One line that says what ended the connection.
    fn send(&mut self) -> Result<(), String>;

    /// Returns when no piece is under way any more.
    ///
    /// # Errors
    ///
    /// The errors of [`send`](Self::send).
    fn settle(&mut self) -> Result<(), String> {
        Ok(())
    }

    /// The bytes copied for all bytes sent so far, counted once for each hop; `None` if nobody reports.
    ///
    /// # Errors
    ///
    /// One line that says why the count cannot be read.
    fn copied(&self) -> Result<Option<u64>, String>;

    /// The number of lends so far; `None` if the way does not lend.
    ///
    /// # Errors
    ///
    /// The errors of [`copied`](Self::copied).
    fn lends(&self) -> Result<Option<u64>, String> {
        Ok(None)
    }
}

pub(super) struct FileSend<'a, W> {
    // The way is dropped first: that ends the connection, so the drain ends.
    way: W,
    drain: Drain,
    account: Account<'a>,
    testbed: &'a Testbed,
    sent: u64,
}

impl<'a, W: Way> FileSend<'a, W> {
    pub(super) fn new(way: W, drain: Drain, testbed: &'a Testbed) -> Self {
        let account = Account::new(testbed.napi_of_connecting().to_vec(), vec![testbed]);
        Self { way, drain, account, testbed, sent: 0 }
    }

    fn send_for(&mut self, slot: &Slot<'_>) -> Result<(), String> {
        while !slot.is_over() {
            for _ in 0..LOOK {
                self.way.send()?;
                self.sent += PIECE;
            }
        }
        self.way.settle()?;
        self.drain.await_total(self.sent)
    }
}

impl<W: Way> Engine for FileSend<'_, W> {
    fn run(&mut self, slot: &Slot<'_>) -> Result<Tally, String> {
        let (sent, copied, lends) = (self.sent, self.way.copied()?, self.way.lends()?);
        let begun = self.account.begin(self.drain.waits())?;
        self.send_for(&slot.anew())?;
        let spent = self.account.end(&begun, || self.drain.waits())?;
        let since = |after: Option<u64>, before: Option<u64>| {
            after.zip(before).map(|(after, before)| after - before)
        };
        let bytes = self.sent - sent;
        Ok(Tally {
            bytes,
            operations: Some(bytes / PIECE),
            copied: since(self.way.copied()?, copied),
            lends: since(self.way.lends()?, lends),
            ..spent
        })
    }

    fn begin_witness(&mut self) -> Result<(), String> {
        self.account.leave_to_witness();
        Ok(())
    }

    fn implied(&self, reported: f64) -> f64 {
        reported + self.testbed.joint().copies_of_sent()
    }
}
