//! `handoff meter`, by its command line.

mod guest {
    use std::fs;
    use std::path::Path;
    use std::process::Command;

    use serde_json::Value;

    const SIZE: u64 = 16 << 20;

    /// Runs `handoff meter` with these words: its exit code, its report, and what it says.
    fn meter(words: &[&str]) -> (Option<i32>, Value, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_handoff"));
        let output = command.args(["meter", "--json"]).args(words).output().expect("starts");
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), serde_json::from_slice(&output.stdout).unwrap_or_default(), stderr)
    }

    #[test]
    fn the_command_fails_above_its_limit_and_not_below() {
        let source = Path::new("/dev/shm").join(format!("source-{}", std::process::id()));
        fs::write(&source, vec![7; SIZE as usize]).expect("a file");
        let input = format!("if={}", source.display());
        let words = ["--fail-above", "0.01", "--", "dd", &input, "of=/dev/null", "bs=32k"];
        let (code, report, stderr) = meter(&words);
        fs::remove_file(&source).expect("ours");
        if code == Some(3) {
            handoff_testbed::skip!("{stderr}");
        }
        assert_eq!(code, Some(1), "{stderr}");
        assert!(stderr.contains(" was copied, above 0.01; most of it, "), "{stderr}");
        let copied = report["copied_bytes"].as_u64().expect("a number");
        assert!((SIZE..SIZE + SIZE / 50).contains(&copied), "{report}");
        assert!(report["places"][0]["path"].as_array().is_some_and(|path| !path.is_empty()));

        let filling = ["dd", "if=/dev/zero", "of=/dev/null", "bs=1M", "count=64"];
        let (code, report, stderr) =
            meter(&[&["--fail-above", "0.01", "--"], &filling[..]].concat());
        assert_eq!(code, Some(0), "{stderr} {report}");
    }

    #[test]
    fn the_exit_code_of_a_command_that_fails_is_passed_on() {
        let (code, report, stderr) = meter(&["--fail-above", "0", "--", "sh", "-c", "exit 7"]);
        if code == Some(3) {
            handoff_testbed::skip!("{stderr}");
        }
        assert_eq!(code, Some(7), "{stderr}");
        assert!(report["copied_bytes"].is_u64(), "{report}");
    }
}
