//! The log of the processes behind a device.

use std::fs::{self, File};
use std::io::{self, Write as _};

use handoff_block::state::{DIRECTORY, Directory, Held, make_base};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};

use crate::Failure;

/// Removes the log of a device that has ended well.
pub(in crate::blk) fn forget(id: u32) {
    // Both whoever removes the device and its server do this.
    let _ = fs::remove_file(Directory::of(id).log_path());
}

/// Makes this process and those that it starts log to a file. The file gets its name only with a device, so
/// that nothing is left if there never is one.
pub(super) fn open() -> Result<File, Failure> {
    let made = make_base().and_then(|()| {
        let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
        let log = rustix::fs::open(DIRECTORY, flags, Mode::RUSR | Mode::WUSR)?;
        rustix::stdio::dup2_stderr(&log)?;
        Ok(log.into())
    });
    made.map_err(|error| Failure::failed(format!("{DIRECTORY}: {error}")))
}

/// Gives the log its name.
pub(super) fn name(log: &File, id: u32) -> Result<(), Failure> {
    let path = Directory::of(id).log_path();
    let named = || {
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        rustix::fs::linkat(log, "", CWD, &path, AtFlags::EMPTY_PATH)?;
        // A page of it can now be held.
        writeln!(&mut &*log, "device {id}")
    };
    named().map_err(|error| Failure::failed(format!("{}: {error}", path.display())))
}

/// Closes the pipe to whoever started this.
pub(super) fn let_go_of_stdout() -> Result<(), Failure> {
    let null = File::options().write(true).open("/dev/null");
    null.and_then(|null| Ok(rustix::stdio::dup2_stdout(&null)?))
        .map_err(|error| Failure::failed(format!("/dev/null: {error}")))
}

/// The supervisor's log, and what is held in memory for the device, including the log's current page. While
/// the device has no server, a page swapped out to it cannot come back.
pub(super) struct Log<'a> {
    directory: &'a Directory,
    held: Held,
    /// Whether something is not held that should be.
    lacks: bool,
}

impl<'a> Log<'a> {
    pub(super) fn of(directory: &'a Directory) -> Self {
        let mut log = Self { directory, held: Held::default(), lacks: false };
        log.hold();
        log
    }

    pub(super) fn say(&mut self, what: &str) {
        tracing::warn!("{what}");
        self.hold();
    }

    /// Holds the current files.
    pub(super) fn hold(&mut self) {
        self.lacks = !self.directory.hold(&mut self.held);
    }

    /// Whether something could not be held, and must be tried again.
    pub(super) fn lacks(&self) -> bool {
        self.lacks
    }
}
