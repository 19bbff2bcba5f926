//! Parts of memory, as callers name them.

use std::ops::{Bound, Range, RangeBounds};

/// Beginning and end of a range within `len` bytes.
///
/// # Panics
///
/// When it is not within the length.
#[track_caller]
pub(crate) fn within(range: impl RangeBounds<usize>, len: usize) -> Range<usize> {
    // What is past all numbers is past every length.
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(last) => last.saturating_add(1),
        Bound::Excluded(end) => *end,
        Bound::Unbounded => len,
    };
    assert!(start <= end && end <= len, "{start}..{end} is not within {len}");
    start..end
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::*;

    #[test]
    fn every_kind_of_range_is_cut_where_it_says() {
        assert_eq!(within(.., 5), 0..5);
        assert_eq!(within(1.., 5), 1..5);
        assert_eq!(within(..4, 5), 0..4);
        assert_eq!(within(..=4, 5), 0..5);
        assert_eq!(within(5..5, 5), 5..5);
        assert_eq!(within((Bound::Excluded(1), Bound::Included(3)), 5), 2..4);
    }

    #[test]
    fn what_is_not_within_panics() {
        let past_all = (Bound::Excluded(usize::MAX), Bound::Unbounded);
        assert!(catch_unwind(|| within(past_all, 5)).is_err());
        assert!(catch_unwind(|| within(..=usize::MAX, 5)).is_err());
        assert!(catch_unwind(|| within(4..6, 5)).is_err());
        #[expect(clippy::reversed_empty_ranges, reason = "which is to panic")]
        let backwards = 4..3;
        assert!(catch_unwind(|| within(backwards, 5)).is_err());
    }
}
