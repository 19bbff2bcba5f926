//! Pipes for splices; an empty one is kept for the next splice.

use std::cell::RefCell;
use std::os::fd::OwnedFd;

use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

use crate::error::{Error, Result};

/// Bytes that a pipe is asked to hold.
const ROOM: usize = 1 << 20;
/// Bytes that a pipe holds at least: 16 pages.
const LEAST: usize = 16 * 4096;
/// The most pipes kept. They count towards a user's limit on pipe pages.
const KEPT: usize = 16;

pub(crate) struct Pipe {
    pub(crate) drain: OwnedFd,
    pub(crate) fill: OwnedFd,
    /// Bytes that the pipe holds.
    pub(crate) room: usize,
}

#[derive(Default)]
pub(crate) struct Pipes(RefCell<Vec<Pipe>>);

impl Pipes {
    /// Makes an empty, non-blocking pipe.
    pub(crate) fn take(&self) -> Result<Pipe> {
        if let Some(pipe) = self.0.borrow_mut().pop() {
            return Ok(pipe);
        }
        let (drain, fill) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)
            .map_err(|error| Error::io("making a pipe", error.into()))?;
        // A user's limit on pipes keeps it smaller.
        let room = fcntl_setpipe_size(&fill, ROOM).unwrap_or(LEAST);
        Ok(Pipe { drain, fill, room })
    }

    /// Keeps an empty pipe.
    pub(crate) fn keep(&self, pipe: Pipe) {
        let mut kept = self.0.borrow_mut();
        if kept.len() < KEPT {
            kept.push(pipe);
        }
    }
}
