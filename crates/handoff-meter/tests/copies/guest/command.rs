//! `handoff meter`, by its command line.

use std::fs::{self, OpenOptions};
use std::path::Path;
use std::sync::atomic::AtomicBool;

use clap::Parser;
use handoff_meter::command::{self, Context, MeterArgs, MeterError};

use crate::counting::{SIZE, TMPFS, TURN, assert_near};
use crate::files::write_all;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    meter: MeterArgs,
}

/// Runs `handoff meter` with these words.
fn meter(words: &[&str]) -> (Result<(), MeterError>, serde_json::Value) {
    let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let words = ["meter"].iter().chain(words);
    let cli = Cli::try_parse_from(words).expect("a good command line");
    let mut out = Vec::new();
    let stop = AtomicBool::new(false);
    let mut context = Context { json: true, stop: &stop, out: &mut out };
    let result = command::run(&cli.meter, &mut context);
    (result, serde_json::from_slice(&out).unwrap_or_default())
}

#[test]
fn the_command_fails_above_its_limit_and_not_below() {
    let source = Path::new(TMPFS).join(format!("source-{}", std::process::id()));
    let mut file = OpenOptions::new().create(true).append(true).open(&source).expect("a file");
    write_all(&mut file);
    let input = format!("if={}", source.display());
    let (copying, report) =
        meter(&["--fail-above", "0.01", "--", "dd", &input, "of=/dev/null", "bs=32k"]);
    fs::remove_file(&source).expect("ours");
    if let Err(MeterError::NotPossible(unavailable)) = &copying {
        handoff_testbed::skip!("{unavailable}");
    }
    assert!(matches!(copying, Err(MeterError::AboveLimit(_))), "{copying:?}");
    assert_near("copied", report["copied_bytes"].as_u64().expect("a number"), SIZE);
    assert!(report["places"][0]["path"].as_array().is_some_and(|path| !path.is_empty()));

    let filling = ["dd", "if=/dev/zero", "of=/dev/null", "bs=1M", "count=64"];
    let (filled, report) = meter(&[&["--fail-above", "0.01", "--"], &filling[..]].concat());
    assert!(filled.is_ok(), "{filled:?} {report}");
}

#[test]
fn the_exit_code_of_a_command_that_fails_is_passed_on() {
    let (ended, report) = meter(&["--fail-above", "0", "--", "sh", "-c", "exit 7"]);
    if let Err(MeterError::NotPossible(unavailable)) = &ended {
        handoff_testbed::skip!("{unavailable}");
    }
    assert!(matches!(ended, Err(MeterError::Ended(7))), "{ended:?}");
    assert!(report["copied_bytes"].is_u64(), "{report}");
}
