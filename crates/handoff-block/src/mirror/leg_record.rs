//! The record at the end of a leg: which mirror it is of, and which legs have the data.
//!
//! Two copies of a page each. A write overwrites the worse copy, flushes, and then does the same with the other one.
//! Nobody relies on what it says before both are durable. So a copy that is damaged later hides nothing.
//!
//! Numbers are little-endian. Magic number, version and checksum lie at the same place in all versions.

use super::layout::{CHUNK_SHIFTS, Layout};
use super::legs::Legs;
use super::page::{PAGE, Page, checksum};
use crate::request::FILES;

/// The layout that this program writes, and the newest that it reads.
pub(super) const VERSION: u32 = 1;
const MAGIC: [u8; 8] = *b"handoffM";
/// Changes of the set of legs that a record remembers.
pub(super) const CHANGES: usize = 32;
const CHECKSUM_AT: usize = PAGE as usize - 8;

/// What a leg says about its mirror.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LegRecord {
    pub(super) uuid: [u8; 16],
    /// This leg's number.
    pub(super) leg: usize,
    /// How many legs the mirror was made of.
    pub(super) legs: usize,
    pub(super) layout: Layout,
    /// Where this leg ended when it became one, and so where the record lies.
    pub(super) end: u64,
    /// Legs in use. What this leg has, they all have.
    pub(super) in_use: Legs,
    /// Rises whenever the set changes.
    pub(super) generation: u64,
    /// The last change of the set first, and those before it: random numbers, 0 for none.
    pub(super) changes: [u64; CHANGES],
    /// Rises with each write of this leg's record: the copy with the greater number is the newer one. 0 until the
    /// mirror has started for the first time.
    pub(super) sequence: u64,
}

/// Why a page is no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unreadable {
    /// Nothing of ours is there.
    Nothing,
    Damaged,
    /// A newer program wrote it.
    Newer(u32),
}

impl LegRecord {
    /// Whether another record's set is this one's, or came before it.
    pub(super) fn follows(&self, other: &Self) -> bool {
        self.changes.contains(&other.changes[0])
    }

    /// The record after a change of the set; `over` are changes of others that it overrules.
    pub(super) fn changed(
        &self,
        in_use: Legs,
        change: u64,
        over: impl IntoIterator<Item = u64>,
        generation: u64,
    ) -> Self {
        let mut changes = [0; CHANGES];
        let before = self.changes.into_iter().filter(|it| *it != 0);
        let all = [change].into_iter().chain(over).chain(before);
        changes.iter_mut().zip(all).for_each(|(place, it)| *place = it);
        Self { in_use, generation, changes, ..self.clone() }
    }

    /// Whether the mirror is being made: no start has relied on this record.
    pub(super) fn is_new(&self) -> bool {
        self.sequence == 0
    }

    /// Whether this leg counts itself as in.
    pub(super) fn is_in(&self) -> bool {
        self.in_use.has(self.leg)
    }

    /// The next record of another leg, which is in use by this one.
    pub(super) fn on(&self, leg: &Self) -> Self {
        Self { leg: leg.leg, end: leg.end, sequence: leg.sequence + 1, ..self.clone() }
    }

    /// The next record of another leg, which is out by this one. It keeps the changes that the leg took part in: the
    /// legs in use may go on without it after this.
    pub(super) fn told_to(&self, leg: &Self) -> Self {
        let sequence = leg.sequence + 1;
        Self { in_use: self.in_use, generation: self.generation, sequence, ..leg.clone() }
    }

    pub(super) fn encode(&self) -> Page {
        let mut page = [0; PAGE as usize];
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            page[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        put(&MAGIC);
        put(&VERSION.to_le_bytes());
        put(&(self.legs as u16).to_le_bytes());
        put(&(self.leg as u16).to_le_bytes());
        put(&self.uuid);
        put(&self.in_use.0.to_le_bytes());
        put(&self.layout.chunk_shift.to_le_bytes());
        put(&self.layout.size.to_le_bytes());
        put(&self.end.to_le_bytes());
        put(&self.generation.to_le_bytes());
        put(&self.sequence.to_le_bytes());
        self.changes.iter().for_each(|change| put(&change.to_le_bytes()));
        let sum = checksum(&page[..CHECKSUM_AT]);
        page[CHECKSUM_AT..].copy_from_slice(&sum.to_le_bytes());
        page
    }

    pub(super) fn decode(page: &Page) -> Result<Self, Unreadable> {
        let mut rest = &page[..CHECKSUM_AT];
        if take(&mut rest) != MAGIC {
            return Err(Unreadable::Nothing);
        }
        if checksum(&page[..CHECKSUM_AT]).to_le_bytes() != page[CHECKSUM_AT..] {
            return Err(Unreadable::Damaged);
        }
        let version = u32::from_le_bytes(take(&mut rest));
        if version > VERSION {
            return Err(Unreadable::Newer(version));
        }
        let legs = usize::from(u16::from_le_bytes(take(&mut rest)));
        let leg = usize::from(u16::from_le_bytes(take(&mut rest)));
        let uuid = take(&mut rest);
        let in_use = Legs(u32::from_le_bytes(take(&mut rest)));
        let chunk_shift = u32::from_le_bytes(take(&mut rest));
        let mut number = || u64::from_le_bytes(take(&mut rest));
        let (size, end) = (number(), number());
        let (generation, sequence) = (number(), number());
        let changes = std::array::from_fn(|_| number());
        let layout = Layout { size, chunk_shift };
        let record = Self { uuid, leg, legs, layout, end, in_use, generation, changes, sequence };
        if record.makes_sense() { Ok(record) } else { Err(Unreadable::Damaged) }
    }

    fn makes_sense(&self) -> bool {
        (2..=FILES).contains(&self.legs)
            && self.leg < self.legs
            && !self.in_use.is_empty()
            && self.in_use.is_within(Legs::first(self.legs))
            && CHUNK_SHIFTS.contains(&self.layout.chunk_shift)
            && self.layout.size >= PAGE
            && self.layout.size.is_multiple_of(PAGE)
            && self.end.is_multiple_of(PAGE)
            && self.layout.size < 1 << 63
            && self.end.checked_sub(self.layout.room()).is_some_and(|end| end >= self.layout.size)
            && self.changes[0] != 0
            && self.generation < u64::MAX
            && self.sequence < u64::MAX
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> [u8; N] {
    let (first, others) = rest.split_first_chunk().expect("shorter than a page");
    *rest = others;
    *first
}

/// The record of a leg, of both copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Copies {
    pub(super) record: LegRecord,
    /// The copy that the record was read from: the next write begins with the other one.
    pub(super) best: usize,
    /// Whether the other copy differs.
    pub(super) differ: bool,
}

impl Copies {
    /// What two pages say that lie at the end of a leg.
    pub(super) fn of(pages: [&Page; 2], end: u64) -> Result<Self, Unreadable> {
        let read = pages.map(|page| match LegRecord::decode(page) {
            // Somebody moved it.
            Ok(record) if record.end != end => Err(Unreadable::Damaged),
            read => read,
        });
        let best = match &read {
            [Err(Unreadable::Newer(version)), _] | [_, Err(Unreadable::Newer(version))] => {
                return Err(Unreadable::Newer(*version));
            }
            [Err(Unreadable::Nothing), Err(Unreadable::Nothing)] => {
                return Err(Unreadable::Nothing);
            }
            [Err(_), Err(_)] => return Err(Unreadable::Damaged),
            [Ok(first), Ok(second)] => usize::from(second.sequence > first.sequence),
            [first, _] => usize::from(first.is_err()),
        };
        let differ = pages[0] != pages[1];
        let record = read.into_iter().nth(best).expect("two").expect("the readable one");
        Ok(Self { record, best, differ })
    }

    /// The copies in the order of writing.
    pub(super) fn order(&self) -> [usize; 2] {
        [1 - self.best, self.best]
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn record(leg: usize, legs: usize) -> LegRecord {
        let end = 64 << 20;
        let mut changes = [0; CHANGES];
        changes[0] = 1;
        LegRecord {
            uuid: [7; 16],
            leg,
            legs,
            layout: Layout::of_end(end).expect("room"),
            end,
            in_use: Legs::first(legs),
            generation: 1,
            changes,
            sequence: 1,
        }
    }

    #[test]
    fn a_record_is_read_as_written() {
        let record = record(1, 3).changed(Legs(0b110), u64::MAX, [5, 6], 9);
        assert_eq!(record.changes[..4], [u64::MAX, 5, 6, 1]);
        let page = record.encode();
        assert_eq!(LegRecord::decode(&page), Ok(record.clone()));
        // A stable format: this much of it is at fixed places.
        assert_eq!(page[..12], *b"handoffM\x01\0\0\0");
        assert_eq!(page[32..36], [0b110, 0, 0, 0]);
        let mut changed = record.clone();
        for change in 100..200 {
            changed = changed.changed(Legs(0b110), change, [], change);
        }
        assert!(changed.changes.iter().eq((168..200).rev().collect::<Vec<_>>().iter()));
    }

    #[test]
    fn any_changed_byte_is_seen() {
        let page = record(0, 2).encode();
        for at in 0..page.len() {
            let mut damaged = page;
            damaged[at] ^= 1 << (at % 8);
            let expected = if at < 8 { Unreadable::Nothing } else { Unreadable::Damaged };
            assert_eq!(LegRecord::decode(&damaged), Err(expected), "{at}");
        }
        assert_eq!(LegRecord::decode(&[0; PAGE as usize]), Err(Unreadable::Nothing));
    }

    /// A page as another program would write it, with the right checksum.
    fn sealed(change: impl FnOnce(&mut Page)) -> Page {
        let mut page = record(0, 2).encode();
        change(&mut page);
        let sum = checksum(&page[..CHECKSUM_AT]);
        page[CHECKSUM_AT..].copy_from_slice(&sum.to_le_bytes());
        page
    }

    #[test]
    fn a_newer_version_is_told_from_damage() {
        let page = sealed(|page| page[8] = 2);
        assert_eq!(LegRecord::decode(&page), Err(Unreadable::Newer(2)));
        let good = record(0, 2).encode();
        for pages in [[&page, &good], [&good, &page]] {
            assert_eq!(Copies::of(pages, 64 << 20), Err(Unreadable::Newer(2)));
        }
    }

    #[test]
    fn nonsense_with_a_checksum_is_damage() {
        for (at, value) in [
            (12, 1u8),   // one leg
            (12, 17),    // too many
            (14, 2),     // a leg that the mirror does not have
            (32, 0),     // nobody in use
            (32, 0b100), // a leg that the mirror does not have
            (36, 19),    // a chunk too small
            (36, 27),    // too large
            (40, 1),     // a size between blocks
            (47, 0x7f),  // a size beyond the leg
            (48, 1),     // an end between pages
            (72, 0),     // no change
        ] {
            let page = sealed(|page| page[at] = value);
            assert_eq!(LegRecord::decode(&page), Err(Unreadable::Damaged), "{at}: {value}");
        }
    }

    #[test]
    fn the_newer_copy_counts_and_the_worse_is_written_first() {
        let first = record(0, 2);
        let second = LegRecord { sequence: 2, ..first.clone() };
        let pages = [first.encode(), second.encode(), [0xee; PAGE as usize]];
        let of = |one: usize, other: usize| Copies::of([&pages[one], &pages[other]], first.end);
        for (one, other, best, differ) in
            [(0, 1, 1, true), (1, 0, 0, true), (0, 0, 0, false), (2, 1, 1, true), (0, 2, 0, true)]
        {
            let copies = of(one, other).expect("a record");
            assert_eq!((copies.best, copies.differ), (best, differ), "{one} {other}");
            assert_eq!(copies.order(), [1 - best, best]);
            assert_eq!(copies.record.sequence, 1 + [one, other][best] as u64);
        }
        assert_eq!(of(2, 2), Err(Unreadable::Nothing));
        let mut damaged = pages[0];
        damaged[100] ^= 1;
        assert_eq!(Copies::of([&damaged, &damaged], first.end), Err(Unreadable::Damaged));
        assert_eq!(Copies::of([&damaged, &pages[2]], first.end), Err(Unreadable::Damaged));
        // A part of a disk that was copied to another place.
        assert_eq!(Copies::of([&pages[0], &pages[0]], 1 << 20), Err(Unreadable::Damaged));
    }
}
