//! Receiving over the software NIC, where nothing is counted: it works, and says what it may.

use std::process::Command;

use serde_json::Value;

use crate::rows::{assert_copied_as_received, number};

#[test]
fn every_row_receives_over_the_software_nic() {
    let output = Command::new(env!("CARGO_BIN_EXE_handoff"))
        .args(["bench", "recv", "--json", "--time", "0.05", "--rounds", "1"])
        .args(["--meter", "--only", "check=yes"])
        .output()
        .expect("it starts");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{errors}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    let rows = report["rows"].as_array().expect("rows");
    // Five ways to receive over three wires, and one of them once more with larger chunks.
    assert_eq!(rows.len(), 16, "{report}");
    for row in rows {
        assert!(row["skipped"].is_null(), "{row}");
        assert_eq!(row["config"]["target"], "wire");
        assert_copied_as_received(row);
        assert!((1.0..1.1).contains(&number(row, "simulated_dma_share")), "{row}");
        if report["emulated"] == true {
            assert!(row["ratio"].is_null(), "a ratio of emulated times: {row}");
        }
    }
}
