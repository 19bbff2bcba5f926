//! `handoff nbd`: block devices over the network (NBD).

mod args;
mod exports;
mod report;
mod serve;
mod worker;

use clap::Subcommand;
use handoff_command::{Context, Failure};

const EXAMPLES: &str = "\
Examples:
  handoff nbd serve disk.img                           nbd://127.0.0.1/, for this machine
  handoff nbd serve --read-only --listen :10809 a=a.img b=/dev/vdb
  nbdinfo --list nbd://127.0.0.1                       what is there (libnbd)";

/// Arguments of `handoff nbd`.
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
    /// Serve files and block devices over NBD
    Serve(Box<args::ServeArgs>),
}

/// Runs a subcommand.
///
/// # Errors
///
/// The subcommand's.
pub(crate) fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    match &args.action {
        Action::Serve(args) => serve::run(args, context),
    }
}
