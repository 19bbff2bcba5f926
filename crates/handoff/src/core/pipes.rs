//! Pipes for splices; an empty one is kept for the next splice.
//!
//! Contracts:
//! - there are never more than the driver was built for;
//! - a pipe that cannot be made is a reason for another engine, and no failure of a route.

use std::cell::{Cell, RefCell};
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

pub(crate) struct Pipes {
    kept: RefCell<Vec<Pipe>>,
    /// Pipes that there are, kept ones included.
    made: Cell<usize>,
    /// The most.
    pub(crate) most: Cell<usize>,
}

impl Default for Pipes {
    fn default() -> Self {
        Self { kept: RefCell::default(), made: Cell::new(0), most: Cell::new(usize::MAX) }
    }
}

impl Pipes {
    /// Makes an empty, non-blocking pipe.
    ///
    /// # Errors
    ///
    /// [`Error::EngineUnavailable`], with what is missing.
    pub(crate) fn take(&self) -> Result<Pipe> {
        if let Some(pipe) = self.kept.borrow_mut().pop() {
            return Ok(pipe);
        }
        if self.made.get() >= self.most.get() {
            let most = self.most.get();
            return Err(unavailable(format!("all pipes are in use, and this driver has {most}")));
        }
        let (drain, fill) =
            pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).map_err(|error| {
                unavailable(Error::descriptor("making a pipe", error.raw_os_error()).to_string())
            })?;
        self.made.update(|made| made + 1);
        // A user's limit on pipes keeps it smaller.
        let room = fcntl_setpipe_size(&fill, ROOM).unwrap_or(LEAST);
        Ok(Pipe { drain, fill, room })
    }

    /// Takes a pipe back. An empty one is kept.
    pub(crate) fn put_back(&self, pipe: Pipe, is_empty: bool) {
        let mut kept = self.kept.borrow_mut();
        if is_empty && kept.len() < KEPT {
            kept.push(pipe);
        } else {
            self.made.update(|made| made - 1);
        }
    }
}

fn unavailable(reason: String) -> Error {
    Error::EngineUnavailable { engine: "splice", reason }
}
