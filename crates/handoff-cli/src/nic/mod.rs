//! `handoff nic`: sets rx queues of a network card aside for zero-copy receive, and puts everything back.
//!
//! Contracts:
//! - what `prepare` and `lease` change is undone when it fails, when the command ends, and on SIGINT,
//!   SIGTERM and SIGHUP; after a kill, `restore` does it;
//! - with `--dry-run` you see every change before it is made, in words;
//! - `show` changes nothing and needs no privileges.

use clap::Subcommand;
use handoff_command::{Context, Failure};

mod lease;
mod numbers;
mod prepare;
mod restore;
mod show;

const EXAMPLES: &str = "\
Examples:
  handoff nic show                                   all interfaces, and which are fit
  handoff nic show eth0                              one in detail, and what is in the way
  handoff nic prepare eth0 --port 8000 --dry-run     what would be changed
  handoff nic prepare eth0 --port 8000 -- ./server   set a queue aside while the server runs
  handoff nic prepare eth0 --port 8000               the same until it is restored
  handoff nic lease eth0 --to blue --address 10.9.0.2   a queue for a container
  handoff nic restore eth0";

/// Arguments of `handoff nic`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// What to do
    #[command(subcommand)]
    pub action: Action,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Action {
    /// Show an interface, its rx queues, and what is in the way of zero-copy receive
    Show(show::ShowArgs),
    /// Set rx queues aside, and steer connections to them
    Prepare(prepare::PrepareArgs),
    /// Lease rx queues to a program in another network namespace
    Lease(lease::LeaseArgs),
    /// Put back what was prepared or leased
    Restore(restore::RestoreArgs),
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    match &args.action {
        Action::Show(args) => show::run(args, context),
        Action::Prepare(args) => prepare::run(args, context),
        Action::Lease(args) => lease::run(args, context),
        Action::Restore(args) => restore::run(args, context),
    }
}
