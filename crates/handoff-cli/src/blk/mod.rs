//! `handoff blk`: block devices whose data need not pass through user space.
//!
//! Contracts:
//! - a device has a server, which owns its threads and files, and a supervisor, which starts the
//!   next server when one is killed; both are this program, detached from the terminal;
//! - `add` returns when the block device is there, or leaves nothing behind;
//! - `list` and `show` read what they print from the driver and from the state in memory
//!   (`handoff_block::state`); they ask no server.

use clap::Subcommand;
use handoff_command::{Context, Failure};

mod add;
mod del;
mod ending;
mod failure;
mod holders;
mod leg;
mod pressure;
mod set;
mod show;
mod starting;
mod supervise;

const EXAMPLES: &str = "\
`del` removes a device that nobody uses. So does SIGTERM to its supervisor, which serves it on until
nobody uses it; after a second SIGTERM the device goes all the same. A restart of the machine ends
all devices.

Examples:
  handoff blk add linear half-1.img half-2.img       two files, one after the other
  handoff blk add stripe --chunk 256k a b c          chunks dealt out to three files
  handoff blk add mirror --create /dev/vdb /dev/vdc  the same bytes on two disks; without --create from then on
  handoff blk show 0                                 engine, queues, requests and their times
  handoff blk del 0";

/// Arguments of `handoff blk`.
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
    /// Make a device and serve it
    Add(add::AddArgs),
    /// List the devices
    List(show::ListArgs),
    /// Show how a device is served, and what it has done
    Show(show::ShowArgs),
    /// Set values in the maps of a device's policy, or exchange the policy
    Set(set::SetArgs),
    /// Serve a device again after its server and supervisor are gone
    Recover(add::RecoverArgs),
    /// Remove devices
    Del(del::DelArgs),
    /// Serve a device in this process (started by its supervisor)
    #[command(hide = true)]
    Serve(supervise::ServeArgs),
    /// Watch over a device's server (started by add and recover)
    #[command(hide = true)]
    Supervise(supervise::ServeArgs),
    /// Say of which mirror a disk is a leg, for udev
    #[command(hide = true)]
    Leg(leg::LegArgs),
    /// Do a part of a device's end that may hang (started by del and by supervisors)
    #[command(hide = true)]
    End(ending::EndArgs),
}

pub(crate) use self::show::mirrors;

pub(crate) fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    match &args.action {
        Action::Add(args) => add::add(args, context),
        Action::List(args) => show::list(args, context),
        Action::Show(args) => show::show(args, context),
        Action::Set(args) => set::run(args, context),
        Action::Recover(args) => add::recover(args, context),
        Action::Del(args) => del::run(args, context),
        Action::Serve(args) => supervise::serve(args, context),
        Action::Supervise(args) => supervise::supervise(args, context),
        Action::Leg(args) => leg::run(args),
        Action::End(args) => ending::run(args, context),
    }
}
