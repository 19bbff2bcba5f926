//! Which bytes of a transfer have come, and the checksum of all of them, from pieces in any order.
//!
//! Contracts:
//! - a piece that overlaps another is refused, so at the end "all bytes" means each one once;
//! - neighbours are joined at once, so the number of runs follows the number of gaps, and is limited;
//! - the checksum is of the bytes in the order of their offsets, whatever order they came in.

use std::collections::BTreeMap;

use crate::checksum::{PieceSum, join};

/// The most gaps of a transfer. Our own never has more than pieces in flight.
const MAX_RUNS: usize = 1 << 16;

/// Why a piece is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CoverageError {
    /// Some of its bytes have come already.
    #[error("the bytes at {0} came twice")]
    Overlap(u64),
    /// It lies past the end of the transfer.
    #[error("bytes came for past the end at {0}")]
    PastEnd(u64),
    /// There are too many gaps.
    #[error("the pieces are scattered too widely")]
    Scattered,
}

/// Bytes from the key on.
#[derive(Clone, Copy, Debug)]
struct Run {
    len: u64,
    sum: u64,
}

/// The bytes that have come.
#[derive(Debug)]
pub struct Coverage {
    runs: BTreeMap<u64, Run>,
    length: Option<u64>,
    sums: bool,
    bytes: u64,
}

impl Coverage {
    /// For a transfer of which nothing has come; `length` in bytes if known, `sums` whether pieces have
    /// checksums.
    pub fn new(length: Option<u64>, sums: bool) -> Self {
        Self { runs: BTreeMap::new(), length, sums, bytes: 0 }
    }

    /// A piece of `len` bytes has come.
    ///
    /// # Errors
    ///
    /// If it does not belong there; the coverage then stays unchanged.
    pub fn add(&mut self, offset: u64, len: u64, sum: u64) -> Result<(), CoverageError> {
        if len == 0 {
            return Ok(());
        }
        let end = offset.checked_add(len).ok_or(CoverageError::PastEnd(u64::MAX))?;
        if let Some(length) = self.length.filter(|length| end > *length) {
            return Err(CoverageError::PastEnd(length));
        }
        let before = self.runs.range(..=offset).next_back().map(|(start, run)| (*start, *run));
        if before.is_some_and(|(start, run)| start + run.len > offset) {
            return Err(CoverageError::Overlap(offset));
        }
        let after = self.runs.range(offset..).next().map(|(start, run)| (*start, *run));
        if let Some((start, _)) = after.filter(|(start, _)| *start < end) {
            return Err(CoverageError::Overlap(start));
        }
        let (mut start, mut run) = (offset, Run { len, sum });
        if let Some((first, before)) = before.filter(|(first, before)| first + before.len == offset)
        {
            (start, run) = (first, self.join(before, run));
        }
        if let Some((next, after)) = after.filter(|(next, _)| *next == end) {
            self.runs.remove(&next);
            run = self.join(run, after);
        }
        if start == offset && self.runs.len() >= MAX_RUNS {
            return Err(CoverageError::Scattered);
        }
        self.runs.insert(start, run);
        self.bytes += len;
        Ok(())
    }

    fn join(&self, first: Run, second: Run) -> Run {
        let sum = match self.sums {
            true => join(first.sum, second.sum, second.len),
            false => 0,
        };
        Run { len: first.len + second.len, sum }
    }

    /// Bytes that have come.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The checksum of all bytes, if exactly those up to `length` have come; `None` inside if none is
    /// wanted.
    pub fn complete(&self, length: u64) -> Option<Option<u64>> {
        let whole = match self.runs.first_key_value() {
            None => length == 0,
            Some((start, run)) => self.runs.len() == 1 && *start == 0 && run.len == length,
        };
        let sum = || self.runs.get(&0).map_or_else(|| PieceSum::new(true).finish(), |run| run.sum);
        whole.then(|| self.sums.then(sum))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sum(bytes: &[u8]) -> u64 {
        let mut sum = PieceSum::new(true);
        sum.update(bytes);
        sum.finish()
    }

    #[test]
    fn nothing_has_the_checksum_of_nothing() {
        assert_eq!(Coverage::new(None, true).complete(0), Some(Some(sum(b""))));
    }

    #[test]
    fn what_does_not_belong_is_refused_and_changes_nothing() {
        let mut coverage = Coverage::new(Some(100), false);
        coverage.add(10, 10, 0).unwrap();
        for (offset, len) in [(10, 1), (19, 5), (5, 6), (0, 100), (12, 2)] {
            assert!(matches!(coverage.add(offset, len, 0), Err(CoverageError::Overlap(_))));
        }
        assert_eq!(coverage.add(99, 2, 0), Err(CoverageError::PastEnd(100)));
        assert_eq!(coverage.add(u64::MAX, 2, 0), Err(CoverageError::PastEnd(u64::MAX)));
        assert_eq!((coverage.bytes(), coverage.complete(10)), (10, None));
        coverage.add(0, 10, 0).unwrap();
        assert_eq!(coverage.complete(20), Some(None));
    }

    #[test]
    fn gaps_are_bounded() {
        let mut coverage = Coverage::new(None, false);
        for run in 0..MAX_RUNS as u64 {
            coverage.add(run * 2, 1, 0).unwrap();
        }
        assert_eq!(coverage.add(1 << 40, 1, 0), Err(CoverageError::Scattered));
        coverage.add(1, 1, 0).unwrap();
        coverage.add(1 << 40, 1, 0).unwrap();
    }

    proptest! {
        #[test]
        fn any_order_gives_the_checksum_of_the_whole(
            bytes in prop::collection::vec(any::<u8>(), 1..500),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
            order: u64,
        ) {
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let mut pieces: Vec<_> = cuts.windows(2).map(|ends| ends[0]..ends[1]).collect();
            pieces.sort_by_key(|piece| (piece.start as u64 + 1).wrapping_mul(order | 1));
            let mut coverage = Coverage::new(Some(bytes.len() as u64), true);
            for piece in pieces {
                prop_assert!(piece.is_empty() || coverage.complete(bytes.len() as u64).is_none());
                coverage.add(piece.start as u64, piece.len() as u64, sum(&bytes[piece])).unwrap();
            }
            prop_assert_eq!(coverage.complete(bytes.len() as u64), Some(Some(sum(&bytes))));
        }
    }
}
