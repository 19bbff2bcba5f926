//! Refused connections, reported together at most once a second.

use std::cell::{Cell, RefCell};
use std::fmt::Display;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Time between two lines.
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(super) struct Refusals {
    /// Refusals not reported yet.
    count: Cell<u64>,
    /// The last of them, and why it was.
    last: RefCell<Option<(Option<IpAddr>, String)>>,
    reported: Cell<Option<Instant>>,
}

impl Refusals {
    /// One more, of this peer if we know that.
    pub(super) fn note(&self, peer: Option<IpAddr>, reason: &dyn Display, now: Instant) {
        self.count.set(self.count.get() + 1);
        *self.last.borrow_mut() = Some((peer, reason.to_string()));
        self.tell(now);
    }

    /// When to report.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let reported = self.reported.get().filter(|_| self.count.get() > 0);
        reported.map(|at| at + PAUSE)
    }

    /// Reports what there is, if it is time; returns whether it did.
    pub(super) fn tell(&self, now: Instant) -> bool {
        let early = self.reported.get().is_some_and(|at| now < at + PAUSE);
        let last = self.last.borrow();
        let (Some((peer, reason)), 1.., false) = (&*last, self.count.get(), early) else {
            return false;
        };
        let (refused, peer) = (self.count.replace(0), peer.map(tracing::field::display));
        tracing::warn!(refused, peer, %reason, "connections are not taken; the last is named");
        self.reported.set(Some(now));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Reason;

    #[test]
    fn many_refusals_are_told_once_a_second_and_all_of_them() {
        let (refusals, begin) = (Refusals::default(), Instant::now());
        let mut told = 0;
        for number in 0..1000 {
            let before = refusals.reported.get();
            let now = begin + Duration::from_millis(number);
            refusals.note(Some([192, 0, 2, 1].into()), &Reason::TooManyPeers(4), now);
            told += u32::from(refusals.reported.get() != before);
        }
        assert_eq!((told, refusals.count.get()), (1, 999));
        assert_eq!(refusals.deadline(), Some(begin + PAUSE));
        assert!(refusals.tell(begin + PAUSE));
        assert_eq!((refusals.count.get(), refusals.deadline()), (0, None));
        assert!(!refusals.tell(begin + 2 * PAUSE));
    }
}
