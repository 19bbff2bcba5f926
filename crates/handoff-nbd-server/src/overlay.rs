//! What was written to a temporary export: a file without a name, and which blocks of it count.

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a block.
pub(crate) const BLOCK: u64 = 4096;

/// Blocks that are looked at in one go.
const AT_ONCE: u64 = 4096;

/// A file that goes with the last who has it open, and a bit for each of its blocks that was written.
#[derive(Debug)]
pub(crate) struct Overlay {
    pub(crate) file: OwnedFd,
    size: u64,
    written: Vec<AtomicU64>,
}

impl Overlay {
    /// An empty one in a directory.
    ///
    /// # Errors
    ///
    /// As of open(2) and ftruncate(2).
    pub(crate) fn new(directory: &Path, size: u64) -> io::Result<Self> {
        let file = tempfile::tempfile_in(directory)?;
        file.set_len(size)?;
        let words = size.div_ceil(BLOCK).div_ceil(64);
        let words = usize::try_from(words).map_err(io::Error::other)?;
        let written = std::iter::repeat_with(AtomicU64::default).take(words).collect();
        Ok(Self { file: file.into(), size, written })
    }

    fn has(&self, block: u64) -> bool {
        let word = &self.written[(block / 64) as usize];
        word.load(Ordering::Acquire) & (1 << (block % 64)) != 0
    }

    /// The whole blocks of a range count from now on; the last block of the export may be a part.
    pub(crate) fn wrote(&self, range: Range<u64>) {
        let (mut block, end) = (range.start / BLOCK, range.end.div_ceil(BLOCK));
        while block < end {
            let (first, count) = (block % 64, (end - block).min(64 - block % 64));
            let bits = (u64::MAX >> (64 - count)) << first;
            self.written[(block / 64) as usize].fetch_or(bits, Ordering::AcqRel);
            block += count;
        }
    }

    /// The first part of a range that lies in one place, of [`AT_ONCE`] blocks at most; whether that is the overlay.
    pub(crate) fn first(&self, range: Range<u64>) -> (Range<u64>, bool) {
        let mut block = range.start / BLOCK;
        let is_here = self.has(block);
        let last = range.end.div_ceil(BLOCK).min(block + AT_ONCE);
        while block < last && self.has(block) == is_here {
            block += 1;
        }
        (range.start..(block * BLOCK).min(range.end).min(self.size), is_here)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_change_where_blocks_were_written() {
        let overlay = Overlay::new(Path::new("/tmp"), 10 * BLOCK + 5).expect("a file");
        overlay.wrote(2 * BLOCK..4 * BLOCK);
        overlay.wrote(10 * BLOCK..10 * BLOCK + 5);
        let all = 10 * BLOCK + 5;
        assert_eq!(overlay.first(7..all), (7..2 * BLOCK, false));
        assert_eq!(overlay.first(2 * BLOCK + 1..all), (2 * BLOCK + 1..4 * BLOCK, true));
        assert_eq!(overlay.first(3 * BLOCK..3 * BLOCK + 9), (3 * BLOCK..3 * BLOCK + 9, true));
        assert_eq!(overlay.first(10 * BLOCK..all), (10 * BLOCK..all, true));
        let large = Overlay::new(Path::new("/tmp"), 300 * BLOCK).expect("a file");
        large.wrote(63 * BLOCK..193 * BLOCK);
        assert_eq!(large.first(0..300 * BLOCK), (0..63 * BLOCK, false));
        assert_eq!(large.first(63 * BLOCK..300 * BLOCK), (63 * BLOCK..193 * BLOCK, true));
        assert_eq!(large.first(193 * BLOCK..300 * BLOCK), (193 * BLOCK..300 * BLOCK, false));
    }
}
