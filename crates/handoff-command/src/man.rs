//! Man pages, made from the definition of the command line.

use std::path::{Path, PathBuf};
use std::{fs, io};

use clap_mangen::Man;

use crate::failure::Failure;
use crate::output;

const EXAMPLES: &str = "\
Examples:
  handoff man | man -l -
  handoff man doctor | man -l -
  handoff man bench send | man -l -
  handoff man --all ~/.local/share/man/man1";

/// Arguments of a program's `man`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// Subcommand whose page to print [default: the program itself]
    pub subcommand: Vec<String>,

    /// Write all pages into this directory instead; it is made if it does not exist
    #[arg(long, value_name = "DIRECTORY", conflicts_with = "subcommand")]
    pub all: Option<PathBuf>,
}

/// Prints the page of a subcommand of this one in roff on stdout, or writes all but those of the subcommands
/// `elsewhere`, which another program has.
///
/// # Errors
///
/// [`Failure::Usage`] for an unknown subcommand, else only those of writing.
pub fn run(args: &Args, mut root: clap::Command, elsewhere: &[&str]) -> Result<(), Failure> {
    // Hands the global options down to the subcommands and names them `handoff-...`.
    root.build();
    if let Some(directory) = &args.all {
        let written = fs::create_dir_all(directory);
        let written = written.and_then(|()| write(&root, elsewhere, directory));
        return written
            .map_err(|error| Failure::failed(format!("{}: {error}", directory.display())));
    }
    output::bytes(&page(&root, &args.subcommand)?)
}

/// Writes the page of this command, and those of its subcommands.
fn write(command: &clap::Command, elsewhere: &[&str], directory: &Path) -> io::Result<()> {
    Man::new(command.clone()).generate_to(directory)?;
    let here = |one: &&clap::Command| !one.is_hide_set() && !elsewhere.contains(&one.get_name());
    command.get_subcommands().filter(here).try_for_each(|one| write(one, &[], directory))
}

/// The page of a subcommand, in roff.
fn page(root: &clap::Command, path: &[String]) -> Result<Vec<u8>, Failure> {
    let found = path.iter().try_fold(root, |command, name| command.find_subcommand(name));
    let command = found.ok_or_else(|| {
        let name = path.join(" ");
        Failure::usage(format!("no subcommand \"{name}\"; `handoff --help` lists them"))
    })?;
    let mut page = Vec::new();
    Man::new(command.clone()).render(&mut page).expect("writing to a Vec does not fail");
    Ok(page)
}
