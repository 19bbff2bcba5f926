//! How a guest boots: what it needs is built, and awaited.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::accelerator;
use super::state::{Guest, LOOK};
use crate::cache::Cache;
use crate::channel::{read_complaints, read_console, read_messages};
use crate::console::Console;
use crate::error::{Error, Result, Trying};
use crate::initramfs;
use crate::job::Job;
use crate::kernel::{Kernel, KernelChoice};
use crate::machine::{Acceleration, Machine};
use crate::module;
use crate::scheduled::Stretch;
use crate::tool::StopFlag;
use crate::userland::Userland;
use crate::wire;

/// How many times longer a sanitizer kernel takes to boot.
const SANITIZER_SLOWDOWN: u32 = 5;
/// How many times longer it takes to boot where systemd starts its services.
const SYSTEMD_SLOWDOWN: u32 = 3;

impl Guest {
    /// Boots `machine`, with the project's own kernel modules unless its userland is for packages of them, and first
    /// builds whatever is missing from the cache. The guest ends, at the latest, with the thread that booted it: the
    /// kernel ties the two together.
    ///
    /// # Errors
    ///
    /// [`Error::NotPossible`] if a program is missing or the archive cannot be reached, else
    /// [`Error::Failed`] with the last console lines if the guest does not boot.
    pub fn boot(machine: &Machine, stop: &StopFlag) -> Result<Self> {
        check_architecture()?;
        let mut machine = machine.clone();
        if machine.userland == Userland::Small {
            // In front, so that the caller's files at the same place win.
            machine.puts.splice(..0, module::ours(&machine.kernel, &Cache::open()?, stop)?);
        }
        let mut guest = match Self::bring_up(&machine, stop) {
            // On a busy host an emulated kernel now and then misjudges its timers while it starts, and
            // hangs. Nothing has run by then, so another try hides nothing.
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
        let (cache, userland, kernel) = prepare(&machine.kernel, machine.userland, stop)?;
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
        let slowdown = match (&machine.kernel, machine.userland) {
            (KernelChoice::Kasan, _) => SANITIZER_SLOWDOWN,
            (_, Userland::Full) => SYSTEMD_SLOWDOWN,
            (_, Userland::Small) => 1,
        };
        guest.wait_until_ready(machine.boot_timeout * slowdown)?;
        Ok(guest)
    }

    fn wait_until_ready(&mut self, timeout: Duration) -> Result<()> {
        let stretch = Stretch::of(self.process.id());
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
                Err(RecvTimeoutError::Timeout) if !stretch.is_past(timeout) => {}
                Err(RecvTimeoutError::Timeout) => {
                    let lines = self.end_and_explain();
                    return Err(Error::Failed(format!(
                        "the guest did not come up within {} s: {lines}",
                        timeout.as_secs()
                    )));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let lines = self.end_and_explain();
                    return Err(Error::Failed(format!("the guest ended while booting: {lines}")));
                }
            }
        }
    }

    /// Lets the kernel finish what it put off while booting (seconds of work on tracing alone), which
    /// would otherwise be counted to the first measurement. It costs hardly any of our time: the counted
    /// clock jumps over a sleep.
    fn settle(&mut self) -> Result<()> {
        let (outcome, ..) = self.run_captured(&Job::new(["sleep", "5"]))?;
        if outcome.success() {
            return Ok(());
        }
        Err(Error::Failed(format!("the guest does not settle: {:?}", outcome.ending)))
    }
}

fn check_architecture() -> Result<()> {
    if initramfs::INIT.is_empty() {
        return Err(Error::NotPossible("the lab runs on x86-64 machines only".to_owned()));
    }
    Ok(())
}

/// Builds what a guest with this kernel needs, unless it is in the cache: the cache, the userland's
/// image, the kernel.
///
/// # Errors
///
/// [`Error::NotPossible`] if a program, disk space or the archive is missing.
pub fn prepare(
    choice: &KernelChoice,
    userland: Userland,
    stop: &StopFlag,
) -> Result<(Cache, PathBuf, Kernel)> {
    check_architecture()?;
    userland.check(choice)?;
    let cache = Cache::open()?;
    let kernel = Kernel::of(choice, &cache, stop)?;
    let userland = userland.image(choice, &kernel, &cache, stop)?;
    Ok((cache, userland, kernel))
}
