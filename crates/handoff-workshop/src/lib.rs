//! The program `handoff-workshop`: what measures and tests the product.
//!
//! Contracts:
//! - `handoff bench`, `report`, `lab` and `tour` start this program with their arguments as they are, so its
//!   commands, options and pages go by the name of `handoff`;
//! - the program uses the product as its users do: it starts the program `handoff`;
//! - [`handoff_command`] says what all commands keep.

// `eprintln!` panics where nobody reads standard error any more; `handoff_sys::hangup::say` does not.
#![cfg_attr(not(test), deny(clippy::print_stderr))]

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use handoff_cli::workshop::COMMANDS;
use handoff_command::program::{EXIT_CODES, Global, Program};
use handoff_command::{Context, Failure, completions, man};
use handoff_sys::companion::PRODUCT;

mod lab;
mod tour;

const EXAMPLES: &str = "\
Examples:
  handoff bench send --quick      copying, MSG_ZEROCOPY and io_uring zero copy side by side
  handoff report --quick          what the benches find here, and doctor, as one page
  handoff lab run -- uname -a     a command on a stock kernel in QEMU
  handoff tour --lab              a file through all of it, and who copied it on the way

`handoff bench` starts this program, as do the other three.";

/// Measures and tests handoff, beside other ways and on other kernels.
#[derive(Debug, Parser)]
#[command(
    name = "handoff-workshop",
    version,
    about,
    after_help = format!("{EXIT_CODES}\n\n{EXAMPLES}"),
    disable_help_subcommand = true
)]
struct Cli {
    /// The options of all commands.
    #[command(flatten)]
    global: Global,

    /// What to do
    #[command(subcommand)]
    command: Command,
}

/// The subcommands; each is documented in its module.
#[derive(Debug, Subcommand)]
enum Command {
    /// Measure handoff beside its baselines, on this machine
    Bench(handoff_bench::command::BenchArgs),
    /// Write one page of what handoff can do on this machine
    Report(handoff_report::ReportArgs),
    /// Boot a stock Debian kernel in QEMU and run things on it
    Lab(Box<handoff_lab::command::Args>),
    /// Send a file through every mechanism, and show who copied it on the way
    Tour(tour::Args),
    /// Print a completion script for a shell
    Completions(Completions),
    /// Print a man page
    Man(man::Args),
}

/// Arguments of `handoff-workshop completions`.
#[derive(Debug, clap::Args)]
struct Completions {
    /// The script of `handoff` with the commands of this program in it, instead of that of `handoff-workshop`
    #[arg(long)]
    handoff: bool,

    /// The shell.
    #[command(flatten)]
    shared: completions::Args,
}

/// Parses the arguments, runs the subcommand, and reports a failure on stderr.
pub fn main() -> ExitCode {
    handoff_command::program::main::<Cli>()
}

impl Program for Cli {
    fn global(&self) -> &Global {
        &self.global
    }

    fn run(&self, context: &Context) -> Result<(), Failure> {
        match &self.command {
            Command::Bench(args) => handoff_bench::command::run(args, context),
            Command::Report(args) => handoff_report::run(args, context),
            Command::Lab(args) => lab::run(args, context),
            Command::Tour(args) => tour::run(args, context),
            Command::Completions(Completions { handoff: false, shared }) => {
                completions::run(shared, Cli::command())
            }
            Command::Completions(Completions { handoff: true, shared }) => {
                completions::run(shared, both())
            }
            Command::Man(args) => man::run(args, pages(), &[]),
        }
    }
}

/// The definition of `handoff` with the commands of this program in it.
fn both() -> clap::Command {
    let ours = Cli::command();
    COMMANDS.iter().fold(handoff_cli::definition(), |product, &name| {
        let ours = ours.find_subcommand(name).expect("defined above").clone();
        product.mut_subcommand(name, |_| ours)
    })
}

/// The definition of this program, whose commands go by the name of `handoff`.
fn pages() -> clap::Command {
    COMMANDS.iter().fold(Cli::command(), |all, &name| {
        all.mut_subcommand(name, |one| {
            one.bin_name(format!("{PRODUCT} {name}")).display_name(format!("{PRODUCT}-{name}"))
        })
    })
}

#[cfg(test)]
mod tests {
    use handoff_command::program;

    use super::*;

    #[test]
    fn every_subcommand_explains_itself() {
        program::assert_explained(Cli::command(), &[]);
        program::assert_explained(both(), &[]);
    }

    #[test]
    fn the_product_names_all_commands_of_this_program() {
        let ours = Cli::command();
        let ours = ours.get_subcommands().map(clap::Command::get_name);
        let ours: Vec<_> = ours.filter(|name| !["completions", "man"].contains(name)).collect();
        assert_eq!(ours, COMMANDS);
    }
}
