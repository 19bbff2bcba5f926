//! A guest that is short of memory while it has files and swap on devices.

use std::process::Command;

/// Runs `pressure.sh` in a guest of its own, with a file system and the swap by these engines.
/// The guest is ended before the test is, so the test's output has what a guest that stands still has told.
pub(crate) fn goes_on(engines: [&str; 2], file_system: &str, rounds: u32) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/blk/pressure.sh");
    let (timeout, rounds) = ((240 * rounds).to_string(), rounds.to_string());
    let mut command = Command::new(env!("CARGO_BIN_EXE_handoff"));
    command.args(["lab", "run", "--memory", "256", "--timeout", &timeout, "--put", script]);
    command.args(["--disk", "one=320M", "--disk", "two=128M", "--", "bash", "/root/pressure.sh"]);
    let output =
        command.args(engines).args([&rounds, file_system]).output().expect("handoff starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(3) {
        handoff_testbed::skip!("{errors}");
    }
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.ends_with("went on\n"),
        "{engines:?}, {file_system}: {text}\n{errors}"
    );
}

#[test]
fn both_servers_are_killed_when_memory_is_short() {
    goes_on(["user-auto", "user-auto"], "ext4", 1);
}
