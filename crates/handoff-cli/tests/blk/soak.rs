//! The long forms, in guests of their own.

use std::process::Command;

#[test]
fn a_guest_that_is_short_of_memory_goes_on_with_files_and_swap_on_a_device() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/blk/pressure.sh");
    for engine in ["bpf", "user-auto", "batch-auto", "user-copy"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_handoff"));
        command.args(["lab", "run", "--memory", "256", "--timeout", "600", "--put", script]);
        command.args(["--disk", "one=320M", "--disk", "two=128M"]);
        let output = command.args(["--", "bash", "/root/pressure.sh", engine]).output();
        let output = output.expect("handoff starts");
        let errors = String::from_utf8_lossy(&output.stderr);
        if output.status.code() == Some(3) {
            handoff_lab::skip!("{errors}");
        }
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && text.ends_with("went on\n"),
            "{engine}: {text}\n{errors}"
        );
    }
}
