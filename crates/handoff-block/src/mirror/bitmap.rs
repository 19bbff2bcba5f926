//! A bitmap as it lies on a leg: sectors of 512 bytes, each with its own checksum, which disks write whole.
//!
//! A sector that is damaged, or of another mirror or place, counts as all set.

use super::page::{PAGE, Page, checksum};

const SECTOR: usize = 512;
/// Bits of a sector, before its checksum.
const SECTOR_BITS: usize = (SECTOR - 8) * 8;
/// Bits of a page.
pub(super) const PAGE_BITS: u32 = (PAGE as usize / SECTOR * SECTOR_BITS) as u32;

/// The bits of a map in memory, by chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bitmap {
    bits: Vec<bool>,
    uuid: [u8; 16],
}

impl Bitmap {
    pub(super) fn clear(uuid: [u8; 16], chunks: usize) -> Self {
        Self { bits: vec![false; chunks], uuid }
    }

    pub(super) fn uuid(&self) -> [u8; 16] {
        self.uuid
    }

    /// How many chunks there are.
    pub(super) fn len(&self) -> usize {
        self.bits.len()
    }

    /// Returns whether that is a change.
    pub(super) fn put(&mut self, chunk: usize, set: bool) -> bool {
        std::mem::replace(&mut self.bits[chunk], set) != set
    }

    pub(super) fn set(&self) -> impl Iterator<Item = usize> {
        self.bits.iter().enumerate().filter(|(_, set)| **set).map(|(chunk, _)| chunk)
    }

    /// The page of a chunk's bit.
    pub(super) fn page_of(chunk: usize) -> usize {
        chunk / PAGE_BITS as usize
    }

    pub(super) fn encode(&self, page: usize) -> Page {
        let mut bytes = [0; PAGE as usize];
        let start = page * PAGE_BITS as usize;
        for (number, sector) in bytes.chunks_exact_mut(SECTOR).enumerate() {
            let first = start + number * SECTOR_BITS;
            let bits = self.bits.iter().skip(first).take(SECTOR_BITS);
            for (at, _) in bits.enumerate().filter(|(_, set)| **set) {
                sector[at / 8] |= 1 << (at % 8);
            }
            let sum = self.sum(sector, first);
            sector[SECTOR - 8..].copy_from_slice(&sum);
        }
        bytes
    }

    /// Sets what is set on a page of a leg. Returns whether all of the page was whole.
    pub(super) fn add(&mut self, page: usize, bytes: &Page) -> bool {
        let start = page * PAGE_BITS as usize;
        let mut whole = true;
        for (number, sector) in bytes.chunks_exact(SECTOR).enumerate() {
            let first = start + number * SECTOR_BITS;
            let good = self.sum(sector, first) == sector[SECTOR - 8..];
            whole &= good;
            let bits = self.bits.iter_mut().skip(first).take(SECTOR_BITS);
            for (at, bit) in bits.enumerate() {
                *bit |= !good || sector[at / 8] >> (at % 8) & 1 != 0;
            }
        }
        whole
    }

    /// The checksum of a sector, of this mirror and place.
    fn sum(&self, sector: &[u8], first: usize) -> [u8; 8] {
        let mut bytes = self.uuid.to_vec();
        bytes.extend((first as u64).to_le_bytes());
        bytes.extend(&sector[..SECTOR - 8]);
        checksum(&bytes).to_le_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNKS: usize = PAGE_BITS as usize + 5000;

    #[test]
    fn bits_are_read_as_written() {
        let mut bitmap = Bitmap::clear([1; 16], CHUNKS);
        let chunks = [0, 7, 8, SECTOR_BITS - 1, SECTOR_BITS, PAGE_BITS as usize, CHUNKS - 1];
        assert!(chunks.iter().all(|chunk| bitmap.put(*chunk, true)));
        assert!(!bitmap.put(7, true));
        let mut read = Bitmap::clear([1; 16], CHUNKS);
        for page in 0..=Bitmap::page_of(CHUNKS - 1) {
            assert!(read.add(page, &bitmap.encode(page)));
        }
        assert!(read.set().eq(chunks));
        assert_eq!(read, bitmap);
    }

    #[test]
    fn a_damaged_sector_counts_as_set_and_others_stay() {
        let honest = Bitmap::clear([1; 16], CHUNKS);
        for at in [0, SECTOR - 9, SECTOR - 1] {
            let mut page = honest.encode(0);
            page[SECTOR + at] ^= 0x10;
            let mut read = Bitmap::clear([1; 16], CHUNKS);
            assert!(!read.add(0, &page));
            assert!(read.set().eq(SECTOR_BITS..2 * SECTOR_BITS), "{at}");
        }
    }

    #[test]
    fn another_mirrors_page_or_another_place_counts_as_set() {
        let honest = Bitmap::clear([1; 16], CHUNKS);
        let of_other = Bitmap::clear([2; 16], CHUNKS).encode(0);
        for page in [of_other, honest.encode(1), [0; PAGE as usize]] {
            let mut read = honest.clone();
            assert!(!read.add(0, &page));
            assert!(read.set().eq(0..PAGE_BITS as usize));
        }
    }
}
