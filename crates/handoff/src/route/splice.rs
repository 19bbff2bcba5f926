//! splice(2) through a pipe: pages move from file to file by reference.
//!
//! Minimum kernel: 2.6.31 between sockets. Capability: none. Return signal: none; nobody reports when the
//! pages are free again, nor whether they were copied on the way.
//!
//! Contracts:
//! - a blocking socket is made non-blocking meanwhile, since the kernel has no other way to splice without
//!   waiting; the driver waits for it;
//! - pages of a file that are not in the page cache are read by the ring first ([`cold`]). Without a ring they block the
//!   thread, as with `sendfile(2)`;
//! - if nothing can be spliced at the start, or no pipe can be made, the engine is reported as impossible;
//! - bytes that go at once need no future ([`at_once`]); bytes left in its pipe go first afterwards;
//! - what goes to a TLS connection goes to one that the kernel ciphers: the cipher reads the pages, and its keys are counted;
//! - between two pipefuls the other futures of the thread get their turn, even if neither end ever has to
//!   wait.

use std::cell::Cell;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;

use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::{SendFlags, send};
use rustix::pipe::{SpliceFlags, splice};

use super::cold;
use super::pause::let_others_run;
use crate::core::Pipe;
use crate::error::{Error, Result};
use crate::file::File;
use crate::reactor::Reactor;
use crate::socket::Socket;
use crate::transfer::Readiness;

/// From where to where.
pub(crate) struct Splicing<'a> {
    pub(crate) driver: Rc<Reactor>,
    /// Bytes that go first; emptied as they go.
    pub(crate) head: &'a mut Vec<u8>,
    pub(crate) from: End,
    /// Range of a file; `None` for streams.
    pub(crate) range: Option<Range<u64>>,
    pub(crate) to: End,
    /// Offset in a file; `None` for sockets.
    pub(crate) offset: Option<u64>,
    /// What [`at_once`] has left in a pipe.
    pub(crate) begun: Option<Lent>,
}

/// One end. A socket is non-blocking as long as one of its ends exists, and is then restored.
pub(crate) enum End {
    File(File),
    Socket(Socket),
}

impl End {
    pub(crate) fn of_file(file: &File) -> Self {
        Self::File(file.clone())
    }

    pub(crate) fn of_socket(socket: &Socket) -> Result<Self> {
        let failed = |error| Error::io("readying a socket for splice", error);
        if socket.shared.spliced.get() == 0 && !socket.shared.never_blocks.get() {
            let flags = fcntl_getfl(socket.as_fd()).map_err(|error| failed(error.into()))?;
            let blocks = !flags.contains(OFlags::NONBLOCK);
            if blocks {
                ioctl_fionbio(socket, true).map_err(|error| failed(error.into()))?;
            }
            socket.shared.blocks_again.set(blocks);
        }
        socket.shared.spliced.update(|ends| ends + 1);
        Ok(Self::Socket(socket.clone()))
    }

    fn readable(&self) -> Result<Readiness> {
        match self {
            Self::File(file) => file.readable(),
            Self::Socket(socket) => socket.readable(),
        }
    }

    fn writable(&self) -> Result<Readiness> {
        match self {
            Self::File(file) => file.writable(),
            Self::Socket(socket) => socket.writable(),
        }
    }
}

impl End {
    /// Whether it may take bytes now: the kernel may have to tell the peer of other keys before.
    fn prepare(&self) -> Result<bool> {
        match self {
            Self::File(_) => Ok(true),
            Self::Socket(socket) => socket.shared.prepare_cipher(),
        }
    }

    /// It took bytes, of a file or of a stream.
    fn took(&self, bytes: usize, of_file: bool) {
        if let Self::Socket(socket) = self {
            socket.shared.count_ciphered(bytes, of_file);
        }
    }
}

impl AsFd for End {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::File(file) => file.as_fd(),
            Self::Socket(socket) => socket.as_fd(),
        }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let Self::Socket(socket) = self else { return };
        socket.shared.spliced.update(|ends| ends - 1);
        if socket.shared.spliced.get() == 0
            && socket.shared.blocks_again.get()
            && socket.driver.core.is_here()
            && let Err(error) = ioctl_fionbio(socket, false)
        {
            tracing::warn!(%error, "a socket stays non-blocking after splice");
        }
    }
}

/// The pipe of a splice; other splices get it afterwards if it is empty.
pub(crate) struct Lent {
    driver: Rc<Reactor>,
    pipe: Option<Pipe>,
    /// Bytes in it.
    held: usize,
}

impl Lent {
    fn new(driver: &Rc<Reactor>) -> Result<Self> {
        Ok(Self { driver: Rc::clone(driver), pipe: Some(driver.core.pipes.take()?), held: 0 })
    }

    fn pipe(&self) -> &Pipe {
        self.pipe.as_ref().expect("it is taken with the end")
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(pipe) = self.pipe.take() {
            self.driver.core.pipes.put_back(pipe, self.held == 0);
        }
    }
}

impl Splicing<'_> {
    /// Moves everything, and counts in `moved` what the sink took.
    pub(crate) async fn run(&mut self, moved: &Cell<u64>) -> Result<()> {
        let mut lent = match self.begun.take() {
            Some(begun) => begun,
            None => Lent::new(&self.driver)?,
        };
        let before = moved.get();
        self.send_head().await.map_err(|error| Error::io("sending a head", error.into()))?;
        loop {
            if lent.held == 0 {
                lent.held = match self.take(lent.pipe()).await {
                    Ok(0) => return Ok(()),
                    Ok(bytes) => bytes,
                    Err(Errno::INVAL | Errno::OPNOTSUPP) if moved.get() == before => {
                        return Err(unavailable("the source can't be spliced"));
                    }
                    Err(error) => return Err(Error::io("splicing from the source", error.into())),
                };
            }
            if let Some(range) = &mut self.range {
                range.start += lent.held as u64;
            }
            self.give(&mut lent, moved).await.map_err(|error| match error {
                // Bytes in the pipe by now are gone from a stream, but not from a file.
                Failed::Kernel(Errno::INVAL) if moved.get() == before && self.range.is_some() => {
                    unavailable("the sink can't be spliced to")
                }
                Failed::Kernel(error) => Error::io("splicing to the sink", error.into()),
                Failed::Cipher(error) => error,
            })?;
            if self.range.as_ref().is_some_and(Range::is_empty) {
                return Ok(());
            }
            let_others_run(&self.driver).await;
        }
    }

    /// Sends the head; the kernel holds it back for the packet with the first bytes of a file. Through the pipe it
    /// would cost more: over veth twice the server's CPU for 64 KiB and 1 MiB, since the reader was woken more often.
    async fn send_head(&mut self) -> Result<(), Errno> {
        let follows = self.range.as_ref().is_some_and(|range| !range.is_empty());
        let more = if follows { SendFlags::MORE } else { SendFlags::empty() };
        while !self.head.is_empty() {
            match send(&self.to, self.head, SendFlags::DONTWAIT | SendFlags::NOSIGNAL | more) {
                Err(Errno::AGAIN) => wait(self.to.writable()).await?,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
                Ok(sent) => drop(self.head.drain(..sent)),
            }
        }
        Ok(())
    }

    async fn take(&self, pipe: &Pipe) -> Result<usize, Errno> {
        if let (End::File(file), Some(range)) = (&self.from, &self.range) {
            let end = range.end.min(range.start.saturating_add(pipe.room as u64));
            cold::read_ahead(&self.driver, file, range.start..end).await;
        }
        let Pipe { fill, room, .. } = pipe;
        let (mut offset, len) = match &self.range {
            Some(range) => {
                let left = range.end.saturating_sub(range.start);
                (Some(range.start), left.min(*room as u64) as usize)
            }
            None => (None, *room),
        };
        if len == 0 {
            return Ok(0);
        }
        loop {
            match splice(&self.from, offset.as_mut(), fill, None, len, FLAGS) {
                Err(Errno::AGAIN) => wait(self.from.readable()).await?,
                Err(Errno::INTR) => {}
                taken => return taken,
            }
        }
    }

    async fn give(&mut self, lent: &mut Lent, moved: &Cell<u64>) -> Result<(), Failed> {
        while lent.held > 0 {
            if !self.to.prepare()? {
                wait(self.to.writable()).await?;
                continue;
            }
            let drain = &lent.pipe().drain;
            match splice(drain, None, &self.to, self.offset.as_mut(), lent.held, FLAGS) {
                Err(Errno::AGAIN) => wait(self.to.writable()).await?,
                Err(Errno::INTR) => {}
                Ok(0) => return Err(Errno::PIPE.into()),
                Ok(bytes) => {
                    lent.held -= bytes;
                    moved.update(|moved| moved + bytes as u64);
                    self.to.took(bytes, self.range.is_some());
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// Why the sink takes no more.
enum Failed {
    Kernel(Errno),
    /// What ciphers for it, or its driver.
    Cipher(Error),
}

impl From<Errno> for Failed {
    fn from(error: Errno) -> Self {
        Self::Kernel(error)
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::Cipher(error)
    }
}

/// As much as a pipe is asked to hold.
const AT_ONCE: u64 = 1 << 20;

/// Moves what goes at once of a head and of a range of a file, at most a pipeful, to a non-blocking socket. Returns
/// the bytes of the file that went, and what is left in a pipe. [`Splicing::run`] reports errors.
pub(crate) fn at_once(
    driver: &Rc<Reactor>,
    head: &mut Vec<u8>,
    (file, range): (&File, &Range<u64>),
    to: &Socket,
) -> (u64, Option<Lent>) {
    let end = range.end.min(range.start.saturating_add(AT_ONCE));
    if cold::is_cold(driver, file, &(range.start..end)) {
        return (0, None);
    }
    let Ok(mut lent) = Lent::new(driver) else { return (0, None) };
    if !head.is_empty() {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL | SendFlags::MORE;
        let sent = send(to, head, flags).unwrap_or(0);
        head.drain(..sent);
        if !head.is_empty() {
            return (0, None);
        }
    }
    let (mut offset, len) = (range.start, range.end - range.start);
    let Pipe { fill, drain, room } = lent.pipe();
    let len = len.min(*room as u64) as usize;
    let taken = splice(file, Some(&mut offset), fill, None, len, FLAGS).unwrap_or(0);
    let given = match taken {
        0 => 0,
        taken => splice(drain, None, to, None, taken, FLAGS).unwrap_or(0),
    };
    lent.held = taken - given;
    (given as u64, (lent.held > 0).then_some(lent))
}

const FLAGS: SpliceFlags = SpliceFlags::MOVE.union(SpliceFlags::NONBLOCK);

async fn wait(ready: Result<Readiness>) -> Result<(), Errno> {
    let failed = |error: Error| error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error);
    ready.map_err(failed)?.await.map_err(failed)
}

fn unavailable(reason: &str) -> Error {
    Error::EngineUnavailable { engine: "splice", reason: reason.to_owned() }
}
