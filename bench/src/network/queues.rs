//! Queues of a receiving NIC, each for one user.

use std::{cell::RefCell, collections::VecDeque};

/// The free queues, with the ports whose packets come by them. The one that is free for longest comes first.
pub(crate) struct Queues {
    free: RefCell<VecDeque<(u16, u16)>>,
}

/// A queue of the receiving NIC, or only a port if the NIC has no queues. Nobody else has it until this value
/// is dropped.
pub(crate) struct OwnQueue<'a> {
    number: u16,
    port: u16,
    of: &'a Queues,
}

impl Queues {
    /// Begins with these queues and their ports, all free.
    pub(crate) fn new(all: impl IntoIterator<Item = (u16, u16)>) -> Self {
        Self { free: RefCell::new(all.into_iter().collect()) }
    }

    /// Takes a queue for one user.
    ///
    /// # Errors
    ///
    /// If all are taken, in one line.
    pub(crate) fn take(&self) -> Result<OwnQueue<'_>, String> {
        let taken = "all queues of the NIC are taken: measure fewer rows at a time (--only)";
        let (number, port) = self.free.borrow_mut().pop_front().ok_or(taken)?;
        Ok(OwnQueue { number, port, of: self })
    }
}

impl OwnQueue<'_> {
    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    /// The port whose connections come by the queue.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for OwnQueue<'_> {
    fn drop(&mut self) {
        self.of.free.borrow_mut().push_back((self.number, self.port));
    }
}
