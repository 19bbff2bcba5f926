//! What came by the queues of a NIC: how much, how much of it was copied, and how much memory it needed.

use std::fmt::Write as _;

use handoff::{RxQueue, RxStats, Tally};
use handoff_command::growth::Growth;
use serde::Serialize;

/// The part of a report about the queues; its fields are those of `--json`.
#[derive(Debug, Clone, Serialize)]
pub struct Arrived {
    queues: usize,
    /// Received by the queues, frames included, first words not.
    bytes: u64,
    /// Of these, copied ones by the kernel's count; `null` if it does not count.
    copied: Option<u64>,
    /// Several threads received from one queue: the kernel may have lost some of that count.
    shared: bool,
    /// How often the kernel reported that it found no free chunk.
    shortages: u64,
    /// Bytes of a chunk.
    chunk: usize,
    /// Chunks that the NIC had at the end, and the most that it could have had.
    chunks: usize,
    chunks_limit: usize,
    /// When the memory of a queue grew.
    growth: Vec<Growth>,
    /// Why it did not grow further, if it should have.
    growth_stopped: Option<String>,
}

impl Arrived {
    /// Everything that came by the queue.
    pub fn by(queue: &RxQueue) -> Self {
        Self::since(&RxStats::default(), queue)
    }

    /// What came by the queue since an earlier count.
    pub fn since(before: &RxStats, queue: &RxQueue) -> Self {
        let RxStats { bytes, copied, shared, shortages, .. } = queue.stats();
        let copied = copied.map(|copied| copied.saturating_sub(before.copied.unwrap_or(0)));
        Self {
            queues: 1,
            bytes: bytes - before.bytes,
            copied,
            shared,
            shortages,
            chunk: queue.chunk(),
            chunks: queue.chunks(),
            chunks_limit: queue.chunks_limit(),
            growth: Growth::of(queue),
            growth_stopped: queue.growth_stopped(),
        }
    }

    /// What came by these queues and by others.
    pub fn and(self, others: Self) -> Self {
        let mut growth = [self.growth, others.growth].concat();
        growth.sort_by(|one, other| one.after_s.total_cmp(&other.after_s));
        Self {
            queues: self.queues + others.queues,
            bytes: self.bytes + others.bytes,
            copied: self.copied.zip(others.copied).map(|(ours, theirs)| ours + theirs),
            shared: self.shared || others.shared,
            shortages: self.shortages + others.shortages,
            chunk: self.chunk,
            chunks: self.chunks + others.chunks,
            chunks_limit: self.chunks_limit + others.chunks_limit,
            growth,
            growth_stopped: self.growth_stopped.or(others.growth_stopped),
        }
    }

    /// The receivers' tallies. With several receivers their copies are unknown one by one; together they are the
    /// queues' counts. If several threads had some copied, the rest stays unknown.
    pub fn settle(&self, tally: Tally) -> Tally {
        let Some(counted) = self.copied else { return tally };
        // Bytes that came another way were copied as well, and are not in the count.
        let by_another_way = tally.total().saturating_sub(self.bytes);
        let known = tally.copied.saturating_sub(by_another_way);
        let copied = counted.saturating_sub(known).min(tally.unknown);
        let rest = tally.unknown - copied;
        let (zero_copy, unknown) = match self.shared && counted > 0 {
            true => (0, rest),
            false => (rest, 0),
        };
        Tally {
            zero_copy: tally.zero_copy + zero_copy,
            copied: tally.copied + copied,
            unknown,
            ..tally
        }
    }

    /// The report for people.
    pub fn text(&self) -> String {
        let megabytes = |bytes: usize| format!("{:.1} MB", bytes as f64 / 1e6);
        let copied = match self.copied {
            Some(0) => "nothing copied".to_owned(),
            Some(copied) => {
                let at_least = if self.shared { "at least " } else { "" };
                format!("{at_least}{} of it copied by the kernel", megabytes(copied as usize))
            }
            None => "what of it was copied is unknown".to_owned(),
        };
        let received = megabytes(self.bytes as usize);
        let mut text = format!("  received by the card into our memory: {received}, {copied}\n");
        for step in &self.growth {
            let memory = megabytes(step.chunks * self.chunk);
            let _ = writeln!(
                text,
                "  memory for the card: {memory} after {:.3} s ({})",
                step.after_s, step.cause
            );
        }
        if let Some(reason) = &self.growth_stopped {
            let _ = writeln!(text, "  memory for the card: no more than that: {reason}");
        }
        if self.shortages > 0 {
            let times = match self.shortages {
                1 => "once".to_owned(),
                times => format!("{times} times"),
            };
            let _ = writeln!(text, "  the card found no free memory {times}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrived() -> Arrived {
        Arrived {
            queues: 1,
            bytes: 1_234_567_890,
            copied: Some(0),
            shared: false,
            shortages: 0,
            chunk: 4_096,
            chunks: 2_000,
            chunks_limit: 4_000,
            growth: Vec::new(),
            growth_stopped: None,
        }
    }

    #[test]
    fn text_says_what_came_and_what_grew() {
        let plain = arrived().text();
        assert_eq!(plain, "  received by the card into our memory: 1234.6 MB, nothing copied\n");
        let step = Growth { after_s: 0.25, chunks: 2_000, cause: "no free chunk".to_owned() };
        let grown = Arrived {
            copied: Some(2_000_000),
            shortages: 2,
            growth: vec![step],
            growth_stopped: Some("no memory".to_owned()),
            ..arrived()
        };
        let text = grown.text();
        for line in [
            "1234.6 MB, 2.0 MB of it copied by the kernel",
            "memory for the card: 8.2 MB after 0.250 s (no free chunk)",
            "no more than that: no memory",
            "the card found no free memory 2 times",
        ] {
            assert!(text.contains(line), "{line:?} in {text}");
        }
        let json = serde_json::to_value(&grown).expect("has a form");
        assert_eq!((&json["growth"][0]["chunks"], &json["chunk"]), (&2_000.into(), &4_096.into()));
        assert!(Arrived { copied: None, ..arrived() }.text().contains("is unknown"));
    }

    #[test]
    fn queues_add_up() {
        let step =
            |after_s| vec![Growth { after_s, chunks: 2_000, cause: "no free chunk".to_owned() }];
        let one = Arrived { copied: Some(7), shortages: 1, growth: step(0.5), ..arrived() };
        let other = Arrived { copied: Some(5), shared: true, growth: step(0.25), ..arrived() };
        let both = one.clone().and(other);
        assert_eq!((both.queues, both.bytes), (2, 2 * 1_234_567_890));
        assert_eq!((both.copied, both.shared, both.shortages), (Some(12), true, 1));
        assert_eq!((both.chunk, both.chunks, both.chunks_limit), (4_096, 4_000, 8_000));
        assert_eq!(both.growth.iter().map(|step| step.after_s).collect::<Vec<_>>(), [0.25, 0.5]);
        assert_eq!(one.and(Arrived { copied: None, ..arrived() }).copied, None);
    }

    fn told(zero_copy: u64, copied: u64, unknown: u64) -> Tally {
        Tally { zero_copy, copied, unknown, ..Tally::default() }
    }

    #[test]
    fn receivers_together_have_what_the_queue_counted() {
        let queue = |copied| Arrived { copied, ..arrived() };
        assert_eq!(queue(Some(30)).settle(told(5, 0, 100)), told(75, 30, 0));
        assert_eq!(queue(Some(0)).settle(told(0, 0, 100)), told(100, 0, 0));
        // Known counts stay.
        assert_eq!(queue(Some(30)).settle(told(70, 30, 0)), told(70, 30, 0));
        assert_eq!(queue(None).settle(told(0, 0, 100)), told(0, 0, 100));
    }

    #[test]
    fn of_what_several_threads_had_copied_the_count_is_the_least() {
        let queue = |copied| Arrived { copied: Some(copied), shared: true, ..arrived() };
        assert_eq!(queue(0).settle(told(5, 0, 100)), told(105, 0, 0));
        assert_eq!(queue(30).settle(told(5, 0, 100)), told(5, 30, 70));
        assert!(queue(2_000_000).text().contains(", at least 2.0 MB of it copied"));
    }

    /// One receiver was alone first, and knows its 30; two others came later, with 20 more.
    #[test]
    fn what_a_receiver_knew_is_not_counted_again() {
        let by_queue = Arrived { bytes: 200, copied: Some(50), ..arrived() };
        assert_eq!(by_queue.settle(told(70, 30, 100)), told(150, 50, 0));
        // 1,000 of the first one's were received into a pool.
        assert_eq!(by_queue.settle(told(70, 1_030, 100)), told(150, 1_050, 0));
    }
}
