//! Which parts of a read have come: each byte once.

/// The most parts with gaps between them. A server that sends its chunks in order has one.
const PARTS: usize = 1024;

/// Why a part cannot be one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wrong {
    Overlaps,
    Scattered,
}

/// Parts that have come, in order, joined where they touch.
#[derive(Clone, Debug, Default)]
pub(super) struct Coverage(Vec<(u64, u64)>);

impl Coverage {
    pub(super) fn add(&mut self, start: u64, end: u64) -> Result<(), Wrong> {
        let at = self.0.partition_point(|(_, before)| *before < start);
        // The part at `at` is the first that ends at `start` or later.
        let joins_before = self.0.get(at).is_some_and(|(_, before)| *before == start);
        let after = at + usize::from(joins_before);
        if self.0.get(after).is_some_and(|(next, _)| *next < end) {
            return Err(Wrong::Overlaps);
        }
        let joins_after = self.0.get(after).is_some_and(|(next, _)| *next == end);
        match (joins_before, joins_after) {
            (true, true) => {
                self.0[at].1 = self.0[after].1;
                self.0.remove(after);
            }
            (true, false) => self.0[at].1 = end,
            (false, true) => self.0[after].0 = start,
            (false, false) if self.0.len() >= PARTS => return Err(Wrong::Scattered),
            (false, false) => self.0.insert(at, (start, end)),
        }
        Ok(())
    }

    /// Whether all from 0 to `len` has come.
    pub(super) fn is_whole(&self, len: u64) -> bool {
        *self.0 == [(0, len)]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn each_byte_counts_once(parts in prop::collection::vec((0_u64..64, 1_u64..12), 0..40)) {
            let (mut coverage, mut bytes) = (Coverage::default(), [false; 80]);
            for (start, len) in parts {
                let range = start as usize..(start + len) as usize;
                let is_new = bytes[range.clone()].iter().all(|byte| !byte);
                prop_assert_eq!(coverage.add(start, start + len).is_ok(), is_new);
                if is_new {
                    bytes[range].fill(true);
                }
                let first = bytes.iter().position(|byte| !byte).unwrap_or(bytes.len());
                let is_prefix = first > 0 && bytes[first..].iter().all(|byte| !byte);
                for len in 1..=bytes.len() {
                    prop_assert_eq!(coverage.is_whole(len as u64), is_prefix && len == first);
                }
            }
        }
    }

    #[test]
    fn scattered_parts_are_bounded() {
        let mut coverage = Coverage::default();
        for part in 0..PARTS as u64 {
            assert_eq!(coverage.add(2 * part, 2 * part + 1), Ok(()));
        }
        assert_eq!(coverage.add(1 << 20, (1 << 20) + 1), Err(Wrong::Scattered));
        assert_eq!(coverage.add(1, 2), Ok(()), "it joins two");
    }
}
