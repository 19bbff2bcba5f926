//! The `handoff` command: its definition, and one module per subcommand.
//!
//! Contracts:
//! - a subcommand is a `clap::Args` struct and a function `run(&Args, &Context) -> Result<(), Failure>`;
//!   list it in [`Command`] and in its [`Program::run`], nowhere else: help, man pages and completions come from
//!   the same definition;
//! - what all commands keep, [`handoff_command`] says; with `--json` a failure is the one JSON value if there is no result;
//! - a value owns whatever a subcommand sets up, and its drop puts that back, also after a signal.

// `eprintln!` panics where nobody reads standard error any more; `handoff_sys::hangup::say` does not.
#![cfg_attr(not(test), deny(clippy::print_stderr))]

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

mod blk;
pub mod doctor;
mod meter;
mod nbd;
mod nic;
mod rds;
mod relay;
mod serve;
pub mod workshop;

use handoff_command::program::{EXIT_CODES, Global, Program};
use handoff_command::{Context, Failure, completions, man};
use handoff_sys::companion::{self, WORKSHOP};

const EXAMPLES: &str = "\
Examples:
  handoff doctor                  what this kernel, these limits and these interfaces can do
  handoff doctor --json           the same for a program
  handoff cp tls-listen://:7070 file   wait for a file; prints a KEY, and what to type on the other machine:
  handoff cp file tls://host:7070 send it, ciphered; asks for the KEY
  handoff relay tcp-listen://:8080 tcp://host:80   connections passed on to another address
  handoff serve public --listen :8080   the files of a directory over HTTP
  handoff bench send --quick      copying, MSG_ZEROCOPY and io_uring zero copy side by side
  handoff report --quick          what the benches find here, and doctor, as one page
  handoff blk add loop disk.img   a block device on a file, served by a loop in the kernel
  handoff nbd serve disk.img      the disk for QEMU, nbdcopy and kernels on other machines
  handoff nic show                which network cards can receive without copies
  handoff rds stress 192.0.2.1 -s 192.0.2.2       reliable datagrams there and back
  handoff lab run -- uname -a     a command on a stock kernel in QEMU
  handoff meter -- cp one two     the bytes that the kernel copies for a command
  handoff tour --lab              a file through all of it, and who copied it on the way";

/// Moves bytes between memory, sockets, files and block devices without the CPU copying them.
#[derive(Debug, Parser)]
#[command(
    name = "handoff",
    version,
    about,
    long_about = "Moves bytes between user memory, sockets, files and block devices on stock \
                  Linux kernels without the CPU copying them, and says how many bytes the kernel \
                  copied nevertheless.",
    after_help = format!("{EXIT_CODES}\n\n{EXAMPLES}"),
    disable_help_subcommand = true
)]
pub struct Cli {
    /// The options of all commands.
    #[command(flatten)]
    pub global: Global,

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
    /// Measure handoff beside its baselines, on this machine (handoff-workshop)
    Bench(workshop::Args),
    /// Write one page of what handoff can do on this machine (handoff-workshop)
    Report(workshop::Args),
    /// Make block devices out of files, without copies
    Blk(Box<blk::Args>),
    /// Serve files and block devices over the network (NBD)
    Nbd(Box<nbd::Args>),
    /// Set rx queues of a network card aside for zero-copy receive
    Nic(Box<nic::Args>),
    /// Ping and stress reliable datagrams, by the kernel's RDS or our own
    Rds(rds::Args),
    /// Boot a stock Debian kernel in QEMU and run things on it (handoff-workshop)
    Lab(workshop::Args),
    /// Count the bytes that the kernel's CPU copies, and where
    Meter(meter::Args),
    /// Send a file through every mechanism, and show who copied it on the way (handoff-workshop)
    Tour(workshop::Args),
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
    handoff_command::program::main::<Cli>()
}

impl Program for Cli {
    fn global(&self) -> &Global {
        &self.global
    }

    fn gives_bytes(&self) -> bool {
        matches!(&self.command, Command::Cp(args) if args.gives_bytes())
    }

    fn run(&self, context: &Context) -> Result<(), Failure> {
        match &self.command {
            Command::Doctor(args) => doctor::run(args, context),
            Command::Cp(args) => handoff_cp::run(args, context),
            Command::Relay(args) => relay::run(args, context),
            Command::Serve(args) => serve::run(args, context),
            Command::Bench(_) => match workshop::start("bench")? {},
            Command::Report(_) => match workshop::start("report")? {},
            Command::Blk(args) => blk::run(args, context),
            Command::Nbd(args) => nbd::run(args, context),
            Command::Nic(args) => nic::run(args, context),
            Command::Rds(args) => rds::run(args, context),
            Command::Lab(_) => match workshop::start("lab")? {},
            Command::Meter(args) => meter::run(args, context),
            Command::Tour(_) => match workshop::start("tour")? {},
            Command::Completions(args) => complete(args),
            Command::Man(args) => explain(args),
        }
    }
}

/// Prints a completion script, with the other program's commands complete if that is installed.
fn complete(args: &completions::Args) -> Result<(), Failure> {
    if companion::find(WORKSHOP).is_none() {
        return completions::run(args, definition());
    }
    let shell = args.shell.to_string();
    let words = ["completions", "--handoff", &shell].map(OsString::from);
    match workshop::become_it("completions", words)? {}
}

/// Prints or writes man pages; those of the other program's commands are the other program's.
fn explain(args: &man::Args) -> Result<(), Failure> {
    match args.subcommand.first() {
        Some(name) if workshop::COMMANDS.contains(&name.as_str()) => {
            match workshop::start(name)? {}
        }
        _ => man::run(args, definition(), &workshop::COMMANDS),
    }
}

#[cfg(test)]
mod tests {
    use handoff_command::program;

    use super::*;

    #[test]
    fn every_subcommand_explains_itself() {
        program::assert_explained(definition(), &workshop::COMMANDS);
    }

    #[test]
    fn global_flags_stand_before_and_after_the_subcommand() {
        for line in [["handoff", "--json", "doctor"], ["handoff", "doctor", "--json"]] {
            assert!(Cli::try_parse_from(line).expect("parses").global.json);
        }
    }

    #[test]
    fn the_other_program_reads_its_own_options() {
        for line in
            [&["bench", "--help"][..], &["--json", "lab", "-h"], &["tour", "--lab", "--json"]]
        {
            let words = [&["handoff"], line].concat();
            Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{line:?}: {error}"));
        }
    }
}
