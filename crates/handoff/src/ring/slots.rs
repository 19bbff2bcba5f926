//! The tables of registered buffers and files: which slots are taken.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::OnceLock;

use io_uring::{opcode, types};
use rustix::pipe::{PipeFlags, pipe_with};

use super::queues::Queues;
use crate::error::Error;
use crate::memory::{Backing, SLOT_SPAN};

/// A table of slots; runs of slots are handed out first fit.
pub(crate) struct Slots {
    taken: Vec<bool>,
    /// No slot below this one is free.
    hint: usize,
}

impl Slots {
    pub(crate) fn new(len: u32) -> Self {
        Self { taken: vec![false; len as usize], hint: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.taken.len()
    }

    pub(crate) fn take(&mut self, run: usize) -> Option<usize> {
        let start = (self.hint..self.taken.len().checked_sub(run)? + 1)
            .find(|start| !self.taken[*start..start + run].contains(&true))?;
        self.taken[start..start + run].fill(true);
        if start == self.hint {
            self.hint += run;
        }
        Some(start)
    }

    pub(crate) fn release(&mut self, start: usize, run: usize) {
        self.taken[start..start + run].fill(false);
        self.hint = self.hint.min(start);
    }
}

/// The table of files: those in use, and connections that only loans keep.
pub(crate) struct Files {
    pub(super) slots: Slots,
    pub(super) in_use: usize,
    /// The most of these, so that there are slots for the others.
    pub(super) most_in_use: usize,
}

impl Files {
    pub(crate) fn new(slots: u32, most_in_use: u32) -> Self {
        Self { slots: Slots::new(slots), in_use: 0, most_in_use: most_in_use as usize }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }
}

/// Slots that a backing takes.
pub(super) fn spans(backing: &Backing) -> usize {
    backing.len().div_ceil(SLOT_SPAN)
}

/// The part of a backing that goes into a slot.
pub(super) fn part(backing: &Backing, span: usize) -> libc::iovec {
    libc::iovec {
        // SAFETY: every span starts within the backing.
        iov_base: unsafe { backing.start().add(span * SLOT_SPAN) }.as_ptr().cast(),
        iov_len: SLOT_SPAN.min(backing.len() - span * SLOT_SPAN),
    }
}

/// Makes a table for at most `files` files; returns its size.
///
/// There is no table where a removed descriptor stays open until earlier requests end (Linux up to 6.12
/// lets go in order): a peer would not see its connection end.
pub(crate) fn register_files(io: &mut Queues, files: u32) -> io::Result<u32> {
    static LETS_GO: OnceLock<bool> = OnceLock::new();
    let lets_go = match LETS_GO.get() {
        Some(known) => *known,
        None => {
            let tried = lets_go_at_once(io)?;
            *LETS_GO.get_or_init(|| tried)
        }
    };
    if !lets_go || files == 0 {
        return Ok(0);
    }
    io.submitter().register_files_sparse(files)?;
    Ok(files)
}

/// Tests this: while one entry is polled, a pipe's last writer leaves the table.
fn lets_go_at_once(io: &mut Queues) -> io::Result<bool> {
    let (polled, kept) = pipe_with(PipeFlags::CLOEXEC)?;
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    io.submitter().register_files(&[polled.as_raw_fd(), writer.as_raw_fd()])?;
    let poll = opcode::PollAdd::new(types::Fixed(0), libc::POLLIN as u32).build();
    // SAFETY: the entry names no memory.
    unsafe { io.submission().push(&poll) }.map_err(io::Error::other)?;
    io.hand_over()?;
    drop(writer);
    io.submitter().register_files_update(1, &[-1])?;
    let at_end = rustix::io::read(&reader, &mut [0u8; 1]) == Ok(0);
    // The end of the other pipe ends the poll.
    drop(kept);
    io.await_next()?;
    // Some kernels wait here for requests that still use the table.
    while let Err(error) = io.submitter().unregister_files() {
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    Ok(at_end)
}

/// Tells the limit on locked memory, if this thread has one, from other failures.
pub(crate) fn memlock_or(action: &'static str, need: u64, error: io::Error) -> Error {
    let short = matches!(error.raw_os_error(), Some(libc::ENOMEM | libc::ENOBUFS));
    match handoff_probe::lock_limit().filter(|_| short) {
        Some(limit) => {
            Error::Memlock { action, need, locked: handoff_probe::locked_already(), limit }
        }
        None => Error::io(action, error),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn runs_never_overlap_and_come_back(steps in prop::collection::vec((1usize..5, any::<bool>()), 1..100)) {
            let mut slots = Slots::new(32);
            let mut held: Vec<(usize, usize)> = Vec::new();
            for (run, release) in steps {
                if release && !held.is_empty() {
                    let (start, run) = held.swap_remove(0);
                    slots.release(start, run);
                } else if let Some(start) = slots.take(run) {
                    for (other, len) in &held {
                        prop_assert!(start + run <= *other || other + len <= start);
                    }
                    held.push((start, run));
                }
            }
            for (start, run) in held {
                slots.release(start, run);
            }
            prop_assert_eq!(slots.take(32), Some(0));
        }
    }
}
