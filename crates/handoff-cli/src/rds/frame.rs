//! The content of requests and answers of `handoff rds stress`.

/// Bytes at the beginning of each; the rest shows which message it belongs to.
pub(super) const HEAD: usize = 16;

/// The head of a request or an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) number: u64,
    /// Bytes of the requested answer.
    pub(super) answer: u32,
    pub(super) kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Request,
    Answer,
    /// A request that arrived changed.
    Corrupt,
}

impl Kind {
    fn mark(self) -> [u8; 4] {
        *match self {
            Self::Request => b"hoRQ",
            Self::Answer => b"hoAN",
            Self::Corrupt => b"hoCO",
        }
    }
}

/// The content of each word after the head: all differ, within a message and between two.
fn words(number: u64) -> impl Iterator<Item = [u8; 8]> {
    // Odd, with bits everywhere, so that neighbours differ in all their bytes.
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    let first = number.wrapping_mul(STEP.swap_bytes() | 1);
    (0_u64..).map(move |at| first.wrapping_add(at.wrapping_mul(STEP)).to_le_bytes())
}

/// Fills a message, which has room for the head.
pub(super) fn fill(bytes: &mut [u8], head: Head, pattern: bool) {
    let (start, rest) = bytes.split_at_mut(HEAD);
    start[..4].copy_from_slice(&head.kind.mark());
    start[4..8].copy_from_slice(&head.answer.to_le_bytes());
    start[8..].copy_from_slice(&head.number.to_le_bytes());
    if pattern {
        let mut words = words(head.number);
        // Whole words: with slices, a development build takes three times as long, and seven times for
        // comparing.
        let (whole, end) = rest.as_chunks_mut();
        for (place, word) in whole.iter_mut().zip(&mut words) {
            *place = word;
        }
        let last = words.next().expect("there is no end of them");
        end.copy_from_slice(&last[..end.len()]);
    }
}

/// The head, if it belongs to such a message.
pub(super) fn head(bytes: &[u8]) -> Option<Head> {
    let (start, _) = bytes.split_first_chunk::<HEAD>()?;
    let kind = [Kind::Request, Kind::Answer, Kind::Corrupt];
    let kind = kind.into_iter().find(|kind| start.starts_with(&kind.mark()))?;
    let answer = u32::from_le_bytes(*start[4..].first_chunk()?);
    Some(Head { number: u64::from_le_bytes(*start[8..].first_chunk()?), answer, kind })
}

/// Whether the bytes after the head are what [`fill`] put there.
pub(super) fn is_intact(bytes: &[u8], number: u64) -> bool {
    let mut words = words(number);
    let (whole, end) = bytes[HEAD..].as_chunks();
    whole.iter().zip(&mut words).all(|(found, word)| *found == word)
        && words.next().is_some_and(|last| end == &last[..end.len()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_changed_shows() {
        let mut bytes = [0; 300];
        let head = Head { number: 7 << 40, answer: 9, kind: Kind::Request };
        fill(&mut bytes, head, true);
        assert_eq!(super::head(&bytes), Some(head));
        assert!(is_intact(&bytes, head.number));
        assert!(!is_intact(&bytes, head.number + 1));
        bytes[299] ^= 1;
        assert!(!is_intact(&bytes, head.number));
        bytes[0] = 0;
        assert_eq!(super::head(&bytes), None);
        assert_eq!(super::head(&bytes[..15]), None);
    }
}
