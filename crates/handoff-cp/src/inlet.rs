//! Where the pieces of a copy come from.

use std::cell::Cell;

use handoff::{Buffer, File, Tally};
use handoff_command::Failure;
use handoff_command::failure::Failed;
use handoff_net::address::Address;

use crate::extents::{Extent, Extents};
use crate::job::Job;
use crate::lending::Lending;
use crate::order;
use crate::origin::{self, Origin};
use crate::ranged::Ranged;
use crate::report::Hop;

/// Where pieces come from.
pub(crate) enum Inlet {
    /// A file of known length, which may lend what is not summed; with its holes, if they may be left out.
    File { file: Ranged, len: u64, lending: Option<Lending>, extents: Option<Extents> },
    /// What there is, in order, until it ends.
    Stream { file: File, ended: Cell<bool>, name: String },
}

impl Inlet {
    /// The source; `lends` says whether its sink takes buffers of the kernel, with nobody looking at the bytes
    /// before; `skips` whether holes may be left out.
    ///
    /// # Errors
    ///
    /// When the driver cannot take it, or cannot lend what was to be lent.
    pub(crate) fn new(
        job: &Job<'_>,
        origin: Origin,
        lends: bool,
        skips: bool,
    ) -> Result<Self, Failure> {
        let name = order::name(&job.order.source);
        let extents = if skips { origin.extents()? } else { None };
        match origin {
            Origin::Stream { fd, .. } => {
                let file = job.driver.file(fd).failed("attaching a file")?;
                Ok(Self::Stream { file, ended: Cell::new(false), name })
            }
            Origin::File { file, len, .. } => {
                let direct = match &job.order.source {
                    Address::File(path) if job.order.args.direct => {
                        job.direct(origin::open_direct(path))
                    }
                    _ => None,
                };
                let lending = if lends { Lending::open(job, &file)? } else { None };
                let file = Ranged::new(&job.driver, file, direct, name)?;
                Ok(Self::File { file, len, lending, extents })
            }
        }
    }

    /// Reads the next piece of at most `most` bytes, from `offset` on; `None` at the end.
    ///
    /// # Errors
    ///
    /// The file system's error.
    pub(crate) async fn read_at(
        &self,
        mut buffer: Buffer,
        most: usize,
        offset: u64,
    ) -> Result<Option<Buffer>, Failure> {
        match self {
            Self::File { file, .. } => {
                let len = file.piece(most, self.data_end(offset) - offset);
                if len == 0 {
                    return Ok(None);
                }
                buffer.set_len(len);
                file.read(buffer, len, offset).await.map(Some)
            }
            Self::Stream { file, name, .. } => {
                buffer.set_len(most);
                let read = file.read(buffer).failed("reading")?.await.failed("reading")?;
                let got = read.result.failed(&format!("reading {name}"))?;
                let mut buffer = read.buffer;
                buffer.set_len(got);
                Ok((got > 0).then_some(buffer))
            }
        }
    }

    /// Where the bytes end that begin at `offset`.
    pub(crate) fn data_end(&self, offset: u64) -> u64 {
        match self {
            Self::File { len, extents: Some(extents), .. } if offset < *len => {
                let (Extent::Data(end) | Extent::Hole(end)) = extents.at(offset);
                end
            }
            Self::File { len, .. } => *len,
            Self::Stream { .. } => u64::MAX,
        }
    }

    /// Whether it has holes that are left out.
    pub(crate) fn is_sparse(&self) -> bool {
        matches!(self, Self::File { extents: Some(extents), .. } if extents.is_sparse())
    }

    /// The length of the hole at `offset`; `None` if there is none.
    pub(crate) fn hole_at(&self, offset: u64) -> Option<u64> {
        match self {
            Self::File { len, extents: Some(extents), .. } if offset < *len => {
                match extents.at(offset) {
                    Extent::Hole(end) => Some(end - offset),
                    Extent::Data(_) => None,
                }
            }
            _ => None,
        }
    }

    /// What happened to its bytes; `streamed` are those of a stream.
    pub(crate) fn hop(&self, job: &Job<'_>, registered: bool, streamed: u64) -> Hop {
        let (tally, reason) = match self {
            Self::File { file, lending: Some(lending), .. } => {
                return lending.hop(job, file.tally());
            }
            Self::File { file, .. } => (file.tally(), file.reason(file.tally())),
            Self::Stream { .. } => (
                Tally { copied: streamed, ..Tally::default() },
                format!("what is read in order, as this {} is, is copied", job.source_kind()),
            ),
        };
        let engine = job.file_engine("read", registered);
        Hop { from: job.source_kind(), to: "memory", engine, reason, tally }
    }
}
