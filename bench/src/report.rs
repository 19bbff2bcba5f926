//! What a bench found, in the form that `--json` prints and `--compare` reads.

use std::time::Duration;

use handoff_lab::instructions;
use serde::{Deserialize, Serialize};

use crate::{disagreement::Disagreement, machine::Machine};

/// One run of one bench.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Which bench: `send`, `recv`, `splice`, `rds` or `block`.
    pub bench: String,
    /// The version of handoff.
    pub version: String,
    /// When it began: RFC 3339, UTC.
    pub date: String,
    /// Where it ran.
    pub machine: Machine,
    /// True under software emulation of the processor: then costs and ratios are of instructions, or
    /// there are none, and never stand beside native ones.
    pub emulated: bool,
    /// What was measured, on what and how often, and what disturbed it: the lines above the table.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<String>,
    /// Rows whose reports and witness disagree on what was copied; none where no row has a witness.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disagreements: Option<Vec<Disagreement>>,
    /// The table's rows.
    pub rows: Vec<Row>,
}

/// One row: a way to do the work, with its figures or the reason why there are none.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Unique within the report, together with the configuration.
    pub name: String,
    /// The engine's name, the same in every bench.
    pub engine: String,
    /// What was asked of it.
    pub config: Config,
    /// The row that ratios of the same configuration refer to.
    pub baseline: bool,
    /// Another program, run beside us.
    pub peer: bool,
    /// Speed against the baseline's, above 1 is better: the median over the rounds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
    /// The worst round's ratio.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio_min: Option<f64>,
    /// The best round's ratio.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio_max: Option<f64>,
    /// Payload bytes per second, the median over the rounds, as all figures below.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_s: Option<f64>,
    /// Operations (messages) per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ops_per_s: Option<f64>,
    /// CPU time per payload byte, nanoseconds, user and system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_ns_per_byte: Option<f64>,
    /// CPU time per operation, nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_ns_per_op: Option<f64>,
    /// The same with that of the load, where the above is of a server alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_ns_per_op_all: Option<f64>,
    /// Thousands of instructions per operation, user and kernel, where instructions are counted;
    /// then there are no times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kinsn_per_op: Option<f64>,
    /// The same with those of the load, where the above is of a server alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kinsn_per_op_all: Option<f64>,
    /// Share of one processor's time that the server of a load with a limit took; where
    /// instructions are counted, of 10^9 a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_share: Option<f64>,
    /// Calls of io_uring_enter(2) per operation, counted in a run apart from the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enters_per_op: Option<f64>,
    /// Lends that were made per operation, by the lender's own count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lends_per_op: Option<f64>,
    /// Switches per operation from the server's threads to others, and back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switches_per_op: Option<f64>,
    /// Millions of instructions per GiB of payload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minsn_per_gib: Option<f64>,
    /// Share of the payload that the CPU copied, 0 to 1 for each hop, as reported by the mechanism.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copied_share: Option<f64>,
    /// Bytes that the kernel's CPU copied for each byte of the payload, at all ends on this machine, as
    /// the copy meter saw it in a run apart from the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copied_share_witness: Option<f64>,
    /// How the two disagree, until the report takes it.
    #[serde(skip)]
    pub disagreement: Option<Disagreement>,
    /// Bytes that a software NIC's engine moved for each byte of the payload, where hardware would
    /// do DMA. They are in no other figure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub simulated_dma_share: Option<f64>,
    /// Share of the time that the receiving host's processors were not idle, as a sum over all of them:
    /// 1 is one processor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy_share: Option<f64>,
    /// The same of the time that they spent in software interrupts, where packets arrive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub softirq_share: Option<f64>,
    /// Microseconds from a request to its answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_us: Option<Latency>,
    /// The same in thousands of instructions of all that ran meanwhile, where instructions are
    /// counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_kinsn: Option<Latency>,
    /// CPU time per operation that the measured thread spent outside the kernel, nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_ns_per_op: Option<f64>,
    /// System calls per completion that only took completions, or asked for what makes them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reap_calls: Option<f64>,
    /// Nanoseconds per completion spent in taking completions; instructions, where those are counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reap_ns: Option<f64>,
    /// Why the row has no figures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
}

/// Percentiles of times.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Half of all are not above it.
    pub p50: f64,
    /// 90 %.
    pub p90: f64,
    /// 99 %.
    pub p99: f64,
    /// 99.9 %.
    pub p999: f64,
    /// What the engine of a software NIC took in each, on average: part of all of the above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub simulated_dma: Option<f64>,
}

impl Latency {
    /// In microseconds; none of no times. Sorts them.
    pub(crate) fn of(times: &mut [Duration]) -> Option<Self> {
        times.sort_unstable();
        let last = times.len().checked_sub(1)?;
        let us = |share: f64| {
            let place = (times.len() as f64 * share).ceil() as usize;
            times[place.saturating_sub(1).min(last)].as_secs_f64() * 1e6
        };
        Some(Self {
            p50: us(0.5),
            p90: us(0.9),
            p99: us(0.99),
            p999: us(0.999),
            simulated_dma: None,
        })
    }

    /// Without what the engine of a software NIC took.
    pub fn without_simulated_dma(&self) -> f64 {
        self.p50 - self.simulated_dma.unwrap_or(0.0)
    }
}

/// What a row was asked to do. Rows of the same `op`, `proto`, `bytes`, `mtu`, `target`, `depth`,
/// `rate`, `sockets`, `check`, `gro` and `placement` compare.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// Payload bytes per operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// The operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op: Option<String>,
    /// The transport protocol: `udp` or `tcp`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proto: Option<String>,
    /// Operations per system call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<u32>,
    /// True: one return to the caller per operation. False: one per group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flush: Option<bool>,
    /// Whether the payload lies in buffers registered with the kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registered: Option<bool>,
    /// The device's MTU in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Where the payload goes: the type of the network device, or how a block device's bytes lie.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Operations under way at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depth: Option<u32>,
    /// Sockets that take turns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sockets: Option<u32>,
    /// Payload bytes per second that the load does not exceed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<u64>,
    /// Whether what was received is compared with what was sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check: Option<bool>,
    /// Whether frames arrive as the sender passed them on, not as packets of the MTU's size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gro: Option<bool>,
    /// Where the receiving thread runs: on the processor of the software interrupts (`same`), on another
    /// one of its core (`sibling`), or on another core (`other`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<String>,
    /// Bytes of each piece of memory that the NIC puts payload into.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunk: Option<u64>,
}

impl Config {
    /// Whether two rows did the same work, so that their speeds compare.
    pub fn same_work(&self, other: &Self) -> bool {
        let work = |config: &Self| {
            let Self {
                op,
                proto,
                bytes,
                mtu,
                target,
                depth,
                sockets,
                rate,
                check,
                gro,
                placement,
                ..
            } = config.clone();
            let wire = (mtu, target, gro, placement);
            (op, proto, bytes, depth, sockets, rate, check, wire)
        };
        work(self) == work(other)
    }
}

impl Row {
    /// Turns times into what they are where each instruction takes a nanosecond.
    pub(crate) fn count_instructions(&mut self) {
        const GIB: f64 = 1_073_741_824.0;
        const PER_SECOND: f64 = 1e9;
        self.kinsn_per_op = self.ops_per_s.take().map(|rate| PER_SECOND / rate / 1e3);
        self.minsn_per_gib = self.bytes_per_s.take().map(|rate| PER_SECOND / rate * GIB / 1e6);
        self.kinsn_per_op_all = self.cpu_ns_per_op_all.take().map(|count| count / 1e3);
        // A microsecond is a thousand instructions.
        self.latency_kinsn = self.latency_us.take();
        // The kernel samples it by the clock.
        self.user_ns_per_op = None;
        (self.cpu_ns_per_byte, self.cpu_ns_per_op) = (None, None);
    }
}

impl Report {
    /// That of a run on this machine.
    pub(crate) fn new(bench: &str, date: String, machine: Machine, mut rows: Vec<Row>) -> Self {
        let emulated = machine.is_emulated();
        for row in &mut rows {
            if instructions::counting() {
                row.count_instructions();
            } else if emulated {
                // Times under emulation mean nothing, and so do their ratios.
                (row.ratio, row.ratio_min, row.ratio_max) = (None, None, None);
            }
        }
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let conditions = Vec::new();
        let witnessed = rows.iter().any(|row| row.copied_share_witness.is_some());
        let found = rows.iter_mut().filter_map(|row| row.disagreement.take()).collect();
        let disagreements = witnessed.then_some(found);
        Self {
            bench: bench.to_owned(),
            version,
            date,
            machine,
            emulated,
            conditions,
            disagreements,
            rows,
        }
    }

    /// Whether its costs are instructions, not times.
    pub fn counts_instructions(&self) -> bool {
        self.rows.iter().any(|row| row.minsn_per_gib.is_some())
    }

    /// The row of the same name and configuration.
    pub fn find(&self, row: &Row) -> Option<&Row> {
        self.rows.iter().find(|other| other.name == row.name && other.config == row.config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(value: &serde_json::Value) -> Vec<&str> {
        let mut keys: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
        keys.sort_unstable();
        keys
    }

    fn report() -> Report {
        Report {
            bench: "send".into(),
            version: "0.1.0".into(),
            date: "2026-01-01T00:00:00Z".into(),
            machine: Machine {
                cpu: "a".into(),
                cores: 2,
                kernel: "6.1".into(),
                virtualisation: "none".into(),
            },
            emulated: false,
            conditions: vec!["once".into()],
            disagreements: None,
            rows: vec![
                Row {
                    name: "msg-zerocopy-seed".into(),
                    engine: "msg-zerocopy-seed".into(),
                    config: Config {
                        bytes: Some(65_435),
                        op: Some("send".into()),
                        proto: Some("udp".into()),
                        batch: Some(1),
                        flush: Some(true),
                        registered: Some(false),
                        mtu: Some(65_535),
                        target: Some("ifb".into()),
                        ..Config::default()
                    },
                    baseline: true,
                    peer: false,
                    ratio: Some(1.0),
                    ratio_min: Some(1.0),
                    ratio_max: Some(1.0),
                    bytes_per_s: Some(1e9),
                    ops_per_s: Some(1e5),
                    cpu_ns_per_byte: Some(0.1),
                    cpu_ns_per_op: Some(6_500.0),
                    copied_share: Some(0.0),
                    ..Row::default()
                },
                Row { name: "x".into(), skipped: Some("why".into()), ..Row::default() },
            ],
        }
    }

    #[test]
    fn keys_are_those_of_the_format() {
        let json = serde_json::to_value(report()).unwrap();
        let all = ["bench", "conditions", "date", "emulated", "machine", "rows", "version"];
        assert_eq!(keys(&json), all);
        assert_eq!(keys(&json["machine"]), ["cores", "cpu", "kernel", "virtualisation"]);
        let full = [
            "baseline",
            "bytes_per_s",
            "config",
            "copied_share",
            "cpu_ns_per_byte",
            "cpu_ns_per_op",
            "engine",
            "name",
            "ops_per_s",
            "peer",
            "ratio",
            "ratio_max",
            "ratio_min",
        ];
        assert_eq!(keys(&json["rows"][0]), full);
        assert_eq!(
            keys(&json["rows"][0]["config"]),
            ["batch", "bytes", "flush", "mtu", "op", "proto", "registered", "target"]
        );
        let skipped = ["baseline", "config", "engine", "name", "peer", "skipped"];
        assert_eq!(keys(&json["rows"][1]), skipped);
    }

    #[test]
    fn counted_instructions_replace_times() {
        let mut counted = report();
        counted.rows[0].copied_share_witness = Some(0.01);
        assert!(!counted.counts_instructions());
        counted.rows[0].count_instructions();
        assert!(counted.counts_instructions());
        let row = serde_json::to_value(&counted.rows[0]).unwrap();
        // 10^9 bytes and 10^5 operations in 10^9 instructions.
        assert_eq!(row["minsn_per_gib"], 1_073.741_824);
        assert_eq!(row["kinsn_per_op"], 10.0);
        assert_eq!(row["copied_share_witness"], 0.01);
        for time in ["bytes_per_s", "ops_per_s", "cpu_ns_per_byte", "cpu_ns_per_op"] {
            assert!(row.get(time).is_none(), "{time}");
        }
    }

    #[test]
    fn what_rows_disagree_on_is_the_reports() {
        let found = Disagreement {
            row: "x".into(),
            bytes: None,
            reported: 0.0,
            implied: 1.0,
            witness: 2.0,
            places: Vec::new(),
        };
        let new = |rows| Report::new("send", String::new(), Machine::this(), rows);
        let row = Row { disagreement: Some(found.clone()), ..Row::default() };
        let witnessed = Row { copied_share_witness: Some(2.0), ..row };
        let report = new(vec![witnessed]);
        assert_eq!(report.disagreements, Some(vec![found]));
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(
            keys(&json["disagreements"][0]),
            ["implied", "places", "reported", "row", "witness"]
        );
        assert!(json["rows"][0].get("disagreement").is_none());
        assert_eq!(new(vec![Row::default()]).disagreements, None, "there was no witness");
    }

    #[test]
    fn percentiles_are_of_sorted_times() {
        assert_eq!(Latency::of(&mut []), None);
        let mut times: Vec<_> = (1..=1000).rev().map(Duration::from_micros).collect();
        let found = Latency::of(&mut times).unwrap();
        for (found, right) in
            [(found.p50, 500.0), (found.p90, 900.0), (found.p99, 990.0), (found.p999, 999.0)]
        {
            assert!((found - right).abs() < 1e-6, "{found} for {right}");
        }
        assert_eq!(Latency::of(&mut [Duration::from_micros(7)]).unwrap().p999, 7.0);
    }

    #[test]
    fn a_report_survives_writing_and_reading() {
        let report = report();
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
        assert_eq!(report.find(&report.rows[0]).unwrap().ratio, Some(1.0));
    }

    #[test]
    fn same_work_ignores_the_way_it_is_done() {
        let one = report().rows[0].config.clone();
        let batched = Config { batch: Some(32), registered: Some(true), ..one.clone() };
        assert!(one.same_work(&batched));
        let smaller = Config { bytes: Some(4_096), ..one.clone() };
        assert!(!one.same_work(&smaller));
        let limited = Config { rate: Some(1 << 30), ..one.clone() };
        assert!(!one.same_work(&limited));
        assert!(one.same_work(&Config { chunk: Some(65_536), ..one.clone() }));
        assert!(!one.same_work(&Config { check: Some(true), ..one.clone() }));
        assert!(!one.same_work(&Config { gro: Some(true), ..one.clone() }));
    }
}
