//! A running guest: it runs commands one after the other, and is then switched off.
//!
//! Contracts:
//! - a command's standard output, standard error and exit status arrive on a channel of their own,
//!   untouched; the console carries only the kernel's messages;
//! - every wait ends: with the command, soon after its time-out, when the caller's stop flag is set, or
//!   when the guest dies;
//! - a report of the kernel about itself belongs to the command during which it came;
//! - dropping a guest ends it and leaves nothing behind, and so does killing this process.

mod accelerator;
mod boot;
mod end;
mod run;

use std::collections::VecDeque;
use std::io::{self, IsTerminal};
use std::os::unix::net::UnixStream;
use std::process::Child;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

pub use self::boot::prepare;
use crate::cache::Cache;
use crate::console::Console;
use crate::machine::Acceleration;
use crate::tool::StopFlag;

/// How often a wait checks the stop flag and the guest's state.
const LOOK: Duration = Duration::from_millis(50);
/// How long the console may lag behind the control channel.
const CONSOLE_TIMEOUT: Duration = Duration::from_secs(5);

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
    acceleration: Acceleration,
    process: Child,
    control: Arc<Mutex<UnixStream>>,
    messages: Receiver<(u8, Vec<u8>)>,
    console: Arc<Console>,
    complaints: Arc<Mutex<VecDeque<String>>>,
    readers: Vec<JoinHandle<()>>,
    commands: u32,
    /// The bits of [`BAD_TAINT`](run::BAD_TAINT) that have been seen.
    taint: u64,
    stop: StopFlag,
    /// Keeps the cache from being removed.
    _cache: Cache,
}

impl Guest {
    /// How the guest's instructions are executed; never [`Acceleration::Auto`].
    pub fn acceleration(&self) -> Acceleration {
        self.acceleration
    }
}

/// Whether a shell in the guest can have a terminal.
pub(crate) fn on_terminal() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}
