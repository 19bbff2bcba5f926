//! A meter that the kernel, or the user's rights, keep from counting.

use std::process::{Command, Output};

#[test]
fn a_meter_that_cannot_count_ends_the_bench_before_it_begins() {
    let Output { status, stdout, stderr } = Command::new(env!("CARGO_BIN_EXE_handoff-workshop"))
        .args(["bench", "send", "--meter", "--time", "0.01", "--rounds", "1", "--only", "^copy$"])
        .output()
        .expect("it starts");
    let error = String::from_utf8_lossy(&stderr).into_owned();
    if status.success() {
        handoff_testbed::skip!("the meter counts here");
    }
    assert_eq!((status.code(), stdout.len()), (Some(3), 0), "{error}");
    assert!(error.contains("copy meter is unavailable ("), "{error}");
    assert!(error.contains("without --meter"), "what helps: {error}");
    assert_eq!(error.trim_end().lines().count(), 1, "{error}");
}
