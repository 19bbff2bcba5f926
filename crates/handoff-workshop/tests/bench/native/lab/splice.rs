//! The table of passing pages on, in a guest: what lending costs beside splice, in instructions.

use serde_json::Value;

use super::{Script, bench_or_skip, peer, row};
use crate::rows::number;

const ROWS: &str = "^depth=(1|32) (get|get-put|get-kept)$|^relay own$";

/// A script that runs this very program, which the guest has.
const PEER: &str = "own=exec pass {addr}:{port} {to_addr}:{to_port}";

#[test]
fn the_table_counts_instructions_and_lends_and_has_a_program_that_is_carried_in() {
    let script = Script::new("pass", "exec handoff relay --engine splice tcp-listen://$1 tcp://$2");
    let arguments = ["--only", ROWS, "--json", "--program", &script.path(), "--peer", PEER];
    let output = bench_or_skip!("splice", &arguments);
    let report: Value = serde_json::from_slice(&output).expect("one JSON object");
    assert_eq!((&report["bench"], &report["emulated"]), (&"splice".into(), &true.into()));
    let rows = report["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 8 + 2, "{report}");
    for row in rows.iter().filter(|row| row["config"]["op"] == "pass") {
        assert!(row["skipped"].is_null(), "{row}");
        for time in ["bytes_per_s", "ops_per_s", "cpu_ns_per_op"] {
            assert!(row[time].is_null(), "{time} from an emulated processor: {row}");
        }
        assert!(number(row, "kinsn_per_op") > 0.5, "{row}");
        assert!(number(row, "copied_share_witness") < 0.01, "{row}");
    }
    let ratio = |name: &str| number(row(&report, name), "ratio");
    // What the module is meant to reach, and less at depth 1 for a build without optimisation.
    assert!(ratio("depth=32 get") > 1.31, "{report}");
    assert!(ratio("depth=1 get") > 0.8, "{report}");
    assert!(ratio("depth=32 get") > 1.5 * ratio("depth=32 get-put"), "{report}");
    for depth in [1.0, 32.0] {
        assert!(ratio(&format!("depth={depth} get-kept")) > ratio(&format!("depth={depth} get")));
        assert_eq!(number(row(&report, &format!("depth={depth} get")), "lends_per_op"), 1.0);
    }

    // The same splice, here and there.
    let (ours, theirs) = (row(&report, "relay splice"), peer(&report, "relay own"));
    for row in [ours, theirs] {
        assert!(number(row, "copied_share_witness") < 0.01, "{row}");
    }
    let ratio = number(theirs, "ratio");
    assert!((0.7..1.3).contains(&ratio), "{ours}, {theirs}");
}
