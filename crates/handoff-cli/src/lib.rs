//! The `handoff` command: its definition, and one module per subcommand.
//!
//! Contracts:
//! - a subcommand is a `clap::Args` struct and a function `run(&Args, &Context) -> Result<(), Failure>`;
//!   list it in [`Command`] and in [`run`], nowhere else: help, man pages and completions come from the
//!   same definition;
//! - what all commands keep, [`handoff_command`] says; with `--json` a failure is the one JSON value if there is no result;
//! - a value owns whatever a subcommand sets up, and its drop puts that back, also after a signal.

// `eprintln!` panics where nobody reads standard error any more; `handoff_sys::hangup::say` does not.
#![cfg_attr(not(test), deny(clippy::print_stderr))]

use std::io::Write as _;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

mod bench;
mod blk;
pub mod completions;
pub mod doctor;
mod lab;
pub mod man;
mod meter;
mod nic;
mod rds;
mod relay;
mod report;
mod serve;
mod tour;

use handoff_command::{Context, Failure, Stop, logging, output};

const AFTER_HELP: &str = "\
Exit codes:
  0    done
  1    failed; the line on stderr says why
  2    usage: the command line or an address is wrong
  3    not possible on this machine; the line on stderr says why and what would help
  130  stopped by SIGINT after cleaning up, 143 by SIGTERM, 129 by SIGHUP (the session ended);
       a second SIGINT or SIGTERM ends the command at once

Examples:
  handoff doctor                  what this kernel, these limits and these interfaces can do
  handoff doctor --json           the same for a program
  handoff cp file tcp://host:9000 send a file to another machine, which waits for it with:
  handoff cp tcp-listen://:9000 file
  handoff relay tcp-listen://:8080 tcp://host:80   connections passed on to another address
  handoff serve public --listen :8080   the files of a directory over HTTP
  handoff bench send --quick      copying, MSG_ZEROCOPY and io_uring zero copy side by side
  handoff report --quick          what the benches find here, and doctor, as one page
  handoff blk add loop disk.img   a block device on a file, served by a loop in the kernel
  handoff nic show                which network cards can receive without copies
  handoff rds stress 192.0.2.1 -s 192.0.2.2       reliable datagrams there and back
  handoff lab run -- uname -a     a command on a stock kernel in QEMU
  handoff meter -- cp one two     the bytes that the kernel copies for a command
  handoff tour --lab              a file through all of it, and who copied it on the way";

/// Where help lists the options of all commands: below those of one.
const GLOBAL: &str = "Options of all commands";

/// Moves bytes between memory, sockets, files and block devices without the CPU copying them.
#[derive(Debug, Parser)]
#[command(
    name = "handoff",
    version,
    about,
    long_about = "Moves bytes between user memory, sockets, files and block devices on stock \
                  Linux kernels without the CPU copying them, and says how many bytes the kernel \
                  copied nevertheless.",
    after_help = AFTER_HELP,
    disable_help_subcommand = true
)]
pub struct Cli {
    /// Print the result as one JSON value instead of text; on failure {"error": ..., "exit_code": ...}
    #[arg(long, global = true, help_heading = GLOBAL)]
    pub json: bool,

    /// Log to standard error; -vv logs every step, -vvv everything
    ///
    /// To log some modules only, set HANDOFF_LOG instead, for example HANDOFF_LOG=handoff_probe=debug.
    #[arg(short, long, global = true, action = clap::ArgAction::Count, help_heading = GLOBAL)]
    pub verbose: u8,

    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands; each is documented in its module.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show what this kernel, these limits, this user and each interface can do
    Doctor(doctor::Args),
    /// Copy a file or pipe to another, here or on another machine
    Cp(handoff_cp::Args),
    /// Pass TCP connections on to another address, without copying
    Relay(relay::Args),
    /// Serve the files of a directory over HTTP, from the page cache's pages
    Serve(serve::Args),
    /// Measure handoff beside its baselines, on this machine
    Bench(handoff_bench::command::BenchArgs),
    /// Write one page of what handoff can do on this machine
    Report(handoff_report::ReportArgs),
    /// Make block devices out of files, without copies
    Blk(Box<blk::Args>),
    /// Set rx queues of a network card aside for zero-copy receive
    Nic(Box<nic::Args>),
    /// Ping and stress reliable datagrams, by the kernel's RDS or our own
    Rds(rds::Args),
    /// Boot a stock Debian kernel in QEMU and run things on it
    Lab(Box<handoff_lab::command::Args>),
    /// Count the bytes that the kernel's CPU copies, and where
    Meter(handoff_meter::command::MeterArgs),
    /// Send a file through every mechanism, and show who copied it on the way
    Tour(tour::Args),
    /// Print a completion script for a shell
    Completions(completions::Args),
    /// Print a man page
    Man(man::Args),
}

/// The definition of the command line, complete with every subcommand.
pub fn definition() -> clap::Command {
    Cli::command()
}

/// Parses the arguments, runs the subcommand, reports a failure on stderr.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        // clap has its own message, and leaves with 0 (help, version) or 2 (usage).
        Err(error) => {
            if error.use_stderr() && std::env::args_os().any(|argument| argument == "--json") {
                let text = error.to_string();
                // To the first empty line: the next ones list what is meant.
                let cause: Vec<_> = text.lines().take_while(|line| !line.is_empty()).collect();
                let cause = cause.join(" ");
                let cause = cause.strip_prefix("error: ").unwrap_or(&cause);
                output::failure(&Failure::usage(cause), false);
            }
            if error.use_stderr() {
                error.exit()
            }
            return match error.print().and_then(|()| std::io::stdout().flush()) {
                Ok(()) => ExitCode::SUCCESS,
                Err(unwritten) => {
                    let failure = Failure::stdout(&unwritten);
                    failure.line().into_iter().for_each(output::say);
                    failure.exit_code()
                }
            };
        }
    };
    logging::start(cli.verbose);
    let outcome = Stop::on_signals()
        .map_err(|error| Failure::failed(format!("signal handlers could not be set: {error}")))
        .and_then(|stop| {
            let context = Context { json: cli.json, stop };
            run(&cli.command, &context).map_err(|failure| context.stop.explain(failure))
        });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if let Some(line) = failure.line() {
                output::say(line);
            }
            if cli.json {
                let gives_bytes = matches!(&cli.command, Command::Cp(args) if args.gives_bytes());
                output::failure(&failure, gives_bytes);
            }
            failure.exit_code()
        }
    }
}

/// Runs one subcommand.
///
/// # Errors
///
/// The [`Failure`] of the subcommand, which carries the exit code.
pub fn run(command: &Command, context: &Context) -> Result<(), Failure> {
    match command {
        Command::Doctor(args) => doctor::run(args, context),
        Command::Cp(args) => handoff_cp::run(args, context),
        Command::Relay(args) => relay::run(args, context),
        Command::Serve(args) => serve::run(args, context),
        Command::Bench(args) => bench::run(args, context),
        Command::Report(args) => report::run(args, context),
        Command::Blk(args) => blk::run(args, context),
        Command::Nic(args) => nic::run(args, context),
        Command::Rds(args) => rds::run(args, context),
        Command::Lab(args) => lab::run(args, context),
        Command::Meter(args) => meter::run(args, context),
        Command::Tour(args) => tour::run(args, context),
        Command::Completions(args) => completions::run(args, definition()),
        Command::Man(args) => man::run(args, definition()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definition_is_consistent() {
        definition().debug_assert();
    }

    #[test]
    fn every_subcommand_explains_itself() {
        definition().get_subcommands().for_each(explains_itself);
    }

    /// A command that only groups others may leave the examples to them.
    fn explains_itself(command: &clap::Command) {
        let name = command.get_name();
        assert!(command.get_about().is_some(), "{name} has no description");
        let help = command.clone().render_long_help().to_string();
        if !help.contains("Examples:") {
            assert!(command.has_subcommands(), "{name} --help has no examples");
            command.get_subcommands().for_each(explains_itself);
        }
    }

    #[test]
    fn global_flags_stand_before_and_after_the_subcommand() {
        for line in [["handoff", "--json", "doctor"], ["handoff", "doctor", "--json"]] {
            assert!(Cli::try_parse_from(line).expect("parses").json);
        }
    }
}
