//! A thread of the kernel that takes requests from a ring's queue, so that submitting needs no call
//! (`IORING_SETUP_SQPOLL`).
//!
//! Minimum kernel: 5.11 for descriptors outside of the ring's table, 5.13 for users without privileges; a driver's ring
//! needs 6.1. The kernel refuses deferred work (`IORING_SETUP_DEFER_TASKRUN`) beside it, and with that rx queues.
//!
//! Contracts:
//! - the thread takes what the queue's tail covers, at any time: requests are [`Staged`], and a submission publishes all of
//!   them at once. So the thread never sees a part of a chain;
//! - requests name memory that stays until their completions, as with every ring. Nothing here counts on a submission
//!   that has ended by the time its call returns, except where [`Ring::hand_over`](super::Ring::hand_over) waits for that;
//! - requests run with the credentials of the thread that built the ring, as they were then.

use std::time::Duration;

use io_uring::{Builder, cqueue, squeue};

/// How the thread polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SqPoll {
    /// How long it looks for requests before it sleeps; then a call wakes it.
    pub(crate) idle: Duration,
    /// Its processor, if it is to have one.
    pub(crate) cpu: Option<u32>,
}

impl SqPoll {
    /// Asks for such a thread.
    pub(super) fn set_up<C: cqueue::EntryMarker>(self, builder: &mut Builder<squeue::Entry, C>) {
        // The kernel takes 0 for its default of a second.
        let millis = u32::try_from(self.idle.as_millis()).unwrap_or(u32::MAX).max(1);
        builder.setup_sqpoll(millis);
        if let Some(cpu) = self.cpu {
            builder.setup_sqpoll_cpu(cpu);
        }
    }
}

/// Requests that the kernel is not to see yet, of a ring whose queue is polled.
pub(super) struct Staged {
    entries: Vec<squeue::Entry>,
    most: usize,
}

impl Staged {
    /// Room for as many as the ring's queue has.
    pub(super) fn new(most: usize) -> Self {
        Self { entries: Vec::with_capacity(most), most }
    }

    pub(super) fn room(&self) -> usize {
        self.most - self.entries.len()
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn push(&mut self, entry: squeue::Entry) {
        assert!(self.entries.len() < self.most, "room was made");
        self.entries.push(entry);
    }

    /// Publishes all of them at once, if the queue has room for all; returns whether it had.
    pub(super) fn publish(&mut self, mut queue: squeue::SubmissionQueue<'_>) -> bool {
        if queue.capacity() - queue.len() < self.entries.len() {
            return false;
        }
        // SAFETY: whoever staged them keeps what they name.
        unsafe { queue.push_multiple(&self.entries) }.expect("there is room");
        self.entries.clear();
        true
    }
}
