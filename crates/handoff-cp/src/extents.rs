//! Where a file has bytes and where it has holes, which read as 0 and take no room.
//!
//! Kernel interface: lseek(2) `SEEK_DATA`, `SEEK_HOLE` (Linux 3.1). A file system without holes says that
//! all of it is bytes; so does this module if a file cannot be asked.

use std::cell::Cell;
use std::fs::File;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

/// What a file has from an offset on, and where that ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    Data(u64),
    Hole(u64),
}

/// The extents of a file of known length.
#[derive(Debug)]
pub(crate) struct Extents {
    file: File,
    len: u64,
    /// The last answer, and the offset that it begins at.
    last: Cell<(u64, Extent)>,
}

impl Extents {
    /// Those of `file`, whose own position moves.
    pub(crate) fn new(file: File, len: u64) -> Self {
        let extents = Self { file, len, last: Cell::new((0, Extent::Data(0))) };
        extents.last.set((0, extents.find(0)));
        extents
    }

    /// Whether there are holes.
    pub(crate) fn is_sparse(&self) -> bool {
        self.find(0) != Extent::Data(self.len)
    }

    /// What is at `offset`, which is within the file.
    pub(crate) fn at(&self, offset: u64) -> Extent {
        let (start, extent) = self.last.get();
        let (Extent::Data(end) | Extent::Hole(end)) = extent;
        if (start..end).contains(&offset) {
            return extent;
        }
        let found = self.find(offset);
        self.last.set((offset, found));
        found
    }

    fn find(&self, offset: u64) -> Extent {
        let within = |end: u64| end.min(self.len);
        match seek(&self.file, SeekFrom::Data(offset)) {
            Ok(data) if data > offset => Extent::Hole(within(data)),
            Ok(_) => match seek(&self.file, SeekFrom::Hole(offset)) {
                Ok(hole) if hole > offset => Extent::Data(within(hole)),
                _ => Extent::Data(self.len),
            },
            // There are no more bytes, or the file is shorter.
            Err(Errno::NXIO) => Extent::Hole(self.len),
            Err(_) => Extent::Data(self.len),
        }
    }
}
