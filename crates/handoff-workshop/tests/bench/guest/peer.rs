//! Another program's device under the bench's load. The other program is the product.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::product::product;
use crate::rows::number;

const WORKSHOP: &str = env!("CARGO_BIN_EXE_handoff-workshop");

fn missing() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("not root");
    }
    let _ = Command::new("modprobe").arg("ublk_drv").status();
    (!Path::new("/dev/ublk-control").exists()).then_some("no ublk_drv")
}

fn rows(peers: &[String]) -> Vec<Value> {
    let output = Command::new(WORKSHOP)
        .args(["bench", "block", "--json", "--time", "0.05", "--rounds", "1"])
        .args(["--only", "^read 4k depth=1 null (user-auto|peer|wrong)"])
        .args(peers)
        .output()
        .expect("it starts");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{errors}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    report["rows"].as_array().expect("rows").clone()
}

#[test]
fn a_peer_is_served_measured_and_taken_down() {
    if let Some(reason) = missing() {
        handoff_testbed::skip!("{reason}");
    }
    let rows = rows(&[
        format!(
            "--peer=peer='{}' blk add {{target}} {{files}} --engine user-auto --size 64m",
            product()
        ),
        "--peer=wrong=echo it is broken; exit 3".to_owned(),
    ]);
    let named = |engine: &str| {
        rows.iter().find(|row| row["engine"] == engine).unwrap_or_else(|| panic!("{rows:?}"))
    };
    let (ours, peer, wrong) = (named("user-auto"), named("peer"), named("wrong"));
    assert_eq!((&ours["peer"], &peer["peer"]), (&false.into(), &true.into()));
    for row in [ours, peer] {
        // The same engine, here and there: for each request two calls, as zeroes are read before it is committed.
        for (key, expected) in [("enters_per_op", 1.5..2.5), ("switches_per_op", 0.5..2.5)] {
            assert!(expected.contains(&number(row, key)), "{key}: {row}");
        }
        assert!(row["cpu_ns_per_op"].as_f64().is_some_and(|time| time > 0.0), "{row}");
    }
    let reason = wrong["skipped"].as_str().expect("a reason");
    assert!(reason.contains('3') && reason.ends_with("it is broken"), "{reason}");

    let left: Vec<_> = fs::read_dir("/dev")
        .expect("/dev")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"))
        .filter(|name| name.starts_with("ublkb") || name.starts_with("ublkc"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}
