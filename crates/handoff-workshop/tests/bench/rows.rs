//! Rows of a report.

use serde_json::Value;

#[track_caller]
pub(crate) fn number(row: &Value, key: &str) -> f64 {
    row[key].as_f64().unwrap_or_else(|| panic!("no {key}: {row}"))
}

/// What a row of receiving says was copied is what its engine copies, and what the witness saw.
#[track_caller]
pub(crate) fn assert_copied_as_received(row: &Value) {
    // Two that do not know of each other.
    let (copied, witness) = (number(row, "copied_share"), number(row, "copied_share_witness"));
    assert!((witness - copied).abs() < 0.1, "{row}");
    match row["engine"].as_str().expect("a name") {
        "tcp-zerocopy-receive" => {}
        "zcrx" => assert_eq!(copied, 0.0, "{row}"),
        _ => assert_eq!(copied, 1.0, "{row}"),
    }
}
