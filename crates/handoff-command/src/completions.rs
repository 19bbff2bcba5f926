//! A completion script, made from the definition of the command line.

use clap_complete::Shell;

use crate::failure::Failure;
use crate::output;

const EXAMPLES: &str = "\
Examples:
  handoff completions bash > /etc/bash_completion.d/handoff
  handoff completions zsh > ~/.zfunc/_handoff
  handoff completions fish > ~/.config/fish/completions/handoff.fish";

/// Arguments of a program's `completions`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// The shell that will read the script
    pub shell: Shell,
}

/// Prints the script for this definition of the command line on stdout.
///
/// # Errors
///
/// Only those of writing to stdout.
pub fn run(args: &Args, mut definition: clap::Command) -> Result<(), Failure> {
    let mut script = Vec::new();
    let name = definition.get_name().to_owned();
    clap_complete::generate(args.shell, &mut definition, name, &mut script);
    output::bytes(&script)
}
