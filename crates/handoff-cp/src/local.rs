//! Copies that do not leave the machine: files and pipes to files and pipes.

use handoff_command::Failure;
use handoff_command::clock::Clock;
use handoff_command::failure::Failed;

use crate::carry::{Carriage, Inlet, Outlet};
use crate::checksum::PieceSum;
use crate::destination::Destination;
use crate::job::Job;
use crate::kept::Preserved;
use crate::ranged::Ranged;
use crate::report::{Report, Transferred, hexadecimal};

/// Copies all of `inlet`; verifies a `destination` if wanted, gives it what it keeps of its source, and
/// names it.
///
/// # Errors
///
/// Errors of reading or writing, and a destination that reads back differently.
pub(crate) fn copy(
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
    let carriage = Carriage::new(inlet, outlet, job.order.args.buffer, verify, &job.order.progress);
    let (bytes, checksum) = job.until_stopped(carriage.run(memory.buffers))?;
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
        vec![carriage.hop_in(job, memory.registered), carriage.hop_out(job, memory.registered)];
    let holes = carriage.holes();
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
