//! `handoff doctor`: what this kernel, these limits, this user and each interface can do.

use crate::{Context, Failure};

const EXAMPLES: &str = "\
Examples:
  handoff doctor                  a table of every mechanism and every interface
  handoff doctor --iface eth0     the same with this interface only
  handoff doctor --json           a list of {mechanism, state, reason, remedy, needs_kernel}";

/// Arguments of `handoff doctor`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// Look at this network interface only, instead of all
    #[arg(long, value_name = "NAME")]
    pub iface: Option<String>,
}

/// Probes and prints.
///
/// # Errors
///
/// [`Failure::Usage`] for an interface that does not exist.
pub fn run(_args: &Args, _context: &Context) -> Result<(), Failure> {
    Ok(())
}
