//! Runs of the product, which end with this program.

use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use handoff_bench::peer::Output;
use handoff_command::{Failure, Stop};
use handoff_sys::companion::{self, PRODUCT};
use handoff_testbed::Namespace;
use rustix::process::{Pid, Signal, kill_process};
use serde::de::DeserializeOwned;

/// The time between two looks at a run.
const LOOK: Duration = Duration::from_millis(20);
/// The longest time that a run may take to put back what it has set up.
const TIMEOUT: Duration = Duration::from_secs(20);
/// The exit code for something that this machine cannot do.
const NOT_POSSIBLE: i32 = 3;

/// A run of `handoff`. Dropping it asks the run to end, and waits for the end.
pub(super) struct Running {
    child: Child,
    /// The command as the user would type it.
    line: String,
    printed: Output,
    told: Output,
}

impl Running {
    /// Starts `handoff --json` with `arguments` on a host; for `None`, on this one.
    pub(super) fn start(host: Option<&Namespace>, arguments: &[&str]) -> Result<Self, Failure> {
        let program = companion::find(PRODUCT).ok_or_else(|| {
            Failure::not_possible(format!(
                "{PRODUCT} is neither beside this program nor on PATH: install the package {PRODUCT}"
            ))
        })?;
        let (printed, told) = (output()?, output()?);
        let mut command = Command::new(program);
        command.arg("--json").args(arguments);
        command.stdin(Stdio::null()).stdout(printed.sink()).stderr(told.sink());
        handoff_testbed::die_with_us(&mut command, Signal::TERM);
        // A terminal's signals do not reach the run: what uses it ends first.
        command.process_group(0);
        if let Some(host) = host {
            host.attach(&mut command);
        }
        let line = format!("handoff {}", arguments.join(" "));
        tracing::info!("{line}");
        let child = command
            .spawn()
            .map_err(|error| Failure::failed(format!("{line} cannot be started: {error}")))?;
        Ok(Self { child, line, printed, told })
    }

    /// Waits for the run's first result. The run may go on.
    pub(super) fn result<T: DeserializeOwned>(&mut self, stop: &Stop) -> Result<T, Failure> {
        self.until(stop, |printed, _| serde_json::from_str(printed).ok())
    }

    /// Waits until the run's standard error contains `text`.
    pub(super) fn says(&mut self, text: &str, stop: &Stop) -> Result<(), Failure> {
        self.until(stop, |_, told| told.contains(text).then_some(()))
    }

    /// Waits for the run's end, and returns its result.
    pub(super) fn finish<T: DeserializeOwned>(mut self, stop: &Stop) -> Result<T, Failure> {
        loop {
            let status = self.child.try_wait().map_err(Failure::failed)?;
            match status {
                Some(status) if status.success() => return self.result(stop),
                Some(_) => return Err(self.failure()),
                None => wait(stop)?,
            }
        }
    }

    /// Waits until `ready` finds what it looks for in the run's standard output and standard error.
    fn until<T>(
        &mut self,
        stop: &Stop,
        ready: impl Fn(&str, &str) -> Option<T>,
    ) -> Result<T, Failure> {
        loop {
            // The end is checked first: what the run printed before its end is there after it.
            let ended = self.child.try_wait().map_err(Failure::failed)?.is_some();
            let text = |output: &Output| output.text().map_err(Failure::failed);
            match ready(&text(&self.printed)?, &text(&self.told)?) {
                Some(found) => return Ok(found),
                None if ended => return Err(self.failure()),
                None => wait(stop)?,
            }
        }
    }

    /// Why the run ended, in its own words.
    fn failure(&mut self) -> Failure {
        let told = self.told.text().unwrap_or_default();
        let last = told.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no reason");
        let cause = format!("{}: {}", self.line, last.trim().trim_start_matches("handoff: "));
        match self.child.wait().ok().and_then(|status| status.code()) {
            Some(NOT_POSSIBLE) => Failure::NotPossible(cause),
            _ => Failure::Failed(cause),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let begin = Instant::now();
        let mut asked = false;
        while let Ok(None) = self.child.try_wait() {
            if !asked {
                let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
                asked = true;
            }
            if begin.elapsed() > TIMEOUT {
                tracing::warn!("{} does not end, and is killed", self.line);
                let _ = self.child.kill();
                let _ = self.child.wait();
            }
            std::thread::sleep(LOOK);
        }
    }
}

fn output() -> Result<Output, Failure> {
    Output::new().map_err(Failure::failed)
}

fn wait(stop: &Stop) -> Result<(), Failure> {
    stop.check()?;
    std::thread::sleep(LOOK);
    Ok(())
}
