//! What is sent, and the check that it has arrived.
//!
//! The stream repeats a pattern of a prime number of pages. Its 8-byte words all differ, and sizes of
//! chunks and areas are powers of two, so lost, doubled or misplaced bytes show.

use std::sync::Arc;

const PAGE: usize = 4_096;
/// Bytes after which the stream repeats: they fit into caches, so checking costs little.
pub(crate) const PERIOD: usize = 61 * PAGE;
/// The factor that makes a word of its number. It is odd, so that no two words are the same.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// The pattern that the stream repeats.
pub(crate) struct Pattern {
    memory: Vec<u8>,
    start: usize,
}

impl Pattern {
    pub(crate) fn new() -> Arc<Self> {
        let mut memory = vec![0; PERIOD + PAGE];
        let start = memory.as_ptr().align_offset(PAGE);
        let words = memory[start..start + PERIOD].chunks_exact_mut(size_of::<u64>());
        for (word, number) in words.zip(1_u64..) {
            word.copy_from_slice(&number.wrapping_mul(SPREAD).to_le_bytes());
        }
        Arc::new(Self { memory, start })
    }

    /// One period of the stream, on pages of its own.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.memory[self.start..self.start + PERIOD]
    }
}

/// The receiving end of a stream; every engine hands its spans to it.
pub(crate) struct Stream {
    pattern: Arc<Pattern>,
    check: bool,
    position: u64,
    wrong: Option<u64>,
}

impl Stream {
    /// Begins a stream. With `check`, it compares every byte.
    pub(crate) fn new(pattern: Arc<Pattern>, check: bool) -> Self {
        Self { pattern, check, position: 0, wrong: None }
    }

    /// Takes the next bytes in.
    #[inline]
    pub(crate) fn take(&mut self, span: &[u8]) {
        if self.check {
            self.compare(span);
        }
        self.position += span.len() as u64;
    }

    #[inline(never)]
    fn compare(&mut self, span: &[u8]) {
        if !self.is_next(span) {
            self.wrong.get_or_insert(self.position);
        }
    }

    fn is_next(&self, span: &[u8]) -> bool {
        let mut at = (self.position % PERIOD as u64) as usize;
        let mut rest = span;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(PERIOD - at));
            if now != &self.pattern.bytes()[at..at + now.len()] {
                return false;
            }
            (rest, at) = (later, 0);
        }
        true
    }

    /// Bytes taken in so far.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Checks that all bytes so far were those that were sent.
    ///
    /// # Errors
    ///
    /// If a span was not what was sent, in one line.
    pub(crate) fn verdict(&self) -> Result<(), String> {
        let told = |at| format!("what arrived at byte {at} or soon behind is not what was sent");
        self.wrong.map_or(Ok(()), |at| Err(told(at)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(check: bool) -> (Stream, Vec<u8>) {
        let pattern = Pattern::new();
        let sent = pattern.bytes().repeat(3);
        (Stream::new(pattern, check), sent)
    }

    #[test]
    fn what_was_sent_is_right_in_pieces_of_any_size() {
        for piece in [1, 7, 4_096, 65_536, PERIOD, PERIOD + 1, 3 * PERIOD] {
            let (mut stream, sent) = stream(true);
            sent.chunks(piece).for_each(|span| stream.take(span));
            assert_eq!(stream.position(), sent.len() as u64);
            assert_eq!(stream.verdict(), Ok(()), "pieces of {piece}");
        }
    }

    #[test]
    fn a_chunk_in_the_place_of_another_is_wrong() {
        for chunk in [4_096, 16_384, 65_536] {
            let (mut stream, mut sent) = stream(true);
            sent.copy_within(2 * chunk..3 * chunk, chunk);
            sent.chunks(chunk).for_each(|span| stream.take(span));
            assert!(stream.verdict().unwrap_err().contains(&chunk.to_string()), "{chunk}");
        }
    }

    #[test]
    fn one_byte_too_much_or_wrong_shows_only_to_who_looks() {
        for check in [true, false] {
            let (mut wrong, mut sent) = stream(check);
            sent[2 * PERIOD - 1] ^= 1;
            wrong.take(&sent);
            assert_eq!(wrong.verdict().is_err(), check);
            let (mut doubled, sent) = stream(check);
            doubled.take(&sent[..10]);
            doubled.take(&sent[9..]);
            assert_eq!(doubled.verdict().is_err(), check);
        }
    }
}
