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
mod state;

use std::io::{self, IsTerminal};

pub use self::boot::prepare;
pub use self::state::Guest;

/// Whether a shell in the guest can have a terminal.
pub(crate) fn on_terminal() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}
