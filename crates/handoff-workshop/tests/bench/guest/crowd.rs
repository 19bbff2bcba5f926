//! Receiving from many connections.

use std::process::Command;

use serde_json::Value;

use crate::rows::number;

/// Allows fewer descriptors than the connections need, of which root may have more.
const SCRIPT: &str =
    "ulimit -n 1024; exec \"$0\" bench recv --json --sockets 1,1k --time 0.02 --rounds 1";

#[test]
fn rows_of_many_connections_have_the_descriptors_that_they_need() {
    let mut shell = Command::new("sh");
    let output = shell.args(["-c", SCRIPT, env!("CARGO_BIN_EXE_handoff-workshop")]).output();
    let output = output.expect("it starts");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{errors}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    let rows = report["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 4, "{report}");
    for row in rows {
        assert!(row["skipped"].is_null(), "{row}");
        assert!(number(row, "copied_share") == 1.0, "{row}");
    }
}
