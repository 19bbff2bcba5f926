//! What a return reports: the bytes by what happened to them, the number of signals, and the engine.

use crate::mechanism::Engine;
use crate::outcome::{Outcome, Tally};

/// The account of one send, or of a group of them.
///
/// ```no_run
/// # async fn example(socket: &handoff::Socket, buffer: handoff::Buffer) -> Result<(), Box<dyn std::error::Error>> {
/// let receipt = socket.send(buffer)?.await?.receipt;
/// println!("{}: {} of {} bytes copied", receipt.outcome(), receipt.tally.copied, receipt.tally.total());
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Receipt {
    /// What happened to the bytes.
    pub tally: Tally,
    /// Return signals: notifications of the ring, or sends that the error queue reported.
    pub notifications: u32,
    /// The engine that served, if it was the same throughout.
    pub engine: Option<Engine>,
}

impl Receipt {
    /// The verdict over all bytes.
    pub fn outcome(&self) -> Outcome {
        self.tally.outcome()
    }

    /// Adds the account of another send; `first` says that there was none before.
    pub(crate) fn join(&mut self, other: Self, first: bool) {
        self.tally += other.tally;
        self.notifications += other.notifications;
        self.engine =
            if first { other.engine } else { self.engine.filter(|it| other.engine == Some(*it)) };
    }
}
