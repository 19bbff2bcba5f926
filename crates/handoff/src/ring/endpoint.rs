//! A descriptor attached to a driver, in the ring's file table if there is room.

use std::cell::{Cell, OnceCell};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::rc::{Rc, Weak};

use handoff_sys::process::Process;
use handoff_sys::tcp;
use io_uring::types::{Fd, Fixed};

use super::backend::Io;

/// Closed, and removed from the table, when the last handle and the last operation let go.
pub(crate) struct Endpoint {
    pub(crate) fd: OwnedFd,
    /// Of a file, once somebody has looked.
    pub(crate) kind: OnceCell<FileKind>,
    slot: Cell<Option<u32>>,
    io: Weak<Io>,
    made_by: Process,
}

/// What the kernel says about the file.
#[derive(Clone, Copy, Default)]
pub(crate) struct FileKind {
    /// It can be waited for.
    pub(crate) pollable: bool,
    /// Requests past the page cache move multiples of this, in bytes; `None` for all but direct files.
    pub(crate) blocks: Option<usize>,
}

/// How a request names its file: by slot if it has one.
pub(crate) enum Target {
    Fixed(Fixed),
    Plain(Fd),
}

impl Endpoint {
    pub(crate) fn attach(io: &Rc<Io>, fd: OwnedFd) -> Self {
        let endpoint = Self::unlisted(io, fd);
        endpoint.enlist(io);
        endpoint
    }

    /// Gets its place in the table when it is [enlisted](Self::enlist): many files are used without the ring.
    pub(crate) fn unlisted(io: &Rc<Io>, fd: OwnedFd) -> Self {
        let (kind, slot) = (OnceCell::new(), Cell::new(None));
        Self { fd, kind, slot, io: Rc::downgrade(io), made_by: io.made_by }
    }

    /// Puts it into the table, before requests that name it.
    pub(crate) fn enlist(&self, io: &Io) {
        if self.slot.get().is_none() {
            self.slot.set(io.install(self.fd.as_raw_fd()));
        }
    }

    /// Requests move multiples of this; of a file that was looked at before.
    pub(crate) fn blocks(&self) -> Option<usize> {
        self.kind.get().and_then(|kind| kind.blocks)
    }

    /// Whether this process has it alone: a child shares the open file with its parent.
    pub(crate) fn is_here(&self) -> bool {
        self.made_by.is_this()
    }

    /// Whether the driver goes, and all connections with it.
    pub(crate) fn is_closing(&self) -> bool {
        self.io.upgrade().is_none_or(|io| io.is_closing.get())
    }

    /// Keeps a connection of TCP open in the ring's table when this goes; with the number of bytes that its peer will
    /// have acknowledged at the end. `None` if there is no room.
    pub(crate) fn park(&self) -> Option<(Parked, u64)> {
        let fd = self.fd.as_fd();
        let end = tcp::bytes_acked(fd).ok()? + tcp::unacknowledged(fd).ok()?;
        let io = self.io.upgrade()?;
        let slot = io.park(self.slot.take(), self.raw())?;
        Some((Parked { slot, io: Weak::clone(&self.io) }, end))
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    pub(crate) fn target(&self) -> Target {
        match self.slot.get() {
            Some(slot) => Target::Fixed(Fixed(slot)),
            None => Target::Plain(Fd(self.raw())),
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        if let (Some(slot), Some(io)) = (self.slot.get(), self.io.upgrade()) {
            io.uninstall(slot);
        }
    }
}

/// A connection without a descriptor, in the ring's table of files. It closes with this.
pub(crate) struct Parked {
    slot: u32,
    io: Weak<Io>,
}

impl Parked {
    pub(crate) fn target(&self) -> Fixed {
        Fixed(self.slot)
    }
}

impl Drop for Parked {
    fn drop(&mut self) {
        if let Some(io) = self.io.upgrade() {
            io.unpark(self.slot);
        }
    }
}

/// Builds an entry for whichever way the file is named.
macro_rules! with_target {
    ($endpoint:expr, |$fd:ident| $entry:expr) => {
        match $endpoint.target() {
            $crate::ring::Target::Fixed($fd) => $entry,
            $crate::ring::Target::Plain($fd) => $entry,
        }
    };
}
pub(crate) use with_target;
