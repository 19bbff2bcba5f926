//! Runs a bench in the lab.

mod block;
mod rds;
mod recv;
mod send;
mod splice;

use std::process::{Command, Output};

use serde_json::Value;

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

#[track_caller]
fn row<'a>(report: &'a Value, name: &str) -> &'a Value {
    let rows = report["rows"].as_array().expect("rows");
    rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("no {name}: {report}"))
}
