//! The table of receiving in a guest: the receiver's instructions, and what was copied.

use serde_json::Value;

use super::{Script, bench_or_skip, peer, row};
use crate::rows::number;

/// A script that runs this very program, which the guest has.
const PEER: &str = "own=exec receive {addr} {port}";

const ROWS: &str = "check=no zcrx chunk|gro=yes check=no own";

#[test]
fn the_table_counts_the_receivers_instructions_beside_those_of_a_program_that_is_carried_in() {
    let script = Script::new("receive", "exec handoff cp --raw tcp-listen://$1:$2 - > /dev/null");
    let arguments = ["--only", ROWS, "--json", "--program", &script.path(), "--peer", PEER];
    let output = bench_or_skip!("recv", &arguments);
    let report: Value = serde_json::from_slice(&output).expect("one JSON object");
    assert_eq!((&report["bench"], &report["emulated"]), (&"recv".into(), &true.into()));
    let cost = |row: &Value| number(row, "minsn_per_gib");
    let rows = report["rows"].as_array().expect("rows");
    for row in rows.iter().filter(|row| row["peer"] == false) {
        assert!(row["skipped"].is_null(), "{row}");
        assert_eq!(row["config"]["target"], "wire");
        for time in ["bytes_per_s", "cpu_ns_per_byte"] {
            assert!(row[time].is_null(), "{time} from an emulated processor: {row}");
        }
        // Two that do not know of each other; and headers are moved too.
        let copied = if row["engine"] == "zcrx" { 0.0 } else { 1.0 };
        assert_eq!(row["copied_share"], copied, "{row}");
        let witness = number(row, "copied_share_witness");
        assert!((witness - copied).abs() < 0.05, "{row}");
        let moved = number(row, "simulated_dma_share");
        assert!((1.0..1.1).contains(&moved), "{row}");
        // Eight bytes an instruction are copied, and a packet costs some thousands.
        assert!((134.0 * copied..4_000.0).contains(&cost(row)), "{row}");
    }
    let epoll = |mtu, gro| cost(row(&report, &format!("mtu={mtu} gro={gro} check=no epoll")));
    assert!(epoll(4_148, "no") < 0.6 * epoll(1_500, "no"), "larger packets cost less: {report}");
    let large = row(&report, "mtu=1500 gro=yes check=no zcrx chunk=64k");
    assert!(number(large, "ratio") > 1.5, "copying costs more: {large}");
    assert!(epoll(1_500, "yes") < 0.4 * epoll(1_500, "no"), "whole frames cost less: {report}");

    let theirs = peer(&report, "mtu=1500 gro=yes check=no own");
    // It reads what the kernel copies, once, and writes it to where nothing is copied.
    let witness = number(theirs, "copied_share_witness");
    assert!((witness - 1.0).abs() < 0.05, "{theirs}");
    let ratio = number(theirs, "ratio");
    assert!((0.5..1.1).contains(&ratio), "more than the same work: {theirs}");
}
