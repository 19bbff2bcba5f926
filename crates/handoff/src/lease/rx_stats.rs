//! What an rx queue has received, in counts.

use crate::outcome::Tally;

/// What an rx queue has received so far, by all drivers that receive from it.
///
/// ```no_run
/// # async fn example(queue: handoff::RxQueue) -> Result<(), Box<dyn std::error::Error>> {
/// let stats = queue.stats();
/// println!("{} bytes, copied {:?}; no chunk {} times", stats.bytes, stats.copied, stats.shortages);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RxStats {
    /// Spans handed out.
    pub spans: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Of these, bytes of packets' payload that the kernel copied into chunks, by its own count: packets that came by
    /// another way than the queue. It does not count what it copies out of packets' headers (payload below the
    /// split's threshold). `None` where the kernel doesn't count (before Linux 7.2). A lower bound where the queue is
    /// [shared](Self::shared): the kernel may lose counts when several rings count at once.
    pub copied: Option<u64>,
    /// Other drivers may receive from the queue ([`RxQueue::export`](crate::RxQueue::export)), or may have done so.
    pub shared: bool,
    /// How often the kernel reported that the NIC's ring found no free chunk; at most ten times a second.
    /// Always 0 before Linux 7.2.
    pub shortages: u64,
    /// How often the refill queue was flushed, because the kernel needed its entries at once.
    pub flushes: u64,
}

impl RxStats {
    /// Bytes by the kernel's count. The count belongs to the queue: unlike a receiver's tally, it is known also where
    /// several connections share the queue. Where several drivers share it, the tally is known if nothing was copied;
    /// otherwise bytes not counted as copied are unknown.
    pub fn tally(&self) -> Tally {
        match self.copied {
            Some(copied) => {
                let copied = copied.min(self.bytes);
                let rest = self.bytes - copied;
                let (zero_copy, unknown) = match self.shared && copied > 0 {
                    true => (0, rest),
                    false => (rest, 0),
                };
                Tally { zero_copy, copied, unknown, ..Tally::default() }
            }
            None => Tally { unknown: self.bytes, ..Tally::default() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_drivers_that_share_a_queue_had_copied_is_at_least_what_was_counted() {
        let stats = |shared, copied| RxStats { bytes: 100, copied, shared, ..RxStats::default() };
        let told =
            |zero_copy, copied, unknown| Tally { zero_copy, copied, unknown, ..Tally::default() };
        for shared in [false, true] {
            assert_eq!(stats(shared, Some(0)).tally(), told(100, 0, 0));
            assert_eq!(stats(shared, Some(200)).tally(), told(0, 100, 0));
            assert_eq!(stats(shared, None).tally(), told(0, 0, 100));
        }
        assert_eq!(stats(false, Some(30)).tally(), told(70, 30, 0));
        assert_eq!(stats(true, Some(30)).tally(), told(0, 30, 70));
    }
}
