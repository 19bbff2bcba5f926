//! What was served, for people and for programs.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use handoff::{Engine, Tally};
use handoff_command::clock::Clock;
use handoff_command::output;
use handoff_http::Served;
use serde::Serialize;

/// What one thread has served, or all of them.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) served: Served,
    /// Answers, by their status.
    pub(super) statuses: BTreeMap<u16, u64>,
    /// Who ciphered connections, each with why.
    pub(super) ciphers: Vec<(Engine, String)>,
    /// What could be better.
    pub(super) notes: Vec<String>,
}

impl Counts {
    pub(super) fn add(&mut self, other: Self) {
        self.served.add(&other.served);
        for (status, answers) in other.statuses {
            *self.statuses.entry(status).or_default() += answers;
        }
        for cipher in other.ciphers {
            if !self.ciphers.contains(&cipher) {
                self.ciphers.push(cipher);
            }
        }
        for note in other.notes {
            if !self.notes.contains(&note) {
                self.notes.push(note);
            }
        }
    }
}

/// The result; its fields are those of `--json`.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    threads: u16,
    connections: u64,
    /// At once; of several threads, the sum of what each had.
    most_open: u64,
    /// For --from and --max-per-client.
    turned_away: u64,
    /// Idle ones, closed for others.
    displaced: u64,
    requests: u64,
    /// Answers to them, by status.
    statuses: BTreeMap<u16, u64>,
    /// Malformed, too large or too slow; most are not among the requests.
    refused: u64,
    /// Requests that a bug of this program failed: answered 500, and not among the statuses.
    failed: u64,
    /// Answers that ended early.
    cut_short: u64,
    /// Connections over TLS.
    tls: Option<OverTls>,
    /// Heads included.
    bytes: u64,
    seconds: f64,
    bytes_per_s: f64,
    requests_per_s: f64,
    /// Of this process, in user and kernel mode.
    cpu_seconds: f64,
    /// Out of files.
    #[serde(serialize_with = "output::tally")]
    taken: Tally,
    /// Into sockets.
    #[serde(serialize_with = "output::tally")]
    given: Tally,
    notes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct OverTls {
    /// Connections that the kernel ciphered.
    by_kernel: u64,
    /// Connections that this process ciphered.
    by_process: u64,
    /// Handshakes that failed, or took too long.
    refused_handshakes: u64,
    /// Who ciphered, each with why.
    ciphers: Vec<Ciphers>,
}

#[derive(Debug, Serialize)]
struct Ciphers {
    engine: &'static str,
    why: String,
}

impl OverTls {
    fn new(served: &Served, ciphers: Vec<(Engine, String)>) -> Self {
        let ciphers = ciphers.into_iter();
        Self {
            by_kernel: served.tls_by_kernel,
            by_process: served.tls_by_process,
            refused_handshakes: served.tls_refused,
            ciphers: ciphers.map(|(engine, why)| Ciphers { engine: engine.name(), why }).collect(),
        }
    }
}

impl Report {
    pub(super) fn new(clock: &Clock, threads: u16, is_tls: bool, counts: Counts) -> Self {
        let (seconds, cpu_seconds) = clock.read();
        let Counts { served, statuses, ciphers, notes } = counts;
        let bytes = served.sent.total();
        Self {
            threads,
            connections: served.connections,
            most_open: served.most_open,
            turned_away: served.turned_away,
            displaced: served.displaced,
            requests: served.requests,
            statuses,
            refused: served.refused,
            failed: served.failed,
            cut_short: served.cut_short,
            tls: is_tls.then(|| OverTls::new(&served, ciphers)),
            bytes,
            seconds,
            bytes_per_s: bytes as f64 / seconds,
            requests_per_s: served.requests as f64 / seconds,
            cpu_seconds,
            taken: served.read,
            given: served.sent,
            notes,
        }
    }

    pub(super) fn text(&self) -> String {
        let mut text = format!(
            "{} connections, at most {} at once; {} requests, {} refused, {} failed, {} cut short; {} bytes in \
             {:.3} s, {:.1} MB/s, {:.3} s of CPU\n",
            self.connections,
            self.most_open,
            self.requests,
            self.refused,
            self.failed,
            self.cut_short,
            self.bytes,
            self.seconds,
            self.bytes_per_s / 1e6,
            self.cpu_seconds,
        );
        for (status, answers) in &self.statuses {
            let _ = writeln!(text, "  {status:<15} {answers} answers");
        }
        if let Some(tls) = &self.tls {
            let _ = writeln!(
                text,
                "  TLS             {} connections ciphered by the kernel, {} by this process; {} handshakes refused",
                tls.by_kernel, tls.by_process, tls.refused_handshakes,
            );
            for Ciphers { engine, why } in &tls.ciphers {
                let _ = writeln!(text, "  {engine:<15} {why}");
            }
        }
        for (way, tally) in [("file -> serve", self.taken), ("serve -> socket", self.given)] {
            text.push_str(&output::tally_line(way, tally));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_requests_are_told() {
        let served = Served { failed: 3, ..Served::default() };
        let mut counts = Counts::default();
        counts.add(Counts { served, ..Counts::default() });
        let report = Report::new(&Clock::start(), 1, false, counts);
        assert!(report.text().contains(", 3 failed, "), "{}", report.text());
        assert_eq!(serde_json::to_value(&report).expect("is JSON")["failed"], 3);
    }
}
