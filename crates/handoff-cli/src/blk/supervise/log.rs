//! The log of the processes behind a device.

use std::fs::{self, File};
use std::io::{self, Write as _};

use handoff_block::state::{DIRECTORY, Directory, Held, make_base};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};

use crate::Failure;

/// Removes the log of a device that has ended well.
pub(in crate::blk) fn forget(id: u32) {
    // Whoever removes the device and who served it both do this.
    let _ = fs::remove_file(Directory::of(id).log_path());
}

/// Has this process and those that it starts log to a file. It has no name before there is a device,
/// so that nothing is left where none comes to be.
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
        // There is a page that can be held.
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

/// What the supervisor says, and what is held in memory for the device: the page too that it says it on. While
/// the device has no server, a page that was put out to it does not come back.
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

    /// Holds what lies there now.
    pub(super) fn hold(&mut self) {
        self.lacks = !self.directory.hold(&mut self.held);
    }

    /// Whether something could not be held, which is to be tried again.
    pub(super) fn lacks(&self) -> bool {
        self.lacks
    }
}
