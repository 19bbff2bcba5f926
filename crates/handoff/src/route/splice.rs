//! splice(2) through a pipe: pages move from file to file by reference.
//!
//! Minimum kernel: 2.6.31 between sockets. Capability: none. Return signal: none; nobody tells when
//! the pages are free again, nor whether they were copied on the way.
//!
//! Contracts:
//! - sockets that block are made non-blocking for the time, since the kernel has no other way to splice
//!   without waiting, and waited for by the driver; a file that is not in the page cache
//!   holds up the thread, as `sendfile(2)` does;
//! - before anything was moved, what can't be spliced is told as an engine that is not possible;
//! - after each pipeful the other futures of the thread have their turn, also where neither end ever
//!   keeps it waiting.

use std::cell::Cell;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use futures_lite::future::yield_now;
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use socket2::SockRef;

use crate::error::{Error, Result};
use crate::file::File;
use crate::reactor::Reactor;
use crate::socket::Socket;
use crate::transfer::Readiness;

/// Bytes that the pipe is asked to hold.
const ROOM: usize = 1 << 20;

/// From where to where, and by a pipe between.
pub(crate) struct Splicing {
    pub(crate) from: End,
    /// What of a file; `None` for streams.
    pub(crate) range: Option<Range<u64>>,
    pub(crate) to: End,
    /// Where in a file; `None` for sockets.
    pub(crate) offset: Option<u64>,
}

/// One end. A socket does not block as long as one of its ends is there, and is then again what
/// it was.
pub(crate) struct End {
    file: File,
    socket: Option<Socket>,
}

impl End {
    pub(crate) fn of_file(file: &File) -> Self {
        Self { file: file.clone(), socket: None }
    }

    /// The socket as a file that can be waited for.
    pub(crate) fn of_socket(driver: &Rc<Reactor>, socket: &Socket) -> Result<Self> {
        let failed = |error| Error::io("readying a socket for splice", error);
        let file =
            File::attach(Rc::clone(driver), socket.as_fd().try_clone_to_owned().map_err(failed)?)?;
        if socket.shared.spliced.get() == 0 {
            let flags = fcntl_getfl(socket.as_fd()).map_err(|error| failed(error.into()))?;
            let blocks = !flags.contains(OFlags::NONBLOCK);
            if blocks {
                SockRef::from(&socket.as_fd()).set_nonblocking(true).map_err(failed)?;
            }
            socket.shared.blocks_again.set(blocks);
        }
        socket.shared.spliced.update(|ends| ends + 1);
        Ok(Self { file, socket: Some(socket.clone()) })
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let Some(socket) = &self.socket else { return };
        socket.shared.spliced.update(|ends| ends - 1);
        if socket.shared.spliced.get() == 0
            && socket.shared.blocks_again.get()
            && let Err(error) = SockRef::from(&socket.as_fd()).set_nonblocking(false)
        {
            tracing::warn!(%error, "a socket stays non-blocking after splice");
        }
    }
}

impl Splicing {
    /// Moves all, and counts in `moved` what the sink took.
    pub(crate) async fn run(&mut self, moved: &Cell<u64>) -> Result<()> {
        let (drain, fill) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)
            .map_err(|error| Error::io("making a pipe", error.into()))?;
        // A user's limit on pipes leaves it smaller.
        let room = fcntl_setpipe_size(&fill, ROOM).unwrap_or(PIPE);
        let before = moved.get();
        loop {
            let held = match self.take(&fill, room).await {
                Ok(0) => return Ok(()),
                Ok(bytes) => bytes,
                Err(Errno::INVAL | Errno::OPNOTSUPP) if moved.get() == before => {
                    return Err(unavailable("the source can't be spliced"));
                }
                Err(error) => return Err(Error::io("splicing from the source", error.into())),
            };
            if let Some(range) = &mut self.range {
                range.start += held as u64;
            }
            self.give(&drain, held, moved).await.map_err(|error| match error {
                // What is in the pipe by now is gone from a stream, but not from a file.
                Errno::INVAL if moved.get() == before && self.range.is_some() => {
                    unavailable("the sink can't be spliced to")
                }
                error => Error::io("splicing to the sink", error.into()),
            })?;
            yield_now().await;
        }
    }

    async fn take(&self, fill: &OwnedFd, room: usize) -> Result<usize, Errno> {
        let (mut offset, len) = match &self.range {
            Some(range) => {
                let left = range.end.saturating_sub(range.start);
                (Some(range.start), left.min(room as u64) as usize)
            }
            None => (None, room),
        };
        if len == 0 {
            return Ok(0);
        }
        loop {
            match splice(self.from.file.as_fd(), offset.as_mut(), fill, None, len, FLAGS) {
                Err(Errno::AGAIN) => wait(self.from.file.readable()).await?,
                Err(Errno::INTR) => {}
                taken => return taken,
            }
        }
    }

    async fn give(&mut self, drain: &OwnedFd, held: usize, moved: &Cell<u64>) -> Result<(), Errno> {
        let mut left = held;
        while left > 0 {
            match splice(drain, None, self.to.file.as_fd(), self.offset.as_mut(), left, FLAGS) {
                Err(Errno::AGAIN) => wait(self.to.file.writable()).await?,
                Err(Errno::INTR) => {}
                Ok(0) => return Err(Errno::PIPE),
                Ok(bytes) => {
                    left -= bytes;
                    moved.update(|moved| moved + bytes as u64);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

const FLAGS: SpliceFlags = SpliceFlags::MOVE.union(SpliceFlags::NONBLOCK);
/// What a pipe holds at least: 16 pages.
const PIPE: usize = 16 * 4096;

async fn wait(ready: Result<Readiness>) -> Result<(), Errno> {
    let failed = |error: Error| error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error);
    ready.map_err(failed)?.await.map_err(failed)
}

fn unavailable(reason: &str) -> Error {
    Error::EngineUnavailable { engine: "splice", reason: reason.to_owned() }
}
