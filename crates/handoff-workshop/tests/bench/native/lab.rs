//! Runs a bench in the lab.

mod block;
mod http;
mod rds;
mod recv;
mod send;
mod splice;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Output};

use serde_json::Value;

/// Exit code where the lab cannot run, for want of QEMU for instance.
const NOT_POSSIBLE: i32 = 3;

/// What `handoff bench NAME --lab --quick` prints, or why this machine cannot run it.
#[track_caller]
fn bench(name: &str, arguments: &[&str]) -> Result<Vec<u8>, String> {
    let Output { status, stdout, stderr } = Command::new(env!("CARGO_BIN_EXE_handoff-workshop"))
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
            Err(reason) => handoff_testbed::skip!("{reason}"),
        }
    };
}
use bench_or_skip;

/// A script of the shell to carry in, as long as its directory lives.
struct Script {
    directory: tempfile::TempDir,
    name: &'static str,
}

impl Script {
    fn new(name: &'static str, text: &str) -> Self {
        let script = Self { directory: tempfile::tempdir().expect("a directory"), name };
        fs::write(script.path(), format!("#!/bin/sh\n{text}\n"))
            .and_then(|()| fs::set_permissions(script.path(), Permissions::from_mode(0o755)))
            .expect("written");
        script
    }

    fn path(&self) -> String {
        self.directory.path().join(self.name).to_str().expect("UTF-8").to_owned()
    }
}

/// The row of a program that was carried in: it was measured, and nobody but the meter knows what it copied.
#[track_caller]
fn peer<'a>(report: &'a Value, name: &str) -> &'a Value {
    let row = row(report, name);
    assert!(row["skipped"].is_null(), "{row}");
    assert_eq!((&row["peer"], &row["baseline"]), (&true.into(), &false.into()), "{row}");
    for time in ["bytes_per_s", "ops_per_s", "cpu_ns_per_byte", "cpu_ns_per_op", "copied_share"] {
        assert!(row[time].is_null(), "{time}: {row}");
    }
    row
}

#[track_caller]
fn row<'a>(report: &'a Value, name: &str) -> &'a Value {
    let rows = report["rows"].as_array().expect("rows");
    rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("no {name}: {report}"))
}
