//! A range in pieces that one request to a file can carry.

use std::ops::Range;

/// Where the bytes of a file lie on blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Reads and writes before `split` are of whole blocks; a power of 2.
    pub(crate) grain: u64,
    /// From here on bytes count.
    pub(crate) split: u64,
}

/// A piece: what is wanted of it, and the whole blocks around.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) wanted: Range<u64>,
    pub(crate) whole: Range<u64>,
}

impl Piece {
    pub(crate) fn is_whole(&self) -> bool {
        self.wanted == self.whole
    }

    /// Bytes before what is wanted.
    pub(crate) fn before(&self) -> usize {
        (self.wanted.start - self.whole.start) as usize
    }

    pub(crate) fn len(&self) -> usize {
        (self.wanted.end - self.wanted.start) as usize
    }

    pub(crate) fn whole_len(&self) -> usize {
        (self.whole.end - self.whole.start) as usize
    }
}

impl Layout {
    /// The first piece of a range that has bytes, which with the blocks around is at most `most` bytes, a multiple of
    /// the grain.
    pub(crate) fn piece(&self, range: &Range<u64>, most: usize) -> Piece {
        let most = most as u64;
        if range.start >= self.split {
            let wanted = range.start..range.end.min(range.start + most);
            return Piece { whole: wanted.clone(), wanted };
        }
        let start = range.start & !(self.grain - 1);
        let end = range.end.next_multiple_of(self.grain).min(self.split).min(start + most);
        Piece { wanted: range.start..range.end.min(end), whole: start..end }
    }

    /// The whole blocks within a range, and what is left before and behind.
    pub(crate) fn inner(&self, range: &Range<u64>) -> Option<Range<u64>> {
        let up = |at: u64| {
            if at >= self.split { at } else { at.next_multiple_of(self.grain).min(self.split) }
        };
        let down = |at: u64| if at >= self.split { at } else { at & !(self.grain - 1) };
        let inner = up(range.start)..down(range.end);
        (inner.start < inner.end).then_some(inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: Layout = Layout { grain: 4096, split: 1 << 20 };

    #[test]
    fn pieces_are_of_whole_blocks_up_to_the_split() {
        let piece = LAYOUT.piece(&(5000..300_000), 256 << 10);
        assert_eq!(
            piece,
            Piece { wanted: 5000..4096 + (256 << 10), whole: 4096..4096 + (256 << 10) }
        );
        assert_eq!((piece.before(), piece.is_whole()), (904, false));
        let split = LAYOUT.split;
        let piece = LAYOUT.piece(&(split - 10..split + 10), 65_536);
        assert_eq!(piece, Piece { wanted: split - 10..split, whole: split - 4096..split });
        assert!(LAYOUT.piece(&(split..split + 10), 65_536).is_whole());
        assert!(Layout { grain: 1, split: 0 }.piece(&(3..9), 4096).is_whole());
    }

    #[test]
    fn what_is_inside_is_whole() {
        assert_eq!(LAYOUT.inner(&(1..9000)), Some(4096..8192));
        assert_eq!(LAYOUT.inner(&(1..4095)), None);
        assert_eq!(LAYOUT.inner(&(0..(1 << 20) + 3)), Some(0..(1 << 20) + 3));
    }
}
