//! What is known of a running guest.

use std::collections::VecDeque;
use std::os::unix::net::UnixStream;
use std::process::Child;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::cache::Cache;
use crate::console::Console;
use crate::machine::Acceleration;
use crate::scheduled::processor_time;
use crate::tool::StopFlag;

/// How often a wait checks the stop flag and the guest's state.
pub(super) const LOOK: Duration = Duration::from_millis(50);
/// How long the console may lag behind the control channel.
pub(super) const CONSOLE_TIMEOUT: Duration = Duration::from_secs(5);

/// A running guest.
///
/// ```no_run
/// use handoff_lab::{Guest, Job, Machine, StopFlag};
///
/// # fn main() -> handoff_lab::Result<()> {
/// let mut guest = Guest::boot(&Machine::default(), &StopFlag::default())?;
/// let (outcome, output, _) = guest.run_captured(&Job::new(["lsmod"]))?;
/// if let Some(fault) = outcome.fault {
///     eprintln!("{fault}");
/// }
/// print!("{}", String::from_utf8_lossy(&output));
/// guest.power_off()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Guest {
    /// The kernel's release, as the guest reports it.
    pub release: String,
    pub(super) acceleration: Acceleration,
    pub(super) process: Child,
    pub(super) control: Arc<Mutex<UnixStream>>,
    pub(super) messages: Receiver<(u8, Vec<u8>)>,
    pub(super) console: Arc<Console>,
    pub(super) complaints: Arc<Mutex<VecDeque<String>>>,
    pub(super) readers: Vec<JoinHandle<()>>,
    pub(super) commands: u32,
    /// The bits of [`BAD_TAINT`](super::run::BAD_TAINT) that have been seen.
    pub(super) taint: u64,
    pub(super) stop: StopFlag,
    /// Keeps the cache from being removed.
    pub(super) _cache: Cache,
}

impl Guest {
    /// How the guest's instructions are executed; never [`Acceleration::Auto`].
    pub fn acceleration(&self) -> Acceleration {
        self.acceleration
    }

    /// How long the guest's emulator was on a processor until now.
    pub fn processor_time(&self) -> Duration {
        processor_time(self.process.id())
    }
}
