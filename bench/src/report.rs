//! The results of a bench, in the form that `--json` prints and `--compare` reads.

mod config;
mod disagreement;
mod latency;
mod row;

use std::collections::BTreeSet;

use handoff_testbed::instructions;
use serde::{Deserialize, Serialize};

pub use self::{
    config::Config,
    disagreement::{CopiedAt, Disagreement},
    latency::Latency,
    row::{FunctionShare, Row},
};
pub(crate) use self::{
    config::PASS,
    disagreement::{FRAMING, TOLERANCE, disagree},
};
use crate::machine::Machine;

/// The name of the bench of block devices. Its operations are requests, not messages.
pub(crate) const BLOCK: &str = "block";
/// The name of the bench of HTTP servers. Its operations are requests, whose costs compare.
pub(crate) const HTTP: &str = "http";
/// The name of the bench of messages. The names of its rows have the sizes of the messages.
pub(crate) const RDS: &str = "rds";
/// The name of the bench of a received stream, which has no operations.
pub(crate) const RECV: &str = "recv";
/// The name of the bench of sends from user memory.
pub(crate) const SEND: &str = "send";
/// The name of the bench that passes pages on. Its requests take a thousand instructions or two.
pub(crate) const SPLICE: &str = "splice";

/// The name of the bench of ciphered connections.
pub(crate) const TLS: &str = "tls";

/// One run of one bench.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Which bench: `send`, `recv`, `splice`, `rds`, `block`, `http` or `tls`.
    pub bench: String,
    /// The version of handoff.
    pub version: String,
    /// When the run began: RFC 3339, UTC.
    pub date: String,
    /// The machine that the bench ran on.
    pub machine: Machine,
    /// Whether the processor was emulated in software. Then costs and ratios are of instructions, or there are
    /// none, and they never stand beside native ones.
    pub emulated: bool,
    /// What was measured, on what and how often, and what disturbed it: the lines above the table.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<String>,
    /// Rows whose report and witness disagree about copies; `None` if no row has a witness.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disagreements: Option<Vec<Disagreement>>,
    /// The table's rows.
    pub rows: Vec<Row>,
}

impl Report {
    /// The report of a run on `machine`. Under emulation it has instructions, if they were counted, or no ratios.
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

    /// Whether the report's costs are instructions, not times.
    pub fn counts_instructions(&self) -> bool {
        self.rows.iter().any(|row| row.minsn_per_gib.is_some())
    }

    /// Whether rows of several sizes have the same name.
    pub(crate) fn has_sizes_apart(&self) -> bool {
        let sizes: BTreeSet<_> = self.rows.iter().map(|row| row.config.bytes).collect();
        // The names of these benches' rows have the sizes.
        sizes.len() > 1 && ![BLOCK, RDS].contains(&self.bench.as_str())
    }

    /// The record of this run, as JSON with a line for each row.
    ///
    /// # Errors
    ///
    /// If a value has no form in JSON.
    pub fn record(&self) -> serde_json::Result<String> {
        let head = serde_json::to_string(&Self { rows: Vec::new(), ..self.clone() })?;
        // The rows are the last field.
        let head = head.strip_suffix("]}").unwrap_or(&head);
        let rows: Vec<_> = self.rows.iter().map(serde_json::to_string).collect::<Result<_, _>>()?;
        Ok(format!("{head}\n{}\n]}}\n", rows.join(",\n")))
    }

    /// The row of the same name and configuration; `None` if there is none.
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
        // The work is 10^9 bytes and 10^5 operations in 10^9 instructions.
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
