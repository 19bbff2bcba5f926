//! What was served, for people and for programs.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use handoff::Tally;
use handoff_command::clock::Clock;
use handoff_command::output;
use handoff_nbd_server::{Export, Served};
use serde::Serialize;

/// What one thread has served, or all of them.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) served: Served,
    /// What could be better.
    pub(super) notes: Vec<String>,
}

impl Counts {
    pub(super) fn add(&mut self, other: Self) {
        self.served.add(other.served);
        for note in other.notes {
            if !self.notes.contains(&note) {
                self.notes.push(note);
            }
        }
    }
}

#[derive(Debug, Serialize)]
struct Exported {
    name: String,
    path: String,
    bytes: u64,
    read_only: bool,
    temporary: bool,
    /// `direct` or `cache`.
    io: &'static str,
}

/// The result; its fields are those of `--json`.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    exports: Vec<Exported>,
    threads: u16,
    connections: u64,
    /// At once; of several threads, the sum of what each had.
    most_open: u64,
    /// For --from and --max-per-client.
    turned_away: u64,
    /// Connections that ended in a failure, by its reason.
    failures: BTreeMap<String, u64>,
    /// By what they ask for.
    requests: BTreeMap<&'static str, u64>,
    /// Requests that were answered by an error.
    refused: u64,
    bytes_read: u64,
    /// Of these, told as holes.
    bytes_of_holes: u64,
    bytes_written: u64,
    seconds: f64,
    bytes_per_s: f64,
    /// Of this process, in user and kernel mode.
    cpu_seconds: f64,
    /// Out of files.
    #[serde(serialize_with = "output::tally")]
    read: Tally,
    /// Into sockets.
    #[serde(serialize_with = "output::tally")]
    sent: Tally,
    /// Into files.
    #[serde(serialize_with = "output::tally")]
    written: Tally,
    /// Payload that came together with a header, and was copied once more.
    gathered: u64,
    /// Writes of parts of blocks, whose blocks were read first.
    filled_around: u64,
    notes: Vec<String>,
}

impl Report {
    pub(super) fn new(
        clock: &Clock,
        threads: u16,
        exports: &[Arc<Export>],
        counts: Counts,
    ) -> Self {
        let (seconds, cpu_seconds) = clock.read();
        let Counts { served, mut notes } = counts;
        notes.extend(exports.iter().filter_map(|export| export.note().map(str::to_owned)));
        let exported = |export: &Arc<Export>| Exported {
            name: export.name().to_owned(),
            path: export.path().display().to_string(),
            bytes: export.size(),
            read_only: export.is_read_only(),
            temporary: export.is_temporary(),
            io: if export.is_direct() { "direct" } else { "cache" },
        };
        Self {
            exports: exports.iter().map(exported).collect(),
            threads,
            connections: served.connections,
            most_open: served.most_open,
            turned_away: served.turned_away,
            failures: served.failures,
            requests: served.requests,
            refused: served.refused,
            bytes_read: served.bytes_read,
            bytes_of_holes: served.bytes_of_holes,
            bytes_written: served.bytes_written,
            seconds,
            bytes_per_s: (served.bytes_read + served.bytes_written) as f64 / seconds,
            cpu_seconds,
            read: served.read,
            sent: served.sent,
            written: served.written,
            gathered: served.gathered,
            filled_around: served.filled_around,
            notes,
        }
    }

    pub(super) fn text(&self) -> String {
        let mut text = format!(
            "{} connections, at most {} at once; {} bytes read, {} written in {:.3} s, {:.1} MB/s, {:.3} s of CPU\n",
            self.connections,
            self.most_open,
            self.bytes_read,
            self.bytes_written,
            self.seconds,
            self.bytes_per_s / 1e6,
            self.cpu_seconds,
        );
        for (what, requests) in &self.requests {
            let _ = writeln!(text, "  {what:15} {requests} requests");
        }
        if self.refused > 0 {
            let _ = writeln!(text, "  {} requests were answered by an error", self.refused);
        }
        let ways = [
            ("file -> server", self.read),
            ("server -> socket", self.sent),
            ("server -> file", self.written),
        ];
        for (way, tally) in ways {
            text.push_str(&output::tally_line(way, tally));
        }
        for (failure, count) in &self.failures {
            let _ = writeln!(text, "  failed {count} times: {failure}");
        }
        text
    }
}
