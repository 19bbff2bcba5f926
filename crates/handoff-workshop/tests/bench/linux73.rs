//! Memory that grows while the bench receives.

use std::process::Command;

use serde_json::Value;

/// The rows of small packets by epoll and by the queue of the software NIC.
fn rows(words: &[&str]) -> Vec<Value> {
    let output = Command::new(env!("CARGO_BIN_EXE_handoff-workshop"))
        .args(["bench", "recv", "--json", "--time", "0.3", "--rounds", "2"])
        .args(["--only", "mtu=1500 gro=no check=yes zcrx chunk=4k$"])
        .args(words)
        .output()
        .expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    report["rows"].as_array().expect("rows").clone()
}

#[test]
fn the_steps_in_which_the_nic_got_memory_are_told() {
    for row in rows(&[]) {
        assert!(row["growth"].is_null(), "{row}");
    }
    let [epoll, zcrx] = &rows(&["--grow"])[..] else { panic!("two rows") };
    assert!(epoll["growth"].is_null(), "{epoll}");
    let steps = zcrx["growth"].as_array().unwrap_or_else(|| panic!("no steps: {zcrx}"));
    let chunks = |step: &Value| step["chunks"].as_u64().expect("a number");
    assert!(steps.is_sorted_by(|first, second| chunks(first) < chunks(second)), "{zcrx}");
    for step in steps {
        assert!(step["after_s"].as_f64().is_some_and(|after| after > 0.0), "{step}");
        assert!(step["cause"].as_str().is_some_and(|cause| !cause.is_empty()), "{step}");
    }
    assert_eq!(zcrx["copied_share"], 0.0, "{zcrx}");
}
