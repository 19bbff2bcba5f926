//! Pipes, terminals and devices, which are read and written in order.

use std::fs::{File, OpenOptions};
use std::path::Path;

use handoff_command::failure::Failed;
use handoff_command::{Failure, Stop};
use handoff_net::deadline::Deadline;

/// Opens a named pipe or a device, which may wait for somebody at its other end.
///
/// # Errors
///
/// The kernel's refusals, and the stop.
pub(crate) fn open(stop: &Stop, path: &Path, options: OpenOptions) -> Result<File, Failure> {
    let owned = path.to_owned();
    match Deadline::new(stop, None).detached(move || options.open(owned))? {
        Some(Ok(file)) => Ok(file),
        Some(Err(error)) => Err(Failure::failed(format!("opening {}: {error}", path.display()))),
        None => unreachable!("a wait without an end has no end"),
    }
}

/// The same, to write.
///
/// # Errors
///
/// As [`open`].
pub(crate) fn open_to_write(stop: &Stop, path: &Path) -> Result<File, Failure> {
    let mut options = OpenOptions::new();
    options.write(true);
    open(stop, path, options)
}

/// The outcome of a write to a stream, whose reader may leave at any time.
///
/// # Errors
///
/// [`Failure::ReaderGone`] then, and other errors of the write.
pub(crate) fn written<B>(
    over: handoff::Result<handoff::Transferred<B>>,
    name: &str,
) -> Result<B, Failure> {
    let over = over.failed("writing")?;
    match over.result {
        Ok(_) => Ok(over.buffer),
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::PIPE.raw_os_error()) => {
            Err(Failure::ReaderGone)
        }
        Err(error) => Err(error).failed(&format!("writing {name}")),
    }
}
