//! `/dev/getbuf`, as far as the bench uses it.

use std::{
    fs::{File, OpenOptions},
    io,
    os::fd::{AsFd as _, BorrowedFd},
};

use handoff_sys::getbuf::{self, Command, NULL, PATH};
use io_uring::{squeue::Entry, types::Fixed};

/// The module's counts of lends through an open device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Counts {
    /// Lends that are in a ring now.
    pub(super) out: u64,
    pub(super) lent: u64,
    pub(super) returned: u64,
}

/// The open device.
pub(super) struct Device(File);

impl Device {
    /// Opens the device.
    ///
    /// # Errors
    ///
    /// One line that says why this machine has no device, and what to do.
    pub(super) fn open() -> Result<Self, String> {
        let opened = OpenOptions::new().read(true).write(true).open(PATH);
        opened.map(Self).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => format!(
                "no {PATH}: the module getbuf is not loaded; build and load it (kmod/getbuf), or use --lab"
            ),
            io::ErrorKind::PermissionDenied => format!("{PATH} is root's: run as root"),
            _ => format!("{PATH}: {error}"),
        })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Asks the module for its counts.
    ///
    /// # Errors
    ///
    /// The module's error, in one line.
    pub(super) fn counts(&self) -> Result<Counts, String> {
        let query = getbuf::query(&self.0);
        let query = query.map_err(|error| format!("{PATH}, asked for its counts: {error}"))?;
        Ok(Counts { out: query.lends, lent: query.lent, returned: query.returned })
    }
}

/// Lends the page of zeros into an empty slot. `device` is the open device's place among the ring's files.
pub(super) fn get(device: Fixed, slot: u16, bytes: u32) -> Entry {
    Command::get(slot, NULL, 0, bytes).entry_fixed(device)
}

/// Clears `slots` slots from `slot` on, which may be empty, and lends the page into each.
pub(super) fn get_anew(device: Fixed, slot: u16, slots: u16, bytes: u32) -> Entry {
    Command::get(slot, NULL, 0, bytes).anew(slots).entry_fixed(device)
}

/// Clears a slot.
pub(super) fn put(device: Fixed, slot: u16) -> Entry {
    Command::put(slot).entry_fixed(device)
}
