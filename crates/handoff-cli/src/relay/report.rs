//! What a relay came to, for a person and for a program.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use handoff::Tally;
use handoff_command::clock::Clock;
use handoff_command::output;
use handoff_net::arrived::Arrived;
use serde::Serialize;

use super::counters::{Counts, Totals};

/// The result; its fields are those of `--json`.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) connections: u64,
    /// Of these, by each thread.
    threads: Vec<u64>,
    /// At once.
    most_open: u64,
    pub(super) failed: u64,
    /// For --max-per-client.
    pub(super) turned_away: u64,
    /// For --from.
    pub(super) refused: u64,
    failures: BTreeMap<String, u64>,
    /// From clients to the target.
    pub(super) bytes_up: u64,
    pub(super) bytes_down: u64,
    seconds: f64,
    bytes_per_s: f64,
    /// Of this process, in user and kernel mode.
    cpu_seconds: f64,
    /// Directions that ended, by the engine that served last.
    pub(super) engines: BTreeMap<&'static str, u64>,
    /// On the way out of sockets; of directions that ended.
    #[serde(serialize_with = "output::tally")]
    pub(super) taken: Tally,
    /// On the way into sockets.
    #[serde(serialize_with = "output::tally")]
    pub(super) given: Tally,
    /// Of the queue that clients' payload was received from; `null` without --nic.
    nic: Option<Arrived>,
    notes: Vec<String>,
}

impl Report {
    pub(super) fn new(clock: &Clock, Totals { notes, counts: of_threads, nic }: Totals) -> Self {
        let (seconds, cpu_seconds) = clock.read();
        let threads = of_threads.values().map(|counts| counts.connections).collect();
        let mut counts = Counts::default();
        of_threads.into_values().for_each(|of_thread| counts.add(of_thread));
        let by_queue = counts.taken_by_queue;
        counts.taken += nic.as_ref().map_or(by_queue, |nic| nic.settle(by_queue));
        Self {
            connections: counts.connections,
            threads,
            most_open: counts.most_open,
            failed: counts.failed,
            turned_away: counts.turned_away,
            refused: counts.refused,
            failures: counts.failures,
            bytes_up: counts.up,
            bytes_down: counts.down,
            seconds,
            bytes_per_s: (counts.up + counts.down) as f64 / seconds,
            cpu_seconds,
            engines: counts.engines,
            taken: counts.taken,
            given: counts.given,
            nic,
            notes,
        }
    }

    pub(super) fn text(&self) -> String {
        let mut text = format!(
            "{} connections, at most {} at once, {} failed; {} bytes up, {} down in {:.3} s, {:.1} MB/s, \
             {:.3} s of CPU\n",
            self.connections,
            self.most_open,
            self.failed,
            self.bytes_up,
            self.bytes_down,
            self.seconds,
            self.bytes_per_s / 1e6,
            self.cpu_seconds,
        );
        for (engine, directions) in &self.engines {
            let _ = writeln!(text, "  {engine:15} {directions} directions");
        }
        for (way, tally) in [("socket -> relay", self.taken), ("relay -> socket", self.given)] {
            text.push_str(&output::tally_line(way, tally));
        }
        if let Some(nic) = &self.nic {
            text.push_str(&nic.text());
        }
        for (failure, count) in &self.failures {
            let _ = writeln!(text, "  failed {count} times: {failure}");
        }
        text
    }
}
