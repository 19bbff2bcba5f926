//! A running guest: commands are run in it one after the other, then it is switched off.
//!
//! Contracts:
//! - a command's standard output, standard error and exit status arrive by a channel of their own,
//!   untouched; the console carries the kernel's messages and nothing else;
//! - every wait ends: with the command, soon after its time-out, when the caller's stop flag is set, or
//!   when the guest dies;
//! - a report of the kernel about itself is given to the command during which it came;
//! - dropping a guest ends it, and nothing of it stays behind; killing this process does so too.

use std::collections::VecDeque;
use std::fs;
use std::io::{self, IsTerminal};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::accelerator;
use crate::cache::Cache;
use crate::channel::{feed, read_complaints, read_console, read_messages, send};
use crate::console::{Console, Fault};
use crate::error::{Error, Result, Trying};
use crate::initramfs;
use crate::job::{Ending, Hang, Input, Job, Outcome, Stream};
use crate::kernel::{Kernel, KernelChoice};
use crate::machine::{Acceleration, Machine, QEMU};
use crate::module;
use crate::proc::Stat;
use crate::terminal;
use crate::tool::StopFlag;
use crate::userland;
use crate::wire::{self, End, Start};

/// How often a wait looks at the stop flag and the guest's state.
const LOOK: Duration = Duration::from_millis(50);
/// How long a guest may take to say where its tasks stand. An emulated one on a busy machine takes a
/// second or two.
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);
/// How long a killed command may take to be gone before the guest counts as hung.
const KILL_PATIENCE: Duration = Duration::from_secs(10);
/// How long the console may lag behind the control channel.
const CONSOLE_PATIENCE: Duration = Duration::from_secs(5);
/// How long switching off may take; a sanitizer kernel looks for leaks first.
const OFF_PATIENCE: Duration = Duration::from_secs(90);
/// How many times longer a sanitizer kernel takes to boot.
const SANITIZER_SLOWDOWN: u32 = 5;
/// Where the guest finds programs: first what the host put there.
const GUEST_PATH: &str =
    "/opt/handoff/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Bits of `/proc/sys/kernel/tainted` that say that something went wrong: machine check, bad page,
/// oops, warning, soft lockup (Documentation/admin-guide/tainted-kernels.rst).
const BAD_TAINT: u64 = 1 << 4 | 1 << 5 | 1 << 7 | 1 << 9 | 1 << 14;

/// How far it has come with a command that does not end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It may still end by itself.
    InTime,
    /// The guest was asked where its tasks stand.
    Asked,
    /// It should be gone any moment.
    Killed,
}

/// A running guest.
#[derive(Debug)]
pub struct Guest {
    /// The kernel's release, as the guest says it.
    pub release: String,
    acceleration: Acceleration,
    process: Child,
    control: Arc<Mutex<UnixStream>>,
    messages: Receiver<(u8, Vec<u8>)>,
    console: Arc<Console>,
    complaints: Arc<Mutex<VecDeque<String>>>,
    readers: Vec<JoinHandle<()>>,
    commands: u32,
    /// The bits of [`BAD_TAINT`] that have been seen.
    taint: u64,
    stop: StopFlag,
    /// Keeps the cache from being removed.
    _cache: Cache,
}

impl Guest {
    /// Boots `machine`, with the project's own kernel modules, building first whatever is not in
    /// the cache. The guest ends, at the latest, with the thread that booted it: the kernel ties
    /// the two together.
    ///
    /// # Errors
    ///
    /// [`Error::NotPossible`] where a program is missing or the archive cannot be had, else
    /// [`Error::Failed`] with the last console lines when the guest does not come up.
    pub fn boot(machine: &Machine, stop: &StopFlag) -> Result<Self> {
        if initramfs::INIT.is_empty() {
            return Err(Error::NotPossible("the lab runs on x86-64 machines only".to_owned()));
        }
        let mut machine = machine.clone();
        // In front, so that what the caller puts at the same place stays.
        machine.puts.splice(..0, module::ours(&machine.kernel, &Cache::open()?, stop)?);
        let mut guest = match Self::bring_up(&machine, stop) {
            // On a busy host an emulated kernel now and then misjudges its timers while it starts,
            // and stands still. Nothing has run by then, so nothing is hidden by another try.
            Err(Error::Failed(reason)) => {
                tracing::warn!(%reason, "booting once more");
                Self::bring_up(&machine, stop)?
            }
            result => result?,
        };
        guest.unpack(&machine)?;
        if guest.acceleration == Acceleration::InstructionCounting {
            guest.settle()?;
        }
        Ok(guest)
    }

    fn bring_up(machine: &Machine, stop: &StopFlag) -> Result<Self> {
        let (cache, userland, kernel) = prepare(&machine.kernel, stop)?;
        let acceleration = match machine.acceleration {
            Acceleration::Auto => accelerator::choose(&cache, &kernel, &userland, stop)?,
            given => given,
        };
        Self::start(machine, acceleration, &kernel, &userland, cache, stop)
    }

    pub(crate) fn start(
        machine: &Machine,
        acceleration: Acceleration,
        kernel: &Kernel,
        userland: &Path,
        cache: Cache,
        stop: &StopFlag,
    ) -> Result<Self> {
        let mut running = machine.start(acceleration, kernel, userland)?;
        let console = Arc::new(Console::default());
        let complaints = Arc::new(Mutex::new(VecDeque::new()));
        let mut readers = Vec::new();
        if let Some(output) = running.process.stdout.take() {
            readers.push(read_console(output, Arc::clone(&console), machine.show_console));
        }
        if let Some(errors) = running.process.stderr.take() {
            readers.push(read_complaints(errors, Arc::clone(&complaints)));
        }
        let (reader, messages) = read_messages(running.control.try_clone().trying("socket")?);
        readers.push(reader);
        let mut guest = Self {
            release: String::new(),
            acceleration,
            process: running.process,
            control: Arc::new(Mutex::new(running.control)),
            messages,
            console,
            complaints,
            readers,
            commands: 0,
            taint: 0,
            stop: Arc::clone(stop),
            _cache: cache,
        };
        let slowdown = if machine.kernel == KernelChoice::Kasan { SANITIZER_SLOWDOWN } else { 1 };
        guest.wait_until_ready(machine.boot_timeout * slowdown)?;
        Ok(guest)
    }

    /// How the guest's instructions are executed; never [`Acceleration::Auto`].
    pub fn acceleration(&self) -> Acceleration {
        self.acceleration
    }

    fn wait_until_ready(&mut self, patience: Duration) -> Result<()> {
        let deadline = Instant::now() + patience;
        loop {
            match self.messages.recv_timeout(LOOK) {
                Ok((wire::READY, release)) => {
                    self.release = String::from_utf8_lossy(&release).into_owned();
                    return Ok(());
                }
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) if self.stop.load(Ordering::Acquire) => {
                    return Err(Error::Stopped);
                }
                Err(RecvTimeoutError::Timeout) if Instant::now() < deadline => {}
                Err(RecvTimeoutError::Timeout) => {
                    let lines = self.end_and_explain();
                    return Err(Error::Failed(format!(
                        "the guest did not come up within {} s: {lines}",
                        patience.as_secs()
                    )));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let lines = self.end_and_explain();
                    return Err(Error::Failed(format!("the guest ended while booting: {lines}")));
                }
            }
        }
    }

    /// Lets the kernel finish what it put off while booting (seconds of work on tracing alone),
    /// which would otherwise be counted to the first thing that is measured. Costs hardly any of
    /// our time: the counted clock jumps over a sleep.
    fn settle(&mut self) -> Result<()> {
        let (outcome, ..) = self.run_captured(&Job::new(["sleep", "5"]))?;
        if outcome.success() {
            return Ok(());
        }
        Err(Error::Failed(format!("the guest does not settle: {:?}", outcome.ending)))
    }

    /// Runs a command; its output goes to `output` as it comes.
    ///
    /// # Errors
    ///
    /// [`Error::Stopped`] when the stop flag was set, and what `output` returns. How the command
    /// ended, well or not, is in the [`Outcome`].
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
            terminal: screen.as_ref().map(terminal::Screen::size),
            directory: b"/root".to_vec(),
            environment: self.environment(job),
            arguments: job.arguments.clone(),
        };
        let sent = send(&self.control, wire::RUN, &start.encode());
        let feeding = Arc::new(AtomicBool::new(true));
        let feeder = match job.input {
            Input::Empty => send(&self.control, wire::STDIN, &[]).map(|()| None),
            Input::Inherit | Input::Terminal => {
                Ok(Some(feed(&self.control, &feeding, screen.is_some())))
            }
        };
        let ending = match sent.and(feeder) {
            Ok(feeder) => {
                let ending = self.follow(number, job.timeout, &mut output);
                feeding.store(false, Ordering::Release);
                if let Some(feeder) = feeder {
                    // It looks at the flag several times a second.
                    let _ = feeder.join();
                }
                ending?
            }
            // The guest is gone; the reason is on the console.
            Err(_) => Ending::GuestDied(self.end()),
        };
        drop(screen);
        if matches!(ending, Ending::Exited(_) | Ending::Killed(_) | Ending::TimedOut(_)) {
            self.console.wait_for_mark(number, CONSOLE_PATIENCE);
        }
        let fresh_taint = self.taint & !taint_before;
        let fault = self.console.take_fault().or_else(|| self.silent_fault(fresh_taint));
        Ok(Outcome { ending, fault })
    }

    /// Runs a command and returns all of its output and all of its errors.
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

    /// Switches the guest off and returns what the kernel reported on its way down.
    ///
    /// # Errors
    ///
    /// When the guest does not switch off; it is ended then.
    pub fn power_off(mut self) -> Result<Option<Fault>> {
        // A guest that is gone already needs no message.
        let _ = send(&self.control, wire::OFF, &[]);
        let deadline = Instant::now() + OFF_PATIENCE;
        while self.process.try_wait().trying(QEMU)?.is_none() {
            if Instant::now() > deadline || self.stop.load(Ordering::Acquire) {
                let lines = self.end().join(" | ");
                return Err(Error::Failed(format!("the guest does not switch off: {lines}")));
            }
            thread::sleep(Duration::from_millis(5));
        }
        self.console.wait_for_close(CONSOLE_PATIENCE);
        Ok(self.console.take_fault())
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

    /// Hands on output until command `number` has ended, or must be ended; before that, the guest is
    /// asked where its tasks stand.
    fn follow(
        &mut self,
        number: u32,
        timeout: Option<Duration>,
        output: &mut impl FnMut(Stream, &[u8]) -> io::Result<()>,
    ) -> Result<Ending> {
        let mut deadline = timeout.map(|timeout| Instant::now() + timeout);
        let mut stage = Stage::InTime;
        let mut tasks = String::new();
        loop {
            match self.messages.recv_timeout(LOOK) {
                Ok((wire::STDOUT, bytes)) => output(Stream::Output, &bytes).trying("output")?,
                Ok((wire::STDERR, bytes)) => output(Stream::Error, &bytes).trying("output")?,
                Ok((wire::EXIT, body)) => {
                    let Some(end) = End::decode(&body) else { continue };
                    let ending = match end {
                        _ if stage != Stage::InTime => Ending::TimedOut(tasks),
                        End { signal: 0, code, .. } => Ending::Exited(code as u8),
                        End { signal, .. } => Ending::Killed(signal as u8),
                    };
                    self.taint |= end.taint & BAD_TAINT;
                    return Ok(ending);
                }
                Ok((wire::REFUSED, reason)) => {
                    return Ok(Ending::NotStarted(String::from_utf8_lossy(&reason).into_owned()));
                }
                Ok((wire::TASKS, body)) => {
                    // That of a command before may be late.
                    if let Some((asked, told)) = wire::decode_tasks(&body)
                        && asked == number
                    {
                        tasks = told;
                        if stage == Stage::Asked {
                            deadline = Some(Instant::now());
                        }
                    }
                }
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(Ending::GuestDied(self.end())),
            }
            if self.stop.load(Ordering::Acquire) {
                self.end();
                return Err(Error::Stopped);
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                let (next, patience, kind, word) = match stage {
                    _ if self.console.panicked() => return Ok(Ending::Hung(self.hang(tasks))),
                    Stage::InTime => (Stage::Asked, ANSWER_PATIENCE, wire::ASK_TASKS, number),
                    Stage::Asked => (Stage::Killed, KILL_PATIENCE, wire::SIGNAL, 9),
                    Stage::Killed => return Ok(Ending::Hung(self.hang(tasks))),
                };
                if send(&self.control, kind, &word.to_le_bytes()).is_err() {
                    return Ok(Ending::GuestDied(self.end()));
                }
                (stage, deadline) = (next, Some(Instant::now() + patience));
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

    /// Ends a guest in which nothing can be ended any more, and says what is known of it.
    fn hang(&mut self, tasks: String) -> Hang {
        let before = self.emulator_time();
        thread::sleep(Duration::from_secs(1));
        let emulator = self.emulator_time().zip(before).map(|(after, before)| after - before);
        Hang { tasks, emulator, lines: self.end() }
    }

    /// The CPU time that the emulator has taken, where it says anything (see [`Hang`]).
    fn emulator_time(&self) -> Option<Duration> {
        if self.acceleration == Acceleration::InstructionCounting {
            return None;
        }
        let line = fs::read_to_string(format!("/proc/{}/stat", self.process.id())).ok()?;
        Stat::parse(&line).map(|stat| stat.user + stat.kernel)
    }

    /// Ends the emulator and returns the last console lines.
    fn end(&mut self) -> Vec<String> {
        // A guest that has died resets, and QEMU ends by itself: its last words come first.
        let deadline = Instant::now() + Duration::from_millis(500);
        while Instant::now() < deadline && matches!(self.process.try_wait(), Ok(None)) {
            thread::sleep(Duration::from_millis(10));
        }
        self.kill();
        self.console.wait_for_close(CONSOLE_PATIENCE);
        self.console.last_lines()
    }

    fn end_and_explain(&mut self) -> String {
        let mut lines = self.end();
        let complaints = self.complaints.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        lines.extend(complaints.iter().cloned());
        if lines.is_empty() {
            lines.push("it printed nothing".to_owned());
        }
        let first = lines.len().saturating_sub(8);
        lines[first..].join(" | ")
    }

    fn kill(&mut self) {
        // Both fail only for a process that is gone.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.kill();
        // The reader of the control channel may wait for room in `messages`.
        let (_, empty) = mpsc::sync_channel(0);
        self.messages = empty;
        for reader in self.readers.drain(..) {
            // A reader that panicked has been reported by the panic itself.
            let _ = reader.join();
        }
    }
}

/// Builds what a guest with this kernel needs, if it is not in the cache: the cache, the userland's
/// image, the kernel.
///
/// # Errors
///
/// [`Error::NotPossible`] where a program, disk space or the archive is missing.
pub fn prepare(choice: &KernelChoice, stop: &StopFlag) -> Result<(Cache, PathBuf, Kernel)> {
    let cache = Cache::open()?;
    let userland = userland::image(&cache, stop)?;
    let kernel = Kernel::of(choice, &cache, stop)?;
    Ok((cache, userland, kernel))
}

/// Whether a shell in the guest can have a terminal.
pub(crate) fn on_terminal() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}
