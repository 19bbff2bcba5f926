//! Runs test programs on this machine, one after the other, each with its own parallelism.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use super::{Program, Verdict, libtest};
use crate::error::{Error, Result, Trying};
use crate::tool::{self, StopFlag};

pub(super) fn run(
    selected: &[(&Program, Vec<&str>)],
    timeout: Duration,
    stop: &StopFlag,
    record: &mut impl FnMut(&str, Verdict, Option<Duration>),
) -> Result<()> {
    for (program, tests) in selected {
        let (printed, ended) = run_program(program, tests, timeout, stop)?;
        for (test, verdict) in tests.iter().zip(libtest::verdicts(tests, &printed, &ended)) {
            record(&format!("{}::{test}", program.name), verdict, None);
        }
    }
    Ok(())
}

/// All that a program prints, and how it ends.
fn run_program(
    program: &Program,
    tests: &[&str],
    timeout: Duration,
    stop: &StopFlag,
) -> Result<(String, String)> {
    let what = program.path.display();
    // A file, not a pipe: what a test leaves running may keep its output open for ever.
    let mut output: File = tempfile::tempfile().trying("file for test output")?;
    let share = |file: &File| file.try_clone().map(Stdio::from).trying("file for test output");
    let mut command = Command::new(&program.path);
    command.args(libtest::arguments(tests)).current_dir(&program.directory);
    command.stdin(Stdio::null()).stdout(share(&output)?).stderr(share(&output)?);
    command.process_group(0);
    tool::die_with_us(&mut command, Signal::KILL);
    let mut child = command.spawn().trying(what)?;
    let group = Pid::from_child(&child);
    let deadline = Instant::now() + timeout;
    let ended = loop {
        if let Some(status) = child.try_wait().trying(program.path.display())? {
            break format!("ended with {status}");
        }
        let stopped = stop.load(Ordering::Acquire);
        if stopped || Instant::now() > deadline {
            // Tests get the chance to put back what they have set up.
            let _ = kill_process_group(group, Signal::TERM);
            std::thread::sleep(Duration::from_secs(2));
            let _ = kill_process_group(group, Signal::KILL);
            child.wait().trying(program.path.display())?;
            if stopped {
                return Err(Error::Stopped);
            }
            break format!("was ended after {} s", timeout.as_secs());
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let mut printed = Vec::new();
    output.rewind().and_then(|()| output.read_to_end(&mut printed)).trying("test output")?;
    Ok((String::from_utf8_lossy(&printed).into_owned(), ended))
}
