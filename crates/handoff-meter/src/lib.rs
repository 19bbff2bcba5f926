//! The copy witness: counts the bytes that the kernel's CPU copies for a process tree or for the
//! whole machine, beside the bytes that were moved, independently of what the kernel reports to
//! the program.
//!
//! ```no_run
//! use handoff_meter::{Meter, Scope};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let meter = Meter::attach(Scope::Tree(std::process::id()))?;
//! let before = meter.totals()?;
//! std::fs::copy("/etc/services", "/tmp/services")?;
//! let spent = meter.totals()?.since(before);
//! println!("{} bytes copied of {} moved", spent.copied_bytes, spent.moved_bytes);
//! for place in meter.read()?.places {
//!     println!("{} bytes by {} for {:?}", place.bytes, place.function, place.path);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Minimum kernel: 5.11 with BTF (CONFIG_DEBUG_INFO_BTF), fentry on x86-64 or arm64, kprobes.
//! Capabilities: CAP_BPF and CAP_PERFMON, and CAP_SYSLOG for the names in call paths; root has
//! them. Kernel interface: `bpf(2)` programs of type tracing and kprobe on the functions that
//! `bpf/meter.bpf.c` lists; a function that the kernel lacks is told in [`Report::missing`].
//!
//! What it sees and what it can't is in `docs/meter.md`.

mod breakpoint;
mod meter;
mod report;
mod scope;
mod symbols;

pub mod command;

pub use meter::{Meter, Options, ReadError, Unavailable};
pub use report::{Place, Report, Totals};
pub use scope::Scope;
