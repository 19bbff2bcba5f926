//! Other programs beside the rows of receiving and relaying. The other program is the product.

use std::process::Command;

use serde_json::Value;

use crate::product::product;

/// Exit code where no namespaces can be made.
const NOT_POSSIBLE: i32 = 3;

fn report(bench: &str, only: &str, peers: &[String]) -> Result<Value, String> {
    let output = Command::new(env!("CARGO_BIN_EXE_handoff-workshop"))
        .args(["bench", bench, "--json", "--time", "0.1", "--rounds", "2", "--only", only])
        .args(peers.iter().map(|peer| format!("--peer={peer}")))
        .output()
        .expect("it starts");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.code() == Some(NOT_POSSIBLE) {
        return Err(errors);
    }
    assert!(output.status.success(), "{errors}");
    Ok(serde_json::from_slice(&output.stdout).expect("one JSON object"))
}

#[track_caller]
fn row<'a>(report: &'a Value, engine: &str) -> &'a Value {
    let mut rows = report["rows"].as_array().expect("rows").iter();
    rows.find(|row| row["engine"] == engine).unwrap_or_else(|| panic!("no {engine}: {report}"))
}

/// Has figures beside those of ours, but nobody says what it copied.
#[track_caller]
fn assert_measured(report: &Value, engine: &str) {
    let theirs = row(report, engine);
    assert!(theirs["skipped"].is_null(), "{theirs}");
    assert_eq!(theirs["peer"], true);
    assert_eq!(theirs["copied_share"], Value::Null, "{theirs}");
    // How much, beside ours, is a question where instructions are counted (`lab::recv`).
    let costs = ["cpu_ns_per_byte", "minsn_per_gib"].map(|key| theirs[key].as_f64());
    assert!(costs.iter().flatten().any(|cost| *cost > 0.0), "no cost: {theirs}");
}

#[track_caller]
fn assert_refused(report: &Value, engine: &str, reason: &str) {
    let row = row(report, engine);
    let told = row["skipped"].as_str().unwrap_or_else(|| panic!("{row}"));
    assert!(told.contains(reason), "{told}");
}

#[test]
fn a_program_that_receives_is_measured_and_others_say_why_not() {
    let handoff = product();
    let peers = [
        format!("cp=exec '{handoff}' cp --raw tcp-listen://{{addr}}:{{port}} - > /dev/null"),
        "broken=echo it is broken; exit 3".to_owned(),
        "silent=sleep 60".to_owned(),
    ];
    let only = "gro=yes check=no (epoll|cp|broken|silent)";
    let report = match report("recv", only, &peers) {
        Ok(report) => report,
        Err(reason) => handoff_testbed::skip!("{reason}"),
    };
    assert_measured(&report, "cp");
    assert_refused(&report, "broken", "exit status: 3: it is broken");
    assert_refused(&report, "silent", "does not listen for 5s");
}

#[test]
fn a_program_that_relays_is_measured_and_others_say_why_not() {
    let listen = "tcp-listen://{addr}:{port}";
    let handoff = product();
    let peers = [
        format!(
            "ours=exec '{handoff}' relay --engine splice {listen} tcp://{{to_addr}}:{{to_port}}"
        ),
        format!("deaf=exec '{handoff}' relay --engine splice {listen} tcp://{{addr}}:1"),
        "broken=echo it is broken; exit 3".to_owned(),
    ];
    let report = match report("splice", "^relay (ours|deaf|broken)", &peers) {
        Ok(report) => report,
        Err(reason) => handoff_testbed::skip!("{reason}"),
    };
    assert_measured(&report, "ours");
    assert_refused(&report, "deaf", "does not connect onward for 5s");
    assert_refused(&report, "broken", "exit status: 3: it is broken");
}
