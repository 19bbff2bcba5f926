//! The table of passing pages on, in a guest: what lending costs beside splice, in instructions.

use serde_json::Value;

use super::{bench_or_skip, row};
use crate::rows::number;

const ROWS: &str = "^depth=(1|32) (get|get-put|get-kept)$";

#[test]
fn the_table_counts_instructions_and_lends() {
    let output = bench_or_skip!("splice", &["--only", ROWS, "--json"]);
    let report: Value = serde_json::from_slice(&output).expect("one JSON object");
    assert_eq!((&report["bench"], &report["emulated"]), (&"splice".into(), &true.into()));
    let rows = report["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 8, "{report}");
    for row in rows {
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
}
