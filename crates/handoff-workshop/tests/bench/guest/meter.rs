//! `--meter`: the copy meter's count beside what is reported, without the lab's option.

use std::process::{Command, Output};

use handoff_meter::{Meter, Scope};
use serde_json::Value;

use crate::rows::number;

fn send(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_handoff-workshop"))
        .args(["bench", "send", "--meter", "--time", "0.05", "--rounds", "1"])
        .args(["--only", "^copy$|fixed flush=no batch=8$"])
        .args(arguments)
        .output()
        .expect("it starts")
}

#[test]
fn the_witness_stands_beside_what_is_reported() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("report.json");
    let output = send(&["--json-file", file.to_str().expect("UTF-8")]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let titles = text.lines().find(|line| line.starts_with("row ")).expect("a table");
    assert!(titles.ends_with("copied  witness"), "{text}");
    assert!(text.contains("agree in all 3 rows that have both"), "{text}");

    let report = std::fs::read(file).expect("written");
    let report: Value = serde_json::from_slice(&report).expect("one JSON object");
    let rows = report["rows"].as_array().expect("rows");
    let names = ["copy", "msg-zerocopy-seed", "uring-zc-fixed flush=no batch=8"];
    assert_eq!(rows.iter().map(|row| &row["name"]).collect::<Vec<_>>(), names);
    for row in rows {
        let copied = if row["name"] == "copy" { 1.0 } else { 0.0 };
        assert_eq!(row["copied_share"], copied, "{row}");
        let witness = number(row, "copied_share_witness");
        assert!((witness - copied).abs() < 0.01, "{row}");
    }
    assert_eq!(report["disagreements"], serde_json::json!([]));
}

#[test]
fn without_a_meter_nothing_is_measured() {
    // A processor has breakpoints for one.
    let meter = match Meter::attach(Scope::Machine) {
        Ok(meter) => meter,
        Err(reason) => handoff_testbed::skip!("{reason}"),
    };
    let Output { status, stdout, stderr } = send(&[]);
    drop(meter);
    let error = String::from_utf8_lossy(&stderr).into_owned();
    assert_eq!((status.code(), stdout.len()), (Some(3), 0), "{error}");
    assert!(error.contains("another meter") && error.contains("without --meter"), "{error}");
}
