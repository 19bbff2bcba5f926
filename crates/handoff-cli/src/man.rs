//! `handoff man`: man pages, made from the definition of the command line.

use std::fs;
use std::path::PathBuf;

use clap_mangen::Man;

use handoff_command::{Failure, output};

const EXAMPLES: &str = "\
Examples:
  handoff man | man -l -
  handoff man doctor | man -l -
  handoff man bench send | man -l -
  handoff man --all ~/.local/share/man/man1";

/// Arguments of `handoff man`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// Subcommand whose page to print [default: `handoff` itself]
    pub subcommand: Vec<String>,

    /// Write all pages into this directory instead; it is made if it does not exist
    #[arg(long, value_name = "DIRECTORY", conflicts_with = "subcommand")]
    pub all: Option<PathBuf>,
}

/// Prints the page of a subcommand of this one in roff on stdout, or writes all.
///
/// # Errors
///
/// [`Failure::Usage`] for an unknown subcommand, else only those of writing.
pub fn run(args: &Args, mut root: clap::Command) -> Result<(), Failure> {
    if let Some(directory) = &args.all {
        let written = fs::create_dir_all(directory);
        let written = written.and_then(|()| clap_mangen::generate_to(root, directory));
        return written
            .map_err(|error| Failure::failed(format!("{}: {error}", directory.display())));
    }
    output::bytes(&page(&mut root, &args.subcommand)?)
}

/// The page of a subcommand, in roff.
fn page(root: &mut clap::Command, path: &[String]) -> Result<Vec<u8>, Failure> {
    // Hands the global flags down to the subcommands and names them `handoff-...`.
    root.build();
    let found = path.iter().try_fold(&*root, |command, name| command.find_subcommand(name));
    let command = found.ok_or_else(|| {
        let name = path.join(" ");
        Failure::usage(format!("no subcommand \"{name}\"; `handoff --help` lists them"))
    })?;
    let mut page = Vec::new();
    Man::new(command.clone()).render(&mut page).expect("writing to a Vec does not fail");
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_carry_exit_codes_and_examples() {
        let text = |path: &[&str]| {
            let path: Vec<String> = path.iter().map(ToString::to_string).collect();
            let page = page(&mut crate::definition(), &path).expect("page exists");
            String::from_utf8(page).expect("roff is UTF-8")
        };
        assert!(text(&[]).contains("not possible on this machine"));
        assert!(text(&["doctor"]).contains("Examples:"));
        assert!(text(&["doctor"]).contains("json"));
        assert!(text(&["bench", "send"]).contains("quick"));
    }
}
