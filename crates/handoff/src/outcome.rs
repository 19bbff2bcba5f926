//! What happened to lent bytes: whether the CPU copied them.
//!
//! "Copied" means bytes that a CPU moved from buffer to buffer, as far as the kernel reports it for this
//! hop. "Ciphered" means bytes that a cipher's pass moved, and nothing else. Without a report, bytes are unknown; they
//! never count as not copied.

use std::fmt;
use std::ops::AddAssign;

/// The verdict over all bytes of one lend.
///
/// ```
/// use handoff::{Outcome, Tally};
///
/// let tally = Tally { zero_copy: 60_000, copied: 48, ..Tally::default() };
/// assert_eq!(tally.outcome(), Outcome::Mixed);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Every byte went without a copy.
    ZeroCopy,
    /// Every byte was copied.
    Copied,
    /// Every byte was moved by a cipher's pass, and by no other.
    Ciphered,
    /// Bytes differ: some were copied or ciphered, and others were not, or are unknown.
    Mixed,
    /// The kernel does not report it for this mechanism.
    Unknown,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ZeroCopy => "zero-copy",
            Self::Copied => "copied",
            Self::Ciphered => "ciphered",
            Self::Mixed => "mixed",
            Self::Unknown => "unknown",
        })
    }
}

/// Bytes by what happened to them.
///
/// ```
/// use handoff::Tally;
///
/// let mut sum = Tally { zero_copy: 4096, ..Tally::default() };
/// sum += Tally { copied: 100, ..Tally::default() };
/// assert_eq!((sum.total(), sum.copied), (4196, 100));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Bytes that went without a copy.
    pub zero_copy: u64,
    /// Bytes that were copied.
    pub copied: u64,
    /// Bytes that a cipher's pass moved, which read them where they lay and wrote what goes over the network.
    pub ciphered: u64,
    /// Bytes without a report.
    pub unknown: u64,
}

impl Tally {
    /// All bytes.
    pub fn total(&self) -> u64 {
        self.zero_copy + self.copied + self.ciphered + self.unknown
    }

    /// The verdict over all bytes. A lend of no bytes had nothing to copy.
    pub fn outcome(&self) -> Outcome {
        match (self.zero_copy, self.copied, self.ciphered, self.unknown) {
            (_, 0, 0, 0) => Outcome::ZeroCopy,
            (0, _, 0, 0) => Outcome::Copied,
            (0, 0, _, 0) => Outcome::Ciphered,
            (0, 0, 0, _) => Outcome::Unknown,
            _ => Outcome::Mixed,
        }
    }

    /// Adds `bytes`, of which the kernel reports `copied`; `None` if it reports nothing.
    pub(crate) fn count(&mut self, bytes: u64, copied: Option<bool>) {
        match copied {
            Some(false) => self.zero_copy += bytes,
            Some(true) => self.copied += bytes,
            None => self.unknown += bytes,
        }
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.zero_copy += other.zero_copy;
        self.copied += other.copied;
        self.ciphered += other.ciphered;
        self.unknown += other.unknown;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_is_pure_only_when_all_bytes_agree() {
        let tally = |zero_copy, copied, unknown| {
            Tally { zero_copy, copied, unknown, ..Tally::default() }.outcome()
        };
        assert_eq!(tally(0, 0, 0), Outcome::ZeroCopy);
        assert_eq!(tally(5, 0, 0), Outcome::ZeroCopy);
        assert_eq!(tally(0, 5, 0), Outcome::Copied);
        assert_eq!(tally(0, 0, 5), Outcome::Unknown);
        assert_eq!(tally(1, 1, 0), Outcome::Mixed);
        assert_eq!(tally(1, 0, 1), Outcome::Mixed);
        assert_eq!(tally(0, 1, 1), Outcome::Mixed);
        let ciphered = Tally { ciphered: 3, ..Tally::default() };
        assert_eq!((ciphered.outcome(), ciphered.total()), (Outcome::Ciphered, 3));
        assert_eq!(Tally { copied: 1, ..ciphered }.outcome(), Outcome::Mixed);
    }
}
