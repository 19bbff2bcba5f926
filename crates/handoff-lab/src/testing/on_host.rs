//! Runs one test on this machine.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use super::lanes::Ran;
use super::{Plan, Program, libtest};
use crate::error::{Error, Result, Trying};
use crate::tool::{self, StopFlag};

const LOOK: Duration = Duration::from_millis(5);
/// How long a test may take to put back what it has set up.
const GRACE: Duration = Duration::from_secs(2);

pub(super) fn run(program: &Program, test: &str, plan: &Plan, stop: &StopFlag) -> Result<Ran> {
    // A file, not a pipe: what a test leaves running may keep its output open for ever.
    let mut output: File = tempfile::tempfile().trying("file for test output")?;
    let share = |file: &File| file.try_clone().map(Stdio::from).trying("file for test output");
    let mut command = Command::new(&program.path);
    command.args(libtest::arguments(&[test])).current_dir(&program.directory);
    // As Cargo sets it.
    command.env("CARGO_MANIFEST_DIR", &program.directory);
    command.stdin(Stdio::null()).stdout(share(&output)?).stderr(share(&output)?);
    command.process_group(0);
    tool::die_with_us(&mut command, Signal::KILL);
    let begin = Instant::now();
    let ended = match wait(&mut command, begin + plan.timeout, stop)? {
        Some(status) => format!("ended with {status}"),
        None => format!("was ended after {} s", plan.timeout.as_secs()),
    };
    let took = begin.elapsed();
    let mut printed = Vec::new();
    output.rewind().and_then(|()| output.read_to_end(&mut printed)).trying("test output")?;
    let printed = String::from_utf8_lossy(&printed).into_owned();
    let verdict = libtest::verdicts(&[test], &printed, &ended).remove(0);
    Ok(Ran { verdict, took, details: vec![("all that it printed", printed)] })
}

/// How the command ended; `None`: by us, at the deadline.
fn wait(command: &mut Command, deadline: Instant, stop: &StopFlag) -> Result<Option<ExitStatus>> {
    let what = command.get_program().display().to_string();
    let mut child = command.spawn().trying(&what)?;
    let group = Pid::from_child(&child);
    loop {
        if let Some(status) = child.try_wait().trying(&what)? {
            return Ok(Some(status));
        }
        let stopped = stop.load(Ordering::Acquire);
        if stopped || Instant::now() > deadline {
            // A group that is gone by itself is what is wanted.
            let _ = kill_process_group(group, Signal::TERM);
            let patience = Instant::now() + GRACE;
            while Instant::now() < patience && child.try_wait().trying(&what)?.is_none() {
                thread::sleep(LOOK);
            }
            let _ = kill_process_group(group, Signal::KILL);
            child.wait().trying(&what)?;
            return if stopped { Err(Error::Stopped) } else { Ok(None) };
        }
        thread::sleep(LOOK);
    }
}
