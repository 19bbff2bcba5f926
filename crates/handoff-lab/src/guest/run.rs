//! A command in the guest: started, followed until it ends, or ended.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use super::state::{CONSOLE_TIMEOUT, Guest, LOOK};
use crate::channel::{feed, send};
use crate::console::Fault;
use crate::error::{Error, Result, Trying};
use crate::job::{Ending, Input, Job, Outcome, Stream};
use crate::scheduled::Stretch;
use crate::terminal;
use crate::wire::{self, End, Start};

/// How long a guest may take to say where its tasks stand, in time that the host leaves to it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a killed command may take to go before the guest counts as hung, in such time.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// Where the guest finds programs: first those that the host put there.
const GUEST_PATH: &str =
    "/opt/handoff/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Bits of `/proc/sys/kernel/tainted` that say that something went wrong: machine check, bad page,
/// oops, warning, soft lockup (Documentation/admin-guide/tainted-kernels.rst).
const BAD_TAINT: u64 = 1 << 4 | 1 << 5 | 1 << 7 | 1 << 9 | 1 << 14;

/// The stages of ending a command that does not end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It may still end by itself.
    InTime,
    /// We asked the guest where its tasks stand.
    Asked,
    /// It should end any moment.
    Killed,
}

impl Guest {
    /// Runs a command; its output goes to `output` as it comes.
    ///
    /// # Errors
    ///
    /// [`Error::Stopped`] if the stop flag was set, and errors of `output`. The [`Outcome`] says how the
    /// command ended, well or not.
    pub fn run(
        &mut self,
        job: &Job,
        mut output: impl FnMut(Stream, &[u8]) -> io::Result<()>,
    ) -> Result<Outcome> {
        let taint_before = self.taint;
        self.commands += 1;
        let number = self.commands;
        let terminal = matches!(job.input, Input::Terminal);
        let screen = if terminal { Some(terminal::Screen::take()?) } else { None };
        let start = Start {
            number,
            terminal: screen.as_ref().map(|_| terminal::size()),
            tracks: job.tracks,
            directory: b"/root".to_vec(),
            environment: self.environment(job),
            arguments: job.arguments.clone(),
        };
        let sent = send(&self.control, wire::RUN, &start.encode());
        let feeding = Arc::new(AtomicBool::new(true));
        let mut left = String::new();
        let feeder = match job.input {
            Input::Empty => send(&self.control, wire::STDIN, &[]).map(|()| None),
            Input::Inherit | Input::Terminal => {
                Ok(Some(feed(&self.control, &feeding, screen.is_some())))
            }
        };
        let ending = match sent.and(feeder) {
            Ok(feeder) => {
                let ending = self.follow(number, job.timeout, &mut output, &mut left);
                feeding.store(false, Ordering::Release);
                if let Some(feeder) = feeder {
                    // It checks the flag several times a second.
                    let _ = feeder.join();
                }
                ending?
            }
            // The guest is gone; the reason is on the console.
            Err(_) => Ending::GuestDied(self.end()),
        };
        drop(screen);
        if matches!(ending, Ending::Exited(_) | Ending::Killed(_) | Ending::TimedOut(_)) {
            self.console.wait_for_mark(number, CONSOLE_TIMEOUT);
        }
        let fresh_taint = self.taint & !taint_before;
        let fault = self.console.take_fault().or_else(|| self.silent_fault(fresh_taint));
        Ok(Outcome { ending, fault, left, console: self.console.of_command(number) })
    }

    /// Runs a command and returns its whole output and all of its errors.
    ///
    /// # Errors
    ///
    /// As [`Guest::run`].
    pub fn run_captured(&mut self, job: &Job) -> Result<(Outcome, Vec<u8>, Vec<u8>)> {
        let (mut output, mut errors) = (Vec::new(), Vec::new());
        let outcome = self.run(job, |stream, bytes| {
            match stream {
                Stream::Output => output.extend(bytes),
                Stream::Error => errors.extend(bytes),
            }
            Ok(())
        })?;
        Ok((outcome, output, errors))
    }

    fn environment(&self, job: &Job) -> Vec<Vec<u8>> {
        let mut environment: Vec<String> = vec![
            format!("PATH={GUEST_PATH}"),
            "HOME=/root".to_owned(),
            "USER=root".to_owned(),
            "LANG=C.UTF-8".to_owned(),
            "HANDOFF_GUEST=1".to_owned(),
            "HANDOFF_MODULES=/opt/handoff/modules".to_owned(),
        ];
        if let Some(how) = self.acceleration.emulated() {
            environment.push(format!("HANDOFF_EMULATED={how}"));
        }
        const PASSED_ON: [&str; 6] =
            ["TERM", "COLORTERM", "RUST_BACKTRACE", "RUST_LOG", "HANDOFF_LOG", "HANDOFF_SOAK"];
        for name in PASSED_ON {
            if let Ok(value) = std::env::var(name) {
                environment.push(format!("{name}={value}"));
            }
        }
        environment.extend(job.environment.iter().cloned());
        environment.into_iter().map(String::into_bytes).collect()
    }

    /// Passes on output until command `number` has ended, or must be ended; before it ends the command,
    /// it asks the guest where its tasks stand.
    fn follow(
        &mut self,
        number: u32,
        timeout: Option<Duration>,
        output: &mut impl FnMut(Stream, &[u8]) -> io::Result<()>,
        left: &mut String,
    ) -> Result<Ending> {
        let mut stage = Stage::InTime;
        let mut since = Stretch::of(self.process.id());
        let (mut tasks, mut answered) = (String::new(), false);
        loop {
            match self.messages.recv_timeout(LOOK) {
                Ok((wire::STDOUT, bytes)) => output(Stream::Output, &bytes).trying("output")?,
                Ok((wire::STDERR, bytes)) => output(Stream::Error, &bytes).trying("output")?,
                Ok((wire::EXIT, body)) => {
                    let Some(end) = End::decode(&body) else { continue };
                    self.taint |= end.taint & BAD_TAINT;
                    *left = end.left;
                    let ending = match (end.signal, end.code) {
                        _ if stage != Stage::InTime => Ending::TimedOut(tasks),
                        (0, code) => Ending::Exited(code as u8),
                        (signal, _) => Ending::Killed(signal as u8),
                    };
                    return Ok(ending);
                }
                Ok((wire::REFUSED, reason)) => {
                    return Ok(Ending::NotStarted(String::from_utf8_lossy(&reason).into_owned()));
                }
                Ok((wire::TASKS, body)) => {
                    // A late message of an earlier command.
                    if let Some((asked, told)) = wire::decode_tasks(&body)
                        && asked == number
                    {
                        (tasks, answered) = (told, true);
                    }
                }
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(Ending::GuestDied(self.end())),
            }
            if self.stop.load(Ordering::Acquire) {
                self.end();
                return Err(Error::Stopped);
            }
            let is_over = match stage {
                Stage::InTime => timeout.is_some_and(|timeout| since.is_past(timeout)),
                Stage::Asked => answered || since.is_past(ANSWER_TIMEOUT),
                Stage::Killed => since.is_past(KILL_TIMEOUT),
            };
            if is_over {
                let (next, kind, word) = match stage {
                    _ if self.console.panicked() => return Ok(Ending::Hung(self.hang(tasks))),
                    Stage::InTime => (Stage::Asked, wire::ASK_TASKS, number),
                    Stage::Asked => (Stage::Killed, wire::SIGNAL, 9),
                    Stage::Killed => return Ok(Ending::Hung(self.hang(tasks))),
                };
                if send(&self.control, kind, &word.to_le_bytes()).is_err() {
                    return Ok(Ending::GuestDied(self.end()));
                }
                (stage, since) = (next, Stretch::of(self.process.id()));
            }
        }
    }

    /// What to report when the kernel marked itself, but printed nothing that [`Console`] knows.
    fn silent_fault(&self, fresh_taint: u64) -> Option<Fault> {
        if fresh_taint == 0 {
            return None;
        }
        let headline = format!("the kernel marked itself as tainted (bits {fresh_taint:#x})");
        Some(Fault { headline, lines: self.console.last_lines() })
    }
}
