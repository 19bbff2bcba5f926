//! The table of block devices in a guest: the server's instructions, its calls, and what was copied.

use serde_json::Value;

use super::{Script, bench_or_skip, peer, row};
use crate::rows::number;

const ROWS: &str = "^write 512k depth=16 (745MiB/s )?loop [^o]|^read 4k depth=1 null\
    |^write 4k depth=1 mirror.* bpf";

/// A script that runs this very program, which the guest has.
const PEER: &str = "own=exec serve {target} {files}";

#[test]
fn the_table_has_the_servers_costs_and_what_was_copied_also_by_a_program_that_is_carried_in() {
    let script = Script::new("serve", "exec handoff blk add \"$@\" --engine user-auto --size 64m");
    let arguments = ["--only", ROWS, "--json", "--program", &script.path(), "--peer", PEER];
    let output = bench_or_skip!("block", &arguments);
    let report: Value = serde_json::from_slice(&output).expect("one JSON object");
    assert_eq!((&report["bench"], &report["emulated"]), (&"block".into(), &true.into()));
    for row in report["rows"].as_array().expect("rows") {
        assert!(row["skipped"].is_null(), "{row}");
        for time in ["bytes_per_s", "ops_per_s", "cpu_ns_per_op", "copied_share"] {
            assert!(row[time].is_null(), "{time} from an emulated processor: {row}");
        }
        let copied = if row["engine"] == "user-copy" { 1.0 } else { 0.0 };
        // At depth 1, the few bytes that looking costs show.
        assert!((number(row, "copied_share_witness") - copied).abs() < 0.05, "{row}");
        let all = number(row, "kinsn_per_op_all");
        if row["engine"] == "kernel-loop" {
            assert!(row["kinsn_per_op"].is_null() && row["ratio"].is_null(), "{row}");
            assert!(all > 1.0, "{row}");
            continue;
        }
        let server = number(row, "kinsn_per_op");
        assert!(server > 1.0 && server < all, "{row}");
        let per_gib = server / 1e3 * (1 << 30) as f64 / number(&row["config"], "bytes");
        assert!((per_gib / number(row, "minsn_per_gib") - 1.0).abs() < 0.02, "{row}");
        assert!(number(row, "ratio_max") / number(row, "ratio_min") < 1.1, "{row}");
    }

    let named = |load: &str, engine: &str| row(&report, &format!("{load} {engine}"));
    let (lone, wide) = ("read 4k depth=1 null", "write 512k depth=16 loop");
    // Two calls for each request at depth 1, as zeroes are read before it is committed; none where the loop is in
    // the kernel.
    let enters = number(named(lone, "user-auto"), "enters_per_op");
    assert!((1.9..2.2).contains(&enters), "{enters}");
    for load in [lone, wide] {
        assert!(number(named(load, "bpf"), "enters_per_op") < 0.01);
    }
    assert!(number(named(lone, "user-auto"), "switches_per_op") > 0.9);
    // The same engine, here and there.
    let theirs = peer(&report, &format!("{lone} own"));
    let same = number(theirs, "kinsn_per_op") / number(named(lone, "user-auto"), "kinsn_per_op");
    assert!((0.8..1.3).contains(&same), "{theirs}");
    let enters = number(theirs, "enters_per_op");
    assert!((1.9..2.2).contains(&enters), "{enters}");
    for engine in ["user-auto", "bpf"] {
        assert!(number(named(wide, engine), "ratio") > 3.0, "{report}");
    }

    let limited = "write 512k depth=16 745MiB/s loop";
    let share = |engine: &str| number(named(limited, engine), "cpu_share");
    assert!(share("bpf") < 0.5 * share("user-copy"), "{report}");
    // 1,490 requests a second.
    let expected = number(named(limited, "user-copy"), "kinsn_per_op") * 1_490.0 / 1e6;
    assert!((share("user-copy") / expected - 1.0).abs() < 0.1, "{expected}: {report}");
    assert!(named(wide, "user-copy")["cpu_share"].is_null());

    // In steady state a mirror's record costs next to nothing.
    let of =
        |mirror: &str| number(named(&format!("write 4k depth=1 {mirror}"), "bpf"), "kinsn_per_op");
    let cost = of("mirror") / of("mirror --no-record");
    assert!((0.97..1.03).contains(&cost), "{cost}");
}
