//! Where the record and the bitmap lie on a leg: behind the data, at the end of the leg.
//!
//! ```text
//! 0                size                 end - room                               end - 8 KiB      end
//! | data           | unused (long legs) | write-intent | 16 maps for healing     | copy 0 | copy 1 |
//! ```

use super::bitmap;
use super::page::PAGE;
use crate::request::FILES;

/// Log2 of the smallest and the largest chunk of a bit.
pub(super) const CHUNK_SHIFTS: std::ops::RangeInclusive<u32> = 20..=26;
/// The write-intent bitmap, and one map for each leg, of what that leg misses. The latter are zeroes for now.
const MAPS: u64 = 1 + FILES as u64;

/// Where a leg's bytes end for a mirror.
pub(super) fn end(len: u64) -> u64 {
    len - len % PAGE
}

/// The shape of a mirror's legs, which the mirror keeps for life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// Bytes of data.
    pub(super) size: u64,
    /// Log2 of the bytes of a chunk.
    pub(super) chunk_shift: u32,
}

impl Layout {
    /// The largest mirror whose smallest leg ends there; `None` if there is no room for data.
    pub(super) fn of_end(end: u64) -> Option<Self> {
        let fits = |shift: &u32| end >> shift < u64::from(bitmap::PAGE_BITS);
        let chunk_shift = CHUNK_SHIFTS.clone().find(fits).unwrap_or(*CHUNK_SHIFTS.end());
        // The data is a little shorter than its leg, so it takes no more pages.
        let room = Self { size: end, chunk_shift }.room();
        let size = end.checked_sub(room).filter(|size| *size >= PAGE)?;
        Some(Self { size, chunk_shift })
    }

    /// The smallest leg.
    pub(super) fn least_end() -> u64 {
        Self { size: PAGE, chunk_shift: *CHUNK_SHIFTS.start() }.room() + PAGE
    }

    pub(super) fn chunks(&self) -> usize {
        self.size.div_ceil(1 << self.chunk_shift) as usize
    }

    pub(super) fn chunk_of(&self, position: u64) -> usize {
        (position >> self.chunk_shift) as usize
    }

    /// The bytes of a chunk.
    pub(super) fn bytes_of(&self, chunk: usize) -> std::ops::Range<u64> {
        let start = (chunk as u64) << self.chunk_shift;
        start..self.size.min(start + (1 << self.chunk_shift))
    }

    /// Pages of a map.
    pub(super) fn pages(&self) -> u64 {
        (self.chunks() as u64).div_ceil(u64::from(bitmap::PAGE_BITS))
    }

    /// Bytes at the end of a leg that are not data.
    pub(super) fn room(&self) -> u64 {
        (self.pages() * MAPS + 2) * PAGE
    }

    /// Where the write-intent bitmap of a leg begins.
    pub(super) fn bitmap_at(&self, end: u64) -> u64 {
        end - self.room()
    }
}

/// Where a copy of the record lies.
pub(super) fn copy_at(end: u64, copy: usize) -> u64 {
    end - (2 - copy as u64) * PAGE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_grow_with_the_mirror_and_then_the_bitmap() {
        const GIB: u64 = 1 << 30;
        for (end, chunk_mib, pages) in [
            (Layout::least_end(), 1, 1),
            (GIB, 1, 1),
            (31 * GIB, 1, 1),
            (32 * GIB, 2, 1),
            (1024 * GIB, 64, 1),
            (16 << 40, 64, 9),
            (1 << 60, 64, 532_611),
        ] {
            let layout = Layout::of_end(end).expect("room");
            assert_eq!(1u64 << layout.chunk_shift, chunk_mib << 20, "{end}");
            assert_eq!(layout.pages(), pages, "{end}");
            assert!(layout.size + layout.room() <= end && layout.size.is_multiple_of(PAGE));
            assert!(layout.bitmap_at(end) >= layout.size);
            assert!(layout.room() <= 80 << 10 || layout.room() < end >> 24);
        }
    }

    #[test]
    fn a_leg_without_room_is_none() {
        assert_eq!(Layout::of_end(Layout::least_end()).expect("room").size, PAGE);
        assert_eq!(Layout::of_end(Layout::least_end() - PAGE), None);
        assert_eq!(Layout::of_end(0), None);
    }

    #[test]
    fn the_last_chunk_ends_with_the_data() {
        let layout = Layout { size: (3 << 20) + PAGE, chunk_shift: 20 };
        assert_eq!(layout.chunks(), 4);
        assert_eq!(layout.bytes_of(3), 3 << 20..layout.size);
        assert_eq!(layout.chunk_of(layout.size - 1), 3);
    }
}
