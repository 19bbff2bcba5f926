//! `handoff lab`: the command line of the lab.
//!
//! A program mounts it with three lines: an `Args` among its subcommands, its own stop flag, and
//! the exit code that [`run`] returns.

use std::time::Duration;

use clap::Subcommand;
use handoff_sys::companion::WORKSHOP;

use crate::cache::Cache;
use crate::error::Result;
use crate::job::Stream;
use crate::machine::Machine;
use crate::strip::Stripped;
use crate::tool::StopFlag;

mod demo;
mod guest_options;
mod image;
mod kernel;
mod run;
mod runner;

pub use guest_options::{Carried, GuestOptions, Prepared};
pub use run::TIMED_OUT;

const AFTER_HELP: &str = "\
Examples:
  handoff lab run -- uname -a                     boots, runs, switches off
  handoff lab run --kernel bookworm -- uname -r   the same on Debian 12's kernel
  handoff lab run --disk d=1G -- sh -c 'mkfs.xfs /dev/disk/by-id/virtio-d'
  handoff lab shell                               a shell in the guest

The first start builds the guest's image from the Debian archive that apt on this machine uses,
as root, in about a minute; later starts need neither network nor root.";

/// Boot a stock Debian kernel in QEMU and run things on it
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// What the lab does.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a command in a guest; its output and exit code are those of this command
    Run(run::RunArgs),
    /// Open a shell in a guest
    Shell(run::ShellArgs),
    /// Show what a guest has that this machine may lack
    Demo(demo::DemoArgs),
    /// Run one test program in a guest: a target runner for Cargo
    ///
    /// CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER='handoff lab runner' cargo test
    Runner(runner::RunnerArgs),
    /// Build what a guest needs, so that later starts are quick and work offline
    Image(image::ImageArgs),
    /// Build a kernel that Debian does not have, for finding bugs
    Kernel(kernel::KernelArgs),
    /// Remove everything that the lab has built
    Clean,
}

/// Runs a subcommand and returns the exit code of the process.
///
/// All of it ends soon after `stop` is set.
///
/// # Errors
///
/// [`crate::Error`], whose [`code`](crate::Error::code) is the exit code to end with.
pub fn run(args: &Args, stop: &StopFlag) -> Result<u8> {
    match &args.command {
        Command::Run(args) => run::run(args, stop),
        Command::Shell(args) => run::shell(args, stop),
        Command::Demo(args) => demo::run(args, stop),
        Command::Runner(args) => runner::run(args, stop),
        Command::Image(args) => image::run(args, stop),
        Command::Kernel(args) => kernel::run(args, stop),
        Command::Clean => {
            let bytes = Cache::clear()?;
            println!("{} MiB freed", bytes >> 20);
            Ok(0)
        }
    }
}

/// Runs `program`, the product or this program under the name of the workshop, in a guest with `carried` in; returns its exit code
/// and its standard output. A `timeout` ends it: exit code [`TIMED_OUT`], and the output shows where the
/// guest's tasks stood.
///
/// Its environment has `HANDOFF_GUEST=1`, and `HANDOFF_EMULATED` says how it is executed (see
/// [`crate::Acceleration::emulated`]). Standard input and error are ours.
///
/// # Errors
///
/// As [`run`]; a report of the kernel about itself is shown, and gives exit code 125.
pub fn run_program<T: AsRef<[u8]>>(
    machine: &Machine,
    carried: &Carried,
    program: &str,
    arguments: impl IntoIterator<Item = T>,
    timeout: Option<Duration>,
    stop: &StopFlag,
) -> Result<(u8, Vec<u8>)> {
    let stripped = Stripped::new()?;
    let mut machine = machine.clone();
    machine.puts.extend(carried.puts(&stripped));
    machine.puts.extend(stripped.programs((program == WORKSHOP).then_some(WORKSHOP)));
    let mut words = vec![program.as_bytes().to_vec()];
    words.extend(arguments.into_iter().map(|word| word.as_ref().to_vec()));
    let mut output = Vec::new();
    let code = run::run_once(&machine, words, timeout, stop, |stream, bytes| match stream {
        Stream::Output => {
            output.extend_from_slice(bytes);
            Ok(())
        }
        Stream::Error => run::pass_on(stream, bytes),
    })?;
    Ok((code, output))
}
