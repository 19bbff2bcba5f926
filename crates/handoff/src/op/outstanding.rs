//! The sends of a socket that wait for the error queue.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};

use handoff_sys::zerocopy::{self, Completion};

use crate::ring::Key;

/// Sends of a socket whose return the error queue has not reported.
#[derive(Default)]
pub(crate) struct Outstanding {
    /// The numbers of the open socket belong to this attachment.
    pub(crate) claimed: bool,
    /// Number of the next send.
    next: u32,
    /// The sends before that number, oldest first.
    pub(crate) sends: VecDeque<Numbered>,
    pub(crate) watched: bool,
    /// Sends that found no memory for another notification; they try again when one came.
    pub(crate) starved: Vec<Key>,
    /// A send failed so late that it may have a number. Later sends would seem returned too early, so they
    /// are copied.
    pub(crate) unsure: bool,
}

pub(crate) struct Numbered {
    pub(crate) key: Key,
    bytes: usize,
    returned: bool,
}

impl Outstanding {
    pub(crate) fn push(&mut self, key: Key, bytes: usize) {
        self.sends.push_back(Numbered { key, bytes, returned: false });
        self.next = self.next.wrapping_add(1);
    }

    /// Marks a range as returned; returns each of its sends once, with its bytes.
    pub(crate) fn returned(&mut self, range: Completion) -> Vec<(Key, usize)> {
        let base = self.next.wrapping_sub(self.sends.len() as u32);
        let count = range.last.wrapping_sub(range.first).wrapping_add(1);
        let start = range.first.wrapping_sub(base);
        let mut returned = Vec::new();
        for place in (0..count).map(|offset| start.wrapping_add(offset)) {
            if let Some(sent) = self.sends.get_mut(place as usize).filter(|sent| !sent.returned) {
                sent.returned = true;
                returned.push((sent.key, sent.bytes));
            }
        }
        while self.sends.front().is_some_and(|sent| sent.returned) {
            self.sends.pop_front();
        }
        returned
    }

    /// The socket is detached. Another attachment may begin at the first number, if that is unused.
    pub(crate) fn detach(&mut self, socket: &OwnedFd) {
        if self.claimed
            && self.next == 0
            && !self.unsure
            && let Err(error) = zerocopy::disable(socket.as_fd())
        {
            tracing::debug!(%error, "SO_ZEROCOPY stays set");
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ring::Token;

    fn key(index: u32) -> Key {
        Token::from_user_data(u64::from(index)).key
    }

    proptest! {
        /// Ranges in any order, overlapping or repeated, return each send once.
        #[test]
        fn every_send_returns_once(
            start in prop_oneof![Just(0u32), Just(u32::MAX - 3), any::<u32>()],
            count in 1u32..50,
            cuts in prop::collection::vec((0u32..50, 0u32..50), 0..40),
        ) {
            let mut outstanding = Outstanding { next: start, ..Outstanding::default() };
            for index in 0..count {
                outstanding.push(key(index), index as usize);
            }
            let mut seen = vec![0; count as usize];
            let all = cuts.into_iter().chain([(0, count - 1)]);
            for (a, b) in all {
                let (a, b) = (a.min(b).min(count - 1), a.max(b).min(count - 1));
                let range = Completion {
                    first: start.wrapping_add(a),
                    last: start.wrapping_add(b),
                    copied: false,
                };
                for (_, bytes) in outstanding.returned(range) {
                    seen[bytes] += 1;
                }
            }
            prop_assert!(seen.iter().all(|times| *times == 1));
            prop_assert!(outstanding.sends.is_empty());
        }
    }
}
