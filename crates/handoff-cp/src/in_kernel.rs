//! A file to a file without our memory in between: shared blocks if the file system has them (`FICLONE`),
//! else copy_file_range(2).
//!
//! Contracts:
//! - only if nothing more is asked for: no checksum, no direct I/O, no engine;
//! - holes of the source are holes of the copy.
//!
//! Kernel interface: ioctl `FICLONE` (Linux 4.5; XFS, btrfs and others), copy_file_range(2) (4.5).

use std::fs::File;

use handoff::Tally;
use handoff_command::Failure;
use rustix::fs::{copy_file_range, ioctl_ficlone};
use rustix::io::Errno;

use crate::args::{Args, EngineName, Lend};
use crate::destination::Destination;
use crate::extents::{Extent, Extents};
use crate::order::Order;
use crate::report::Hop;

/// Bytes of a call, after which a signal is noticed.
const STEP: u64 = 16 << 20;

/// The result of such a copy.
pub(crate) struct Copied {
    pub(crate) hop: Hop,
    pub(crate) holes: u64,
}

/// Whether no option needs another way.
pub(crate) fn is_enough(args: &Args) -> bool {
    !args.verify && !args.direct && args.lend == Lend::Auto && args.engine == EngineName::Auto
}

/// Copies all of `source`; `None` if these two files cannot be copied this way, and then nothing was
/// written.
///
/// # Errors
///
/// Errors of the file systems, a source that ends early, the stop.
pub(crate) fn copy(
    order: &Order<'_>,
    source: &File,
    len: u64,
    extents: &Extents,
    destination: &Destination,
) -> Result<Option<Copied>, Failure> {
    let hop = |engine: &str, reason: &str, tally| Hop {
        from: "file",
        to: "file",
        engine: engine.to_owned(),
        reason: reason.to_owned(),
        tally,
    };
    if ioctl_ficlone(destination.file(), source).is_ok() {
        order.progress.inc(len);
        let tally = Tally { zero_copy: len, ..Tally::default() };
        let hop = hop("reflink", "the files share their blocks until one is changed", tally);
        return Ok(Some(Copied { hop, holes: 0 }));
    }
    if !extents.is_sparse() && destination.in_place().is_none() {
        destination.check_room(len)?;
    }
    let (mut offset, mut holes, mut copied) = (0, 0, 0);
    while offset < len {
        order.stop.check()?;
        let end = match extents.at(offset) {
            Extent::Data(end) => end,
            Extent::Hole(end) => {
                holes += end - offset;
                order.progress.inc(end - offset);
                offset = end;
                continue;
            }
        };
        let (mut from, mut to) = (offset, offset);
        let step = (end - offset).min(STEP) as usize;
        match copy_file_range(source, Some(&mut from), destination.file(), Some(&mut to), step) {
            // Some file systems say so of any file, and this one may have been cut: reading tells.
            Ok(0) if copied == 0 => {
                order.progress.set_position(0);
                return Ok(None);
            }
            Ok(0) => {
                return Err(Failure::failed(format!(
                    "{} was cut while it was read: it ends at {offset}",
                    order.source
                )));
            }
            Ok(bytes) => {
                order.progress.inc(bytes as u64);
                copied += bytes as u64;
                offset += bytes as u64;
            }
            Err(Errno::INTR) => {}
            // Another file system, or one that can't.
            Err(Errno::XDEV | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::PERM)
                if copied == 0 =>
            {
                order.progress.set_position(0);
                return Ok(None);
            }
            Err(error) => {
                return Err(Failure::failed(format!(
                    "copying {} to {}: {error}",
                    order.source, order.destination
                )));
            }
        }
    }
    let tally = Tally { unknown: copied, ..Tally::default() };
    let hop = hop("copy_file_range", "the kernel does not tell whether it copied", tally);
    Ok(Some(Copied { hop, holes }))
}
