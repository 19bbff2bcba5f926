//! The lab: a stock Debian kernel in QEMU, for everything that this machine's own kernel lacks.
//!
//! ```no_run
//! use handoff_lab::{Guest, Job, Machine, StopFlag};
//!
//! # fn main() -> handoff_lab::Result<()> {
//! let mut guest = Guest::boot(&Machine::default(), &StopFlag::default())?;
//! let (outcome, output, _) = guest.run_captured(&Job::new(["uname", "-r"]))?;
//! assert!(outcome.success());
//! print!("{}", String::from_utf8_lossy(&output));
//! guest.power_off()?;
//! # Ok(())
//! # }
//! ```

// `eprintln!` panics where nobody reads standard error any more; `handoff_sys::hangup::say` does not.
#![cfg_attr(not(test), deny(clippy::print_stderr))]

mod archive;
mod cache;
mod channel;
mod chosen;
mod console;
mod error;
mod files;
mod guest;
#[cfg(all(doc, not(doctest)))]
pub mod guide;
mod initramfs;
mod job;
mod kernel;
mod machine;
#[cfg(test)]
#[path = "../lab/init/proc.rs"]
mod proc;
mod progress;
mod sanitizer;
mod scheduled;
mod strip;
mod terminal;
mod tool;
mod unpack;
mod userland;
#[path = "../lab/init/wire.rs"]
#[allow(dead_code, reason = "each side uses its half")]
mod wire;

pub mod command;
pub mod module;

pub use cache::{Cache, DIRECTORY_VARIABLE};
pub use console::Fault;
pub use error::{Error, Result, Trying};
pub use guest::{Guest, prepare};
pub use job::{Ending, Hang, Input, Job, Outcome, Stream, where_tasks_stood};
pub use kernel::{Kernel, KernelChoice};
pub use machine::{Acceleration, Disk, DiskContent, Machine, Put};
pub use scheduled::{KeptWaiting, processor_time};
pub use strip::Stripped;
pub use tool::StopFlag;
pub use userland::Userland;
