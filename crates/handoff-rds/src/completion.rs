//! Results of sent messages, in batches.

use std::collections::VecDeque;
use std::net::SocketAddr;

use handoff::Tally;

/// What happened to a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum End {
    /// The peer's TCP acknowledged all of it. For the kernel's sockets: that, or it was cancelled; the
    /// kernel does not say which.
    Acknowledged,
    /// The kernel has copied it; nobody reports what happens to it.
    Taken,
    /// The peer restarted before it acknowledged the message, and may or may not have received it.
    PeerRestarted,
    /// It was cancelled before the peer acknowledged it, and may or may not have arrived.
    Cancelled,
}

/// A message's payload, back.
#[derive(Debug)]
pub struct Completion<B> {
    /// The payload as it was sent.
    pub payload: B,
    /// The number it was sent with.
    pub cookie: u32,
    /// Where it was sent.
    pub to: SocketAddr,
    /// What became of it.
    pub end: End,
    /// Whether its bytes were copied on the way to the device, as far as anybody reports it.
    pub tally: Tally,
}

/// Completions that nobody has taken, oldest first.
#[derive(Debug)]
pub struct Completions<B> {
    waiting: VecDeque<Completion<B>>,
}

impl<B> Default for Completions<B> {
    fn default() -> Self {
        Self { waiting: VecDeque::new() }
    }
}

impl<B> Completions<B> {
    pub(crate) fn push(&mut self, completion: Completion<B>) {
        self.waiting.push_back(completion);
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Completions not taken, left in place.
    pub fn peek(&self) -> impl ExactSizeIterator<Item = &Completion<B>> {
        self.waiting.iter()
    }

    /// Moves at most `most` to the end of `batch`, and returns how many.
    pub fn take(&mut self, most: usize, batch: &mut Vec<Completion<B>>) -> usize {
        let taken = most.min(self.waiting.len());
        batch.extend(self.waiting.drain(..taken));
        taken
    }
}
