//! The result of a copy: bytes, time, CPU, and for each hop how much was copied.

use std::fmt::Write as _;

use handoff::Tally;
use handoff::tls::TlsSession;
use handoff_command::clock::Clock;
use handoff_command::output;
use handoff_net::arrived::Arrived;
use serde::Serialize;

use crate::checksum::{CHECKSUM, hexadecimal};
use crate::order::Order;

/// One hop of the bytes from buffer to buffer.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Hop {
    pub(crate) from: &'static str,
    pub(crate) to: &'static str,
    pub(crate) engine: String,
    pub(crate) reason: String,
    #[serde(flatten, serialize_with = "output::tally")]
    pub(crate) tally: Tally,
}

/// The result of a copy; its fields are those of `--json`.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) source: String,
    pub(crate) destination: String,
    /// Of the payload.
    pub(crate) bytes: u64,
    /// Of those, bytes of holes, which were not moved.
    pub(crate) holes: u64,
    pub(crate) seconds: f64,
    pub(crate) bytes_per_s: f64,
    /// Of this process, in user and kernel mode, during the transfer.
    pub(crate) cpu_seconds: f64,
    pub(crate) streams: usize,
    /// Of these, by each thread that received; none if this side did not.
    pub(crate) threads: Vec<usize>,
    /// Sixteen hexadecimal digits; `null` without --verify.
    pub(crate) checksum: Option<String>,
    /// What the checksum was compared with, in words; `null` if with nothing.
    pub(crate) verified: Option<&'static str>,
    pub(crate) hops: Vec<Hop>,
    /// Who ciphered the connections; `null` in the clear.
    pub(crate) tls: Option<Ciphered>,
    /// For the queues that were received from; `null` without --nic.
    pub(crate) nic: Option<Arrived>,
    /// Deviations from what was asked, one a line.
    pub(crate) notes: Vec<String>,
}

/// The part of a report about TLS; its fields are those of `--json`.
#[derive(Debug, Serialize)]
pub(crate) struct Ciphered {
    /// `kernel-tls` or `user-tls`.
    pub(crate) engine: &'static str,
    pub(crate) reason: String,
    pub(crate) suite: String,
}

impl Ciphered {
    pub(crate) fn by(session: &TlsSession) -> Self {
        Self {
            engine: session.engine.name(),
            reason: session.reason.clone(),
            suite: format!("{:?}", session.suite.suite()),
        }
    }
}

/// The result of a transfer, in any direction.
pub(crate) struct Transferred {
    pub(crate) bytes: u64,
    pub(crate) holes: u64,
    /// Connections; 0 for a copy that stays on the machine.
    pub(crate) streams: usize,
    pub(crate) checksum: Option<u64>,
    pub(crate) verified: Option<&'static str>,
    pub(crate) hops: Vec<Hop>,
}

impl Report {
    /// Records a transfer that began with `clock`.
    pub(crate) fn new(order: &Order<'_>, clock: &Clock, done: Transferred) -> Self {
        let (seconds, cpu_seconds) = clock.read();
        Self {
            source: order.source.to_string(),
            destination: order.destination.to_string(),
            bytes: done.bytes,
            holes: done.holes,
            seconds,
            bytes_per_s: done.bytes as f64 / seconds,
            cpu_seconds,
            streams: done.streams,
            threads: Vec::new(),
            checksum: done.checksum.map(hexadecimal),
            verified: done.verified,
            hops: done.hops,
            tls: None,
            nic: None,
            notes: order.notes(),
        }
    }
}

impl Report {
    /// The report for people.
    pub(crate) fn text(&self) -> String {
        let mut text = format!(
            "{} bytes in {:.3} s, {:.1} MB/s, {:.3} s of CPU\n",
            self.bytes,
            self.seconds,
            self.bytes_per_s / 1e6,
            self.cpu_seconds
        );
        for hop in &self.hops {
            let amounts: Vec<String> = [
                (hop.tally.zero_copy, "zero-copy"),
                (hop.tally.copied, "copied"),
                (hop.tally.ciphered, "ciphered"),
                (hop.tally.unknown, "unknown"),
            ]
            .iter()
            .filter(|(bytes, _)| *bytes > 0)
            .map(|(bytes, what)| format!("{bytes} {what}"))
            .collect();
            let amounts = if amounts.is_empty() { "nothing".into() } else { amounts.join(", ") };
            let way = format!("{} -> {}", hop.from, hop.to);
            let _ = writeln!(text, "  {way:17} {:18} {amounts} ({})", hop.engine, hop.reason);
        }
        if let Some(tls) = &self.tls {
            let who = if tls.engine == "kernel-tls" { "the kernel" } else { "this process" };
            let _ = writeln!(text, "  {}: {who} ciphers", tls.suite);
        }
        if let Some(nic) = &self.nic {
            text.push_str(&nic.text());
        }
        if self.holes > 0 {
            let _ = writeln!(text, "  {} bytes are holes, and were not moved", self.holes);
        }
        if let Some(checksum) = &self.checksum {
            let verified = self.verified.unwrap_or("compared with nothing");
            let _ = writeln!(text, "  {} {checksum}: {verified}", CHECKSUM);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_json_say_the_same() {
        let hop = Hop {
            from: "memory",
            to: "socket",
            engine: "copy".into(),
            reason: "asked for".into(),
            tally: Tally { zero_copy: 3, copied: 4, ciphered: 5, ..Tally::default() },
        };
        let report = Report {
            source: "a".into(),
            destination: "tcp://b:1".into(),
            bytes: 7,
            holes: 0,
            seconds: 0.5,
            bytes_per_s: 14.0,
            cpu_seconds: 0.25,
            streams: 1,
            threads: Vec::new(),
            checksum: Some(hexadecimal(255)),
            verified: Some("the same on both sides"),
            hops: vec![hop],
            tls: Some(Ciphered {
                engine: "user-tls",
                reason: "asked for".into(),
                suite: "TLS13_AES_128_GCM_SHA256".into(),
            }),
            nic: None,
            notes: Vec::new(),
        };
        let text = report.text();
        assert!(text.contains("3 zero-copy, 4 copied, 5 ciphered (asked for)"), "{text}");
        assert!(text.contains("00000000000000ff: the same on both sides"), "{text}");
        assert!(text.contains("AES_128_GCM_SHA256: this process ciphers\n"), "{text}");
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(
            (&json["hops"][0]["copied"], &json["hops"][0]["ciphered"]),
            (&4.into(), &5.into())
        );
        assert_eq!(json["tls"]["engine"], "user-tls");
        assert_eq!(json["checksum"], "00000000000000ff");
    }
}
