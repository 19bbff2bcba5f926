//! `handoff rds`: reliable datagrams, by the kernel's sockets or by our own engine.
//!
//! Contracts:
//! - stderr and the report say which engine serves, and why the kernel's does not;
//! - a signal ends a run early, with its report.
//!
//! A port of either engine is [`handoff_net::rds::Port`]; [`stress`] asks and answers, [`report`] reports.

mod frame;
mod info;
mod ping;
mod report;
mod stress;

use clap::Subcommand;
use handoff_command::{Context, Failure};

const EXAMPLES: &str = "\
Examples:
  handoff rds ping 192.0.2.1 192.0.2.2                 from the first address to the second
  handoff rds stress 192.0.2.2                         answers at port 4000
  handoff rds stress 192.0.2.1 -s 192.0.2.2 -q 64K -t 4 -d 16 --time 10
  handoff rds stress 192.0.2.1 -s 192.0.2.2 --engine own --json
  handoff rds info                                     connections and queues of the kernel's RDS";

/// Arguments of `handoff rds`.
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
    /// Ask a host whether its RDS is there, and how long the answer takes
    Ping(ping::PingArgs),
    /// Send requests and have them answered, with their content checked
    Stress(Box<stress::StressArgs>),
    /// Show the counters and connections of the kernel's RDS
    Info(info::InfoArgs),
}

/// Runs a subcommand.
///
/// # Errors
///
/// The subcommand's.
pub(crate) fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    match &args.action {
        Action::Ping(args) => ping::run(args, context),
        Action::Stress(args) => stress::run(args, context),
        Action::Info(info::InfoArgs {}) => info::run(context),
    }
}
