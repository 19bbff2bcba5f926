//! Pages lent into rings: every row runs, and the module has counted what was asked of it.

use std::fs;
use std::process::Command;

use serde_json::Value;

#[test]
fn every_row_passes_pages_and_gives_back_what_was_lent() {
    let output = Command::new(env!("CARGO_BIN_EXE_handoff"))
        .args(["bench", "splice", "--json", "--time", "0.02", "--rounds", "1"])
        .args(["--only", "depth=(1|32) "])
        .output()
        .expect("it starts");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{errors}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    let rows = report["rows"].as_array().expect("rows");
    let engines: Vec<&str> = rows.iter().filter_map(|row| row["engine"].as_str()).collect();
    let lent = ["get", "get-each", "get-linked", "get-nop", "get-put", "get-kept"];
    let all = [&["splice", "op-splice"][..], &lent].concat();
    assert_eq!(engines, [&all[..], &all].concat(), "{report}");
    for row in rows {
        assert!(row["skipped"].is_null(), "{row}");
        let number = |key: &str| row[key].as_f64().unwrap_or_else(|| panic!("no {key}: {row}"));
        assert!(number("copied_share_witness") < 0.05, "{row}");
        match row["engine"].as_str().expect("a name") {
            "splice" | "op-splice" => {
                assert!(row["lends_per_op"].is_null(), "{row}");
                continue;
            }
            "get-kept" => assert!(number("lends_per_op") < 0.5, "{row}"),
            _ => assert_eq!(number("lends_per_op"), 1.0, "{row}"),
        }
        // One call for each batch, and some before and after.
        let depth = row["config"]["depth"].as_f64().expect("a number");
        let batches = 1.0 / number("enters_per_op") / depth;
        assert!((0.5..=1.0).contains(&batches), "{row}");
    }
    // Whoever has a lend out, or the device open, has the module.
    let users = fs::read_to_string("/sys/module/getbuf/refcnt").expect("the module is loaded");
    assert_eq!(users.trim(), "0");
}
