//! `handoff man`: man pages, made from the definition of the command line.

use std::fs;
use std::path::{Path, PathBuf};

use clap_mangen::Man;

use crate::{Context, Failure, output};

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
    /// Subcommand to print the page of [default: `handoff` itself]
    pub subcommand: Vec<String>,

    /// Write every page into this directory instead; it is made if it does not exist
    #[arg(long, value_name = "DIRECTORY", conflicts_with = "subcommand")]
    pub all: Option<PathBuf>,
}

/// Prints the page in roff on stdout, or writes all.
///
/// # Errors
///
/// [`Failure::Usage`] for an unknown subcommand, else only those of writing.
pub fn run(args: &Args, _context: &Context) -> Result<(), Failure> {
    if let Some(directory) = &args.all {
        return write_all(directory);
    }
    let wanted = ["handoff"].into_iter().chain(args.subcommand.iter().map(String::as_str));
    let wanted = wanted.collect::<Vec<_>>().join("-");
    let Some((_, page)) = pages().into_iter().find(|(name, _)| *name == wanted) else {
        let name = args.subcommand.join(" ");
        return Err(Failure::usage(format!(
            "no subcommand \"{name}\"; `handoff --help` lists them"
        )));
    };
    output::bytes(&page)
}

fn write_all(directory: &Path) -> Result<(), Failure> {
    let failed = |path: &Path, error| Failure::failed(format!("{}: {error}", path.display()));
    fs::create_dir_all(directory).map_err(|error| failed(directory, error))?;
    for (name, page) in pages() {
        let path = directory.join(format!("{name}.1"));
        fs::write(&path, page).map_err(|error| failed(&path, error))?;
    }
    Ok(())
}

/// Every page: its name without the section (`handoff-doctor`), and its roff.
fn pages() -> Vec<(String, Vec<u8>)> {
    let mut root = crate::definition();
    // Hands the global flags down to the subcommands and names them `handoff-...`.
    root.build();
    let mut pages = Vec::new();
    collect(&root, &mut pages);
    pages
}

fn collect(command: &clap::Command, pages: &mut Vec<(String, Vec<u8>)>) {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    pages.push((name.to_owned(), roff(command.clone())));
    for subcommand in command.get_subcommands() {
        collect(subcommand, pages);
    }
}

fn roff(command: clap::Command) -> Vec<u8> {
    let mut page = Vec::new();
    Man::new(command).render(&mut page).expect("writing to a Vec does not fail");
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_carry_exit_codes_and_examples() {
        let pages = pages();
        let text = |wanted: &str| {
            let (_, page) = pages.iter().find(|(name, _)| name == wanted).expect("page exists");
            String::from_utf8(page.clone()).expect("roff is UTF-8")
        };
        assert!(text("handoff").contains("not possible on this machine"));
        assert!(text("handoff-doctor").contains("Examples:"));
        assert!(text("handoff-doctor").contains("json"));
        assert!(text("handoff-bench-send").contains("quick"));
    }
}
