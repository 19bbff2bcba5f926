//! Copies that do not leave the machine: files and pipes to files and pipes.

use std::os::fd::OwnedFd;
use std::path::Path;

use handoff_command::Failure;
use handoff_command::clock::Clock;
use handoff_command::failure::Failed;

use crate::checksum::{PieceSum, hexadecimal};
use crate::copier::Copier;
use crate::destination::{self, Destination, Target};
use crate::in_kernel;
use crate::inlet::Inlet;
use crate::job::Job;
use crate::kept::Preserved;
use crate::origin::Origin;
use crate::outlet::Outlet;
use crate::ranged::Ranged;
use crate::report::{Report, Transferred};
use crate::stream;

/// Copies to a path: a file, or what is written in order.
///
/// # Errors
///
/// A destination that cannot be taken, and errors of reading or writing.
pub(crate) fn to_path(
    job: &Job<'_>,
    origin: Origin,
    preserved: Option<Preserved>,
    path: &Path,
) -> Result<Report, Failure> {
    match destination::open(path, job.order.args.force, origin.source())? {
        Target::File(destination) => to_file(job, origin, preserved, destination),
        Target::Stream(path) => {
            to_stream(job, origin, stream::open_to_write(job.order.stop, &path)?)
        }
    }
}

/// Copies to what is written in order.
///
/// # Errors
///
/// Errors of reading or writing.
pub(crate) fn to_stream(
    job: &Job<'_>,
    origin: Origin,
    file: impl Into<OwnedFd>,
) -> Result<Report, Failure> {
    let outlet = Outlet::stream(job, file)?;
    copy(job, Inlet::new(job, origin, false, false)?, outlet, None)
}

/// Copies to a file: within the kernel if nothing more is asked for, else through our memory.
fn to_file(
    job: &Job<'_>,
    origin: Origin,
    preserved: Option<Preserved>,
    destination: Destination,
) -> Result<Report, Failure> {
    let args = job.order.args;
    let outlet = Outlet::file(job, &destination)?;
    let clock = Clock::start();
    // Bad input is refused, in any direction.
    job.order.memory_for(1)?;
    if let Some(why) = destination.in_place() {
        job.order.note_in_place(why);
        if let Some(len) = origin.len() {
            destination.check_room(len)?;
        }
        destination.begin()?;
    }
    if in_kernel::is_enough(args)
        && let Origin::File { file, len, .. } = &origin
        && let Some(extents) = origin.extents()?
        && let Some(copied) = in_kernel::copy(job.order, file, *len, &extents, &destination)?
    {
        let (bytes, holes) = (*len, copied.holes);
        destination.commit(bytes, preserved, args.sync)?;
        let (hops, checksum, verified) = (vec![copied.hop], None, None);
        let done = Transferred { bytes, holes, streams: 0, checksum, verified, hops };
        return Ok(Report::new(job.order, &clock, done));
    }
    let inlet = Inlet::new(job, origin, !args.verify, destination.has_holes())?;
    copy(job, inlet, outlet, Some((destination, preserved)))
}

/// Copies all of `inlet`; verifies a `destination` if wanted, gives it what it keeps of its source, and
/// names it.
///
/// # Errors
///
/// Errors of reading or writing, and a destination that reads back differently.
fn copy(
    job: &Job<'_>,
    inlet: Inlet,
    outlet: Outlet,
    destination: Option<(Destination, Option<Preserved>)>,
) -> Result<Report, Failure> {
    let clock = Clock::start();
    if let (Some((destination, _)), Inlet::File { len, .. }) = (&destination, &inlet)
        && !inlet.is_sparse()
        && destination.in_place().is_none()
    {
        destination.check_room(*len)?;
    }
    let memory = job.memory(1)?;
    let verify = job.order.args.verify;
    let copier = Copier::new(inlet, outlet, job.order.args.buffer, verify, &job.order.progress);
    let (bytes, checksum) = job.until_stopped(copier.run(memory.buffers))?;
    let verified = match (&destination, checksum) {
        (_, None) => None,
        (None, Some(_)) => Some("compare it yourself: what was written can't be read back"),
        (Some((destination, _)), Some(ours)) => {
            // What is past its end cannot be read.
            destination.end(bytes)?;
            let theirs = job.until_stopped(read_back(job, destination, bytes))?;
            if theirs != ours {
                return Err(Failure::failed(format!(
                    "the checksums differ: {} was read and {} was written; {}",
                    hexadecimal(ours),
                    hexadecimal(theirs),
                    destination.fate()
                )));
            }
            Some(
                "the same of what was read and of the destination, read back through the page cache",
            )
        }
    };
    if let Some((destination, preserved)) = destination {
        destination.commit(bytes, preserved, job.order.args.sync)?;
    }
    let hops =
        vec![copier.hop_in(job, memory.registered), copier.hop_out(job, None, memory.registered)];
    let holes = copier.holes();
    let done = Transferred { bytes, holes, streams: 0, checksum, verified, hops };
    Ok(Report::new(job.order, &clock, done))
}

/// The checksum of the destination's bytes.
async fn read_back(job: &Job<'_>, destination: &Destination, bytes: u64) -> Result<u64, Failure> {
    let name = destination.path().display().to_string();
    let same = destination.file().try_clone().failed("reading the destination back")?;
    let file = Ranged::new(&job.driver, same, None, name)?;
    let mut memory = job.memory(1)?;
    let Some(mut buffer) = memory.buffers.pop() else { return Ok(0) };
    let mut sum = PieceSum::new(true);
    let mut offset = 0;
    while offset < bytes {
        let len = file.piece(job.order.args.buffer, bytes - offset);
        buffer.set_len(len);
        buffer = file.read(buffer, len, offset).await?;
        sum.update(&buffer);
        offset += len as u64;
    }
    Ok(sum.finish())
}
