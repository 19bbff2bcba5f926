//! Puts a message together that comes in pieces.
//!
//! Memory grows with what came. The caller compares the length with its limit first.

/// The bytes of a message that have come.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gather(Vec<u8>);

impl Gather {
    /// Takes what lacks to `want` bytes; returns how many it took, and whether all are there.
    pub(crate) fn fill(&mut self, input: &[u8], want: usize) -> (usize, bool) {
        let taken = input.len().min(want.saturating_sub(self.0.len()));
        self.0.extend_from_slice(&input[..taken]);
        (taken, self.0.len() >= want)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// All that came; what follows is another message.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.0)
    }

    /// Forgets the message. Memory of one much larger than headers is freed.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
        self.0.shrink_to(256);
    }
}
