//! A descriptor attached to a driver, in the ring's file table where there is room.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::rc::{Rc, Weak};

use io_uring::types::{Fd, Fixed};

use super::Io;

/// Closed, and taken out of the table, when the last handle and the last operation let go.
pub(crate) struct Endpoint {
    pub(crate) fd: OwnedFd,
    slot: Option<u32>,
    io: Weak<Io>,
}

/// How a request names its file: by slot where it has one.
pub(crate) enum Target {
    Fixed(Fixed),
    Plain(Fd),
}

impl Endpoint {
    pub(crate) fn attach(io: &Rc<Io>, fd: OwnedFd) -> Self {
        let slot = io.install(fd.as_raw_fd());
        Self { fd, slot, io: Rc::downgrade(io) }
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    pub(crate) fn target(&self) -> Target {
        match self.slot {
            Some(slot) => Target::Fixed(Fixed(slot)),
            None => Target::Plain(Fd(self.raw())),
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        if let (Some(slot), Some(io)) = (self.slot, self.io.upgrade()) {
            io.uninstall(slot);
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
