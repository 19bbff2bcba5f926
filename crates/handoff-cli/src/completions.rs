//! `handoff completions`: a completion script, made from the definition of the command line.

use clap_complete::Shell;

use handoff_command::{Context, Failure, output};

const EXAMPLES: &str = "\
Examples:
  handoff completions bash > /etc/bash_completion.d/handoff
  handoff completions zsh > ~/.zfunc/_handoff
  handoff completions fish > ~/.config/fish/completions/handoff.fish";

/// Arguments of `handoff completions`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// The shell that will read the script
    pub shell: Shell,
}

/// Prints the script on stdout.
///
/// # Errors
///
/// Only those of writing to stdout.
pub fn run(args: &Args, _context: &Context) -> Result<(), Failure> {
    output::bytes(&script(args.shell))
}

fn script(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut crate::definition(), "handoff", &mut script);
    script
}
