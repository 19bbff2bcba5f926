//! Runs a bench in the lab.

mod block;
mod rds;
mod recv;
mod send;
mod splice;

use std::process::{Command, Output};

use serde_json::Value;

use crate::rows::number;

/// Exit code where the lab cannot run, for want of QEMU for instance.
const NOT_POSSIBLE: i32 = 3;

/// What `handoff bench NAME --lab --quick` prints, or why this machine cannot run it.
#[track_caller]
fn bench(name: &str, arguments: &[&str]) -> Result<Vec<u8>, String> {
    let Output { status, stdout, stderr } = Command::new(env!("CARGO_BIN_EXE_handoff"))
        .args(["bench", name, "--lab", "--quick"])
        .args(arguments)
        .output()
        .expect("it starts");
    let errors = String::from_utf8_lossy(&stderr).into_owned();
    if status.code() == Some(NOT_POSSIBLE) {
        return Err(errors);
    }
    assert!(status.success(), "{errors}");
    Ok(stdout)
}

macro_rules! bench_or_skip {
    ($name:expr, $arguments:expr) => {
        match super::bench($name, $arguments) {
            Ok(output) => output,
            Err(reason) => handoff_lab::skip!("{reason}"),
        }
    };
}
use bench_or_skip;

/// The report of a bench, measured once more if the slots of a row differ by as much as `most`: now and
/// then the guest's kernel has work of its own in some slot, but hardly in each run.
#[track_caller]
fn steady(name: &str, arguments: &[&str], most: f64) -> Result<Value, String> {
    let report = || {
        let output = bench(name, &[arguments, &["--json"]].concat())?;
        Ok::<Value, String>(serde_json::from_slice(&output).expect("one JSON object"))
    };
    let first = report()?;
    let rows = first["rows"].as_array().expect("rows");
    if rows.iter().all(|row| spread(row) < most) { Ok(first) } else { report() }
}

macro_rules! steady_or_skip {
    ($name:expr, $arguments:expr, $most:expr) => {
        match super::steady($name, $arguments, $most) {
            Ok(report) => report,
            Err(reason) => handoff_lab::skip!("{reason}"),
        }
    };
}
use steady_or_skip;

/// How far apart the ratios of a row's slots are.
#[track_caller]
fn spread(row: &Value) -> f64 {
    number(row, "ratio_max") / number(row, "ratio_min")
}

#[track_caller]
fn row<'a>(report: &'a Value, name: &str) -> &'a Value {
    let rows = report["rows"].as_array().expect("rows");
    rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("no {name}: {report}"))
}
