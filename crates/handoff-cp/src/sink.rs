//! Where a thread puts received bytes: the file or stream that the copy makes, attached to the thread's
//! driver.
//!
//! Contracts:
//! - every byte is in its place before its writes count as over;
//! - a connection has a limited number of writes under way.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use handoff::{Payload, Tally, Transfer};
use handoff_command::failure::Failed;
use handoff_command::{Failure, standard};
use handoff_net::address::Address;

use crate::destination::{self, Destination, Target, WRITTEN};
use crate::intake::Intake;
use crate::job::Job;
use crate::order::{self, Order};
use crate::ranged::Ranged;
use crate::report::Hop;
use crate::stream;

/// The most writes of a connection under way: a NIC delivers by the packet.
const WRITES: usize = 64;

/// Bytes of a piece of a hole, for sinks that need all bytes.
const ZEROS: u64 = 64 << 10;

/// Where the bytes of a transfer go.
pub(crate) enum Output {
    /// A file that is not under its name yet, to write at offsets.
    File(Destination),
    /// In order.
    Stream(OwnedFd),
}

/// A thread's sink, before its driver has it.
pub(crate) enum Opened {
    /// With the same file past the page cache, if wanted; whether bytes that are not written are 0.
    File(File, Option<io::Result<File>>, bool),
    Stream(OwnedFd),
}

impl Output {
    /// What the destination is, opened before anything is waited for; none if it is standard output.
    ///
    /// # Errors
    ///
    /// As [`destination::open`].
    pub(crate) fn target(order: &Order<'_>) -> Result<Option<Target>, Failure> {
        let target = match &order.destination {
            Address::File(path) => destination::open(path, order.args.force, None).map(Some)?,
            _ => None,
        };
        if let Some(Target::File(destination)) = &target
            && let Some(why) = destination.in_place()
        {
            order.note_in_place(why);
        }
        Ok(target)
    }

    /// Opens what the target leaves to open: a stream may wait for somebody at its other end.
    ///
    /// # Errors
    ///
    /// As [`stream::open`].
    pub(crate) fn open(order: &Order<'_>, target: Option<Target>) -> Result<Self, Failure> {
        Ok(match target {
            Some(Target::File(destination)) => Self::File(destination),
            Some(Target::Stream(path)) => {
                Self::Stream(stream::open_to_write(order.stop, &path)?.into())
            }
            None => Self::Stream(standard::output()?),
        })
    }

    /// Checks before anything is received whether the transfer can be taken, and empties a file that is written in
    /// place; `sparse` if not all its `length` bytes take room.
    ///
    /// # Errors
    ///
    /// Several streams into a sink that needs its bytes in order, and a disk without room.
    pub(crate) fn prepare(
        &self,
        order: &Order<'_>,
        streams: usize,
        length: Option<u64>,
        sparse: bool,
    ) -> Result<(), Failure> {
        match self {
            Self::Stream(_) if streams > 1 => Err(Failure::failed(format!(
                "{} takes its bytes in order, and so one stream, not {streams} (--streams 1)",
                order::name(&order.destination)
            ))),
            Self::Stream(_) => Ok(()),
            Self::File(destination) => {
                if !sparse || !destination.has_holes() {
                    destination.check_room(length.unwrap_or(0))?;
                }
                destination.begin()
            }
        }
    }

    /// What becomes of a transfer that fails.
    pub(crate) fn fate(&self) -> &'static str {
        match self {
            Self::File(destination) => destination.fate(),
            Self::Stream(_) => WRITTEN,
        }
    }

    /// For one thread, `direct` if pages should go past the page cache.
    ///
    /// # Errors
    ///
    /// When no descriptors are left.
    pub(crate) fn share(&self, direct: bool) -> Result<Opened, Failure> {
        const OPENING: &str = "attaching a file";
        Ok(match self {
            Self::File(destination) => Opened::File(
                destination.file().try_clone().failed(OPENING)?,
                direct.then(|| destination.open_direct()),
                destination.has_holes(),
            ),
            Self::Stream(fd) => Opened::Stream(fd.try_clone().failed(OPENING)?),
        })
    }
}

/// The opened sink at a driver, and the intake whose bytes it takes.
pub(crate) struct Sink<'a> {
    pub(crate) intake: &'a Intake<'a>,
    pub(crate) job: &'a Job<'a>,
    to: To,
}

enum To {
    File {
        file: Ranged,
        has_holes: bool,
    },
    /// Bytes written so far.
    Stream {
        file: handoff::File,
        name: String,
        written: Cell<u64>,
    },
}

/// Writes under way, oldest first.
pub(crate) struct Writes<B: Payload>(pub(crate) VecDeque<Transfer<B>>);

/// A part on its way to its place, or there.
pub(crate) enum Put<B: Payload> {
    Writing(Transfer<B>),
    Written(B),
}

impl<B: Payload> Default for Writes<B> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<'a> Sink<'a> {
    /// # Errors
    ///
    /// When the driver cannot take it.
    pub(crate) fn new(
        job: &'a Job<'a>,
        intake: &'a Intake<'a>,
        opened: Opened,
    ) -> Result<Self, Failure> {
        let to = match opened {
            Opened::File(file, direct, has_holes) => {
                let direct = direct.and_then(|opened| job.direct(opened));
                let name = job.order.destination.to_string();
                To::File { file: Ranged::new(&job.driver, file, direct, name)?, has_holes }
            }
            Opened::Stream(fd) => To::Stream {
                file: job.driver.file(fd).failed("attaching a file")?,
                name: order::name(&job.order.destination),
                written: Cell::new(0),
            },
        };
        Ok(Self { intake, job, to })
    }

    /// Whether somebody may read what it gets as it comes.
    pub(crate) fn is_stream(&self) -> bool {
        matches!(self.to, To::Stream { .. })
    }

    /// The file, if its pages can go past the page cache.
    pub(crate) fn direct(&self) -> Option<&Ranged> {
        match &self.to {
            To::File { file, .. } if file.is_direct() => Some(file),
            _ => None,
        }
    }

    pub(crate) fn written<B>(
        &self,
        over: handoff::Result<handoff::Transferred<B>>,
    ) -> Result<B, Failure> {
        match &self.to {
            To::File { file, .. } => file.written(over),
            To::Stream { name, .. } => stream::written(over, name),
        }
    }

    /// Waits for writes.
    ///
    /// # Errors
    ///
    /// Theirs.
    pub(crate) async fn finish<B: Payload>(&self, writes: Writes<B>) -> Result<(), Failure> {
        for write in writes.0 {
            self.written(write.await)?;
        }
        Ok(())
    }

    /// Puts a part of a piece in its place.
    pub(crate) async fn put<B: Payload>(
        &self,
        part: B,
        len: usize,
        offset: u64,
        writes: &mut Writes<B>,
    ) -> Result<(), Failure> {
        let Put::Writing(write) = self.begin(part, len, offset).await? else { return Ok(()) };
        writes.0.push_back(write);
        if writes.0.len() > WRITES
            && let Some(oldest) = writes.0.pop_front()
        {
            self.written(oldest.await)?;
        }
        Ok(())
    }

    /// Begins to put a part of a piece in its place; a stream has it afterwards.
    pub(crate) async fn begin<B: Payload>(
        &self,
        part: B,
        len: usize,
        offset: u64,
    ) -> Result<Put<B>, Failure> {
        self.intake.check_size(offset, len as u64)?;
        let put = match &self.to {
            To::File { file, .. } => Put::Writing(file.write(part, len, offset)?),
            To::Stream { file, written, .. } => {
                in_order(written, offset, len as u64)?;
                let write = file.write(part).failed("writing")?;
                Put::Written(self.written(write.await)?)
            }
        };
        self.job.order.progress.inc(len as u64);
        Ok(put)
    }

    /// Leaves a hole out of a file; writes its bytes to a stream or a device, unless the sender `has_left` meanwhile.
    pub(crate) async fn leave_out(
        &self,
        offset: u64,
        len: u64,
        has_left: impl Fn() -> bool,
    ) -> Result<(), Failure> {
        self.intake.check_size(offset, len)?;
        self.intake.count_hole(len);
        match &self.to {
            To::File { has_holes: true, .. } => {
                self.job.order.progress.inc(len);
                return Ok(());
            }
            To::File { .. } => {}
            To::Stream { written, .. } => in_order(written, offset, len)?,
        }
        // In pages, as direct writes need them.
        let mut region = self.job.region(ZEROS as usize)?;
        let mut zeros = region.take(ZEROS as usize).expect("has just that");
        let (mut at, end) = (offset, offset + len);
        while at < end {
            if has_left() {
                return Err(self.intake.broken_off());
            }
            let part = (end - at).min(ZEROS);
            zeros.set_len(part as usize);
            zeros = match &self.to {
                To::File { file, .. } => {
                    file.written(file.write(zeros, part as usize, at)?.await)?
                }
                To::Stream { file, name, .. } => {
                    stream::written(file.write(zeros).failed("writing")?.await, name)?
                }
            };
            self.job.order.progress.inc(part);
            at += part;
        }
        Ok(())
    }

    /// Alignment of pieces that go past the page cache.
    pub(crate) fn unit(&self) -> usize {
        match &self.to {
            To::File { file, .. } => file.unit(),
            To::Stream { .. } => 1,
        }
    }

    /// Bytes written by this thread, by whether the CPU copied them.
    pub(crate) fn tally(&self) -> Tally {
        match &self.to {
            To::File { file, .. } => file.tally(),
            To::Stream { written, .. } => Tally { copied: written.get(), ..Tally::default() },
        }
    }

    /// What happened to the bytes on their way out; `tally` is that of all threads.
    pub(crate) fn hop_out(&self, tally: Tally, registered: bool) -> Hop {
        let reason = match &self.to {
            To::File { file, .. } => file.reason(tally),
            To::Stream { .. } => "a pipe or stream is written by copying".to_owned(),
        };
        Hop {
            from: "memory",
            to: self.job.order.destination_kind(),
            engine: self.job.file_engine("write", registered),
            reason,
            tally,
        }
    }
}

/// Counts bytes for a sink that takes them in order, after so many that it has.
fn in_order(written: &Cell<u64>, offset: u64, len: u64) -> Result<(), Failure> {
    if offset != written.get() {
        return Err(Failure::failed("the sender left the order of the bytes"));
    }
    written.set(offset + len);
    Ok(())
}
