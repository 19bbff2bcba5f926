//! Sets of a mirror's legs.

use std::fmt;

use crate::request::FILES;

/// Some legs, by bit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Legs(pub(super) u32);

impl Legs {
    /// The first ones.
    pub(super) fn first(count: usize) -> Self {
        Self(((1u64 << count) - 1) as u32)
    }

    pub(super) fn one(leg: usize) -> Self {
        Self(1 << leg)
    }

    pub(super) fn has(self, leg: usize) -> bool {
        self.0 >> leg & 1 != 0
    }

    pub(super) fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(super) fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub(super) fn common(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub(super) fn is_within(self, other: Self) -> bool {
        self.without(other).is_empty()
    }

    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(super) fn iter(self) -> impl Iterator<Item = usize> {
        (0..FILES).filter(move |leg| self.has(*leg))
    }
}

impl FromIterator<usize> for Legs {
    fn from_iter<I: IntoIterator<Item = usize>>(legs: I) -> Self {
        legs.into_iter().fold(Self::default(), |all, leg| all.with(Self::one(leg)))
    }
}

/// `leg 1`, or `legs 1, 2`.
impl fmt::Display for Legs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<_> = self.iter().map(|leg| leg.to_string()).collect();
        let word = if numbers.len() == 1 { "leg" } else { "legs" };
        write!(f, "{word} {}", numbers.join(", "))
    }
}
