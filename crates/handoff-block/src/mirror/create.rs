//! The records of a new mirror. Whether its legs may be overwritten is not asked here.

use super::layout::{self, Layout};
use super::leg_record::{CHANGES, LegRecord};
use super::legs::Legs;

/// A leg is shorter than the room of the smallest mirror.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path} has {len} bytes, and a leg takes {} or more", Layout::least_end())]
pub(super) struct TooSmall {
    path: String,
    len: u64,
}

/// What to write to legs of these lengths, after their bitmaps are clear. `uuid` and `change` are random, and `change`
/// is not 0.
pub(super) fn create(
    legs: &[(String, u64)],
    uuid: [u8; 16],
    change: u64,
) -> Result<Vec<LegRecord>, TooSmall> {
    let too_small = legs.iter().find(|(_, len)| layout::end(*len) < Layout::least_end());
    if let Some((path, len)) = too_small {
        return Err(TooSmall { path: path.clone(), len: *len });
    }
    let least = legs.iter().map(|(_, len)| layout::end(*len)).min().unwrap_or_default();
    let layout = Layout::of_end(least).expect("the smallest leg has room");
    let mut changes = [0; CHANGES];
    changes[0] = change;
    let of = |(leg, (_, len)): (usize, &(String, u64))| LegRecord {
        uuid,
        leg,
        legs: legs.len(),
        layout,
        end: layout::end(*len),
        in_use: Legs::first(legs.len()),
        generation: 1,
        changes,
        sequence: 0,
    };
    Ok(legs.iter().enumerate().map(of).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_leg_decides_and_each_record_lies_at_its_own_end() {
        let legs = [("a".to_owned(), (64 << 20) + 5), ("b".to_owned(), 80 << 20)];
        let records = create(&legs, [1; 16], 7).expect("room");
        assert_eq!(records[0].layout, records[1].layout);
        assert_eq!(records.iter().map(|it| it.end).collect::<Vec<_>>(), [64 << 20, 80 << 20]);
        for record in records {
            assert_eq!(LegRecord::decode(&record.encode()), Ok(record));
        }
    }

    #[test]
    fn a_leg_without_room_is_refused() {
        let legs = [("a".to_owned(), 64 << 20), ("b".to_owned(), 81919)];
        let refused = create(&legs, [1; 16], 7).expect_err("too small").to_string();
        assert_eq!(refused, "b has 81919 bytes, and a leg takes 81920 or more");
    }
}
