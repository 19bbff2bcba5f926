//! The table of sending in a guest: costs in instructions, and the copy meter beside what the kernel
//! reports.

use std::process::{Command, Output};

use serde_json::Value;

const ROWS: &str = "^copy$|tuned$|fixed flush=no batch=8$";

/// Exit code where the lab cannot run, for want of QEMU for instance.
const NOT_POSSIBLE: i32 = 3;

fn bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_handoff"))
        .args(["bench", "send", "--lab", "--quick", "--only", ROWS])
        .args(arguments)
        .output()
        .expect("it starts")
}

fn row<'a>(report: &'a Value, name: &str) -> &'a Value {
    let rows = report["rows"].as_array().expect("rows");
    rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("no {name}: {report}"))
}

#[test]
fn the_table_counts_instructions_beside_the_copy_meter() {
    let output = bench(&["--json"]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.code() == Some(NOT_POSSIBLE) {
        handoff_lab::skip!("{errors}");
    }
    assert!(output.status.success(), "{errors}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert_eq!(report["emulated"], true);
    assert_eq!(report["machine"]["virtualisation"], "qemu-tcg");

    let names =
        ["copy", "msg-zerocopy-seed", "msg-zerocopy-tuned", "uring-zc-fixed flush=no batch=8"];
    for name in names {
        let row = row(&report, name);
        assert!(row["skipped"].is_null(), "{row}");
        assert_eq!(row["config"]["target"], "dummy");
        assert!(row["bytes_per_s"].is_null(), "a time from an emulated processor: {row}");
        let (insn, kinsn) = (row["minsn_per_gib"].as_f64(), row["kinsn_per_op"].as_f64());
        let (insn, kinsn) = (insn.expect("a number"), kinsn.expect("a number"));
        assert!(insn > 10.0 && kinsn > 1.0, "{row}");
        // Both are of the same work.
        let per_gib = kinsn / 1e3 * (1 << 30) as f64 / row["config"]["bytes"].as_f64().unwrap();
        assert!((per_gib / insn - 1.0).abs() < 0.02, "{row}");
        // Two that do not know of each other.
        let copied = if name == "copy" { 1.0 } else { 0.0 };
        assert_eq!(row["copied_share"], copied, "{row}");
        let witness = row["copied_share_witness"].as_f64().expect("a number");
        assert!((witness - copied).abs() < 0.01, "{row}");
        // The same instructions each time: that is what counting is for.
        let spread = row["ratio_max"].as_f64().unwrap() / row["ratio_min"].as_f64().unwrap();
        assert!(spread < 1.03, "{row}");
    }
    let cost = |name| row(&report, name)["minsn_per_gib"].as_f64().unwrap();
    assert!(cost(names[3]) < cost(names[1]), "registered memory is cheaper: {report}");
}

#[test]
fn the_table_says_that_it_is_emulated() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("report.json");
    let output = bench(&["--json-file", file.to_str().expect("UTF-8")]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.code() == Some(NOT_POSSIBLE) {
        handoff_lab::skip!("{errors}");
    }
    assert!(output.status.success(), "{errors}");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    for word in ["emulated", "device dummy", "Minsn/GiB", "witness"] {
        assert!(text.contains(word), "no {word}: {text}");
    }
    assert!(!text.contains("MB/s"), "{text}");
    let kept: Value = serde_json::from_slice(&std::fs::read(file).expect("on this side")).unwrap();
    assert_eq!(kept["emulated"], true);
}
