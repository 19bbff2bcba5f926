//! The copy witness: counts the bytes that the kernel's CPU copies, for a process tree or for the whole
//! machine, beside the bytes that were moved. It does not rely on what the kernel reports to the
//! program.
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
//! Minimum kernel: 6.1 with BTF (CONFIG_DEBUG_INFO_BTF); kernels before 6.3 lack a tracepoint, so the
//! meter counts what their sockets copy, but not what they move. x86-64.
//! Capabilities: CAP_BPF and CAP_PERFMON, and CAP_SYSLOG for the kernel's symbols; root has them.
//! Kernel interface: `bpf(2)` programs at functions (fentry, fexit), at tracepoints and at breakpoints
//! of `perf_event_open(2)`. These are the processor's breakpoints, and the meter takes all four: only
//! one meter can run at a time, and none while a kernel debugger holds one. [`Report::missing`] lists
//! functions that the kernel lacks.
//!
//! `docs/meter.md` says what the meter sees and what it cannot see.

mod breakpoint;
mod counters;
#[cfg(all(doc, not(doctest)))]
pub mod guide;
mod meter;
mod object;
mod options;
mod report;
mod scope;
mod symbols;
mod user_copies;

pub use counters::ReadError;
pub use meter::{Meter, Unavailable};
pub use options::Options;
pub use report::{COPIED_BY, FOR, Place, Report, Totals, draw, near};
pub use scope::{Scope, is_alive};
