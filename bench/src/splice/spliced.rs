//! Passing pages by splice: the page goes into a pipe and out of it, by two system calls or by two requests of
//! a ring.

use std::{
    fs::{File, OpenOptions},
    io,
    os::fd::{AsFd as _, OwnedFd},
};

use io_uring::{
    opcode,
    squeue::{Entry, Flags},
    types::Fixed,
};
use rustix::{
    fs::{MemfdFlags, ftruncate, memfd_create},
    pipe::{PipeFlags, SpliceFlags, pipe_with, splice},
};

use super::{BYTES, LOOK, ring::Ring};
use crate::measure::{Engine, Slot, Tally};

/// Bytes of the source: more than is ever read of it.
const LENGTH: u64 = 1 << 62;

/// Makes a file in memory that is one hole: for each of its pages, splice takes the kernel's own page of zeros,
/// without allocating or copying. This is splice's cheapest source on a stock kernel.
fn source() -> io::Result<OwnedFd> {
    let file = memfd_create("zeros", MemfdFlags::CLOEXEC)?;
    ftruncate(&file, LENGTH)?;
    Ok(file)
}

/// Opens `/dev/null`, which takes all bytes and does nothing with them.
pub(super) fn sink() -> Result<File, String> {
    let opened = OpenOptions::new().write(true).open("/dev/null");
    opened.map_err(|error| format!("/dev/null: {error}"))
}

pub(super) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(pipe_with(PipeFlags::CLOEXEC)?)
}

/// The baseline: splice(2) twice for each request. It has no depth, and runs beside the rows of each depth.
pub(super) struct Splice {
    source: OwnedFd,
    pipe: (OwnedFd, OwnedFd),
    sink: File,
}

impl Splice {
    pub(super) fn new() -> Result<Self, String> {
        let failed = |error: io::Error| format!("a file in memory, or a pipe: {error}");
        let (source, pipe) = (source().map_err(failed)?, pipe().map_err(failed)?);
        Ok(Self { source, pipe, sink: sink()? })
    }

    fn one(&self) -> io::Result<bool> {
        let (out, into) = &self.pipe;
        let (bytes, flags) = (BYTES as usize, SpliceFlags::empty());
        let there = splice(&self.source, None, into, None, bytes, flags)?;
        let back = splice(out, None, &self.sink, None, bytes, flags)?;
        Ok(there == bytes && back == bytes)
    }
}

impl Engine for Splice {
    fn run(&mut self, slot: &Slot<'_>) -> Result<Tally, String> {
        let mut operations = 0;
        while !slot.is_over() {
            for _ in 0..LOOK {
                match self.one() {
                    Ok(true) => {}
                    Ok(false) => return Err("a splice ended early".to_owned()),
                    Err(error) => return Err(format!("splice: {error}")),
                }
            }
            operations += u64::from(LOOK);
        }
        Ok(super::tally(operations))
    }
}

/// Two linked requests for each page, and a pipe for each pair under way. A stock kernel leaves them to its
/// workers.
pub(super) struct OpSplice {
    ring: Ring,
    batch: Vec<Entry>,
    depth: u32,
    _pipes: Vec<(OwnedFd, OwnedFd)>,
}

impl OpSplice {
    pub(super) fn new(depth: u32) -> Result<Self, String> {
        const NO_POSITION: i64 = -1;
        let failed = |error: io::Error| format!("a file in memory, or a pipe: {error}");
        let pipes: io::Result<Vec<_>> = (0..depth).map(|_| pipe()).collect();
        let (source, pipes, sink) = (source().map_err(failed)?, pipes.map_err(failed)?, sink()?);
        let mut files = vec![source.as_fd(), sink.as_fd()];
        let mut batch = Vec::new();
        for (index, (out, into)) in (0..).zip(&pipes) {
            files.extend([out.as_fd(), into.as_fd()]);
            let (out, into) = (Fixed(2 + 2 * index), Fixed(3 + 2 * index));
            let splice = |from, to| opcode::Splice::new(from, NO_POSITION, to, NO_POSITION, BYTES);
            batch.push(splice(Fixed(0), into).build().flags(Flags::IO_LINK | Flags::SKIP_SUCCESS));
            batch.push(splice(out, Fixed(1)).build());
        }
        let ring = Ring::new(batch.len(), &files, 0)?;
        Ok(Self { ring, batch, depth, _pipes: pipes })
    }
}

impl Engine for OpSplice {
    fn run(&mut self, slot: &Slot<'_>) -> Result<Tally, String> {
        let mut operations = 0;
        while !slot.is_over() {
            for _ in 0..LOOK / self.depth {
                self.ring.run(&self.batch, self.depth as usize, BYTES, false)?;
            }
            operations += u64::from(LOOK);
        }
        Ok(super::tally(operations))
    }
}
