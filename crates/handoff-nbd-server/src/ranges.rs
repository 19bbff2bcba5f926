//! Ranges of an export that are being written, on all threads.
//!
//! Contracts:
//! - whoever reads blocks and writes them back whole has them alone: no other write of these blocks is under way. Other
//!   writes go side by side, as the protocol leaves them to the client;
//! - those who wait go in the order in which they came.

use std::future::poll_fn;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

#[derive(Debug, Default)]
pub(crate) struct Ranges(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    next: u64,
    /// In the order in which they came.
    all: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    range: Range<u64>,
    alone: bool,
    waker: Option<Waker>,
}

impl Entry {
    fn excludes(&self, other: &Self) -> bool {
        (self.alone || other.alone)
            && self.range.start < other.range.end
            && other.range.start < self.range.end
    }
}

impl Ranges {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the range may be written.
    pub(crate) async fn take(&self, range: Range<u64>, alone: bool) -> Taken<'_> {
        let number = {
            let mut state = self.state();
            let number = state.next;
            state.next += 1;
            state.all.push(Entry { number, range, alone, waker: None });
            number
        };
        let taken = Taken { ranges: self, number };
        poll_fn(|context| {
            let mut state = self.state();
            let own = state.all.iter().position(|entry| entry.number == number);
            let own = own.expect("it goes with its owner");
            let (before, rest) = state.all.split_at_mut(own);
            if !before.iter().any(|entry| entry.excludes(&rest[0])) {
                return Poll::Ready(());
            }
            rest[0].waker = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
        taken
    }
}

/// A range that is taken, or waited for.
pub(crate) struct Taken<'a> {
    ranges: &'a Ranges,
    number: u64,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let wakers: Vec<_> = {
            let mut state = self.ranges.state();
            let own = state.all.iter().position(|entry| entry.number == self.number);
            let gone = own.map(|own| state.all.remove(own));
            let waits = |gone: &Entry| {
                let later = state.all.iter_mut().filter(|entry| gone.excludes(entry));
                later.filter_map(|entry| entry.waker.take()).collect()
            };
            gone.as_ref().map(waits).unwrap_or_default()
        };
        wakers.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn whoever_writes_blocks_back_has_them_alone() {
        let ranges = Ranges::default();
        let take = |range, alone| ranges.take(range, alone).now_or_never();
        let one = take(0..4096, false).expect("is free");
        let two = take(0..8192, false).expect("plain writes go side by side");
        assert!(take(4096..8192, true).is_none());
        drop(two);
        let alone = take(4096..8192, true).expect("is free");
        assert!(take(4096..4097, false).is_none());
        assert!(take(8192..8193, true).is_some());
        drop((one, alone));
        assert!(ranges.state().all.is_empty());
    }

    #[test]
    fn nobody_overtakes_who_waits() {
        let ranges = Ranges::default();
        let first = ranges.take(0..10, false).now_or_never().expect("is free");
        let mut waits = Box::pin(ranges.take(0..10, true));
        assert!(waits.as_mut().now_or_never().is_none());
        assert!(ranges.take(5..6, false).now_or_never().is_none());
        drop(first);
        assert!(waits.as_mut().now_or_never().is_some());
    }
}
