//! `handoff man`: man pages, made from the definition of the command line.

use clap_mangen::Man;

use crate::{Context, Failure, output};

const EXAMPLES: &str = "\
Examples:
  handoff man | man -l -
  handoff man doctor | man -l -";

/// Arguments of `handoff man`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// Subcommand whose page is wanted; without one, that of `handoff` itself
    pub subcommand: Option<String>,
}

/// Prints the page in roff on stdout.
///
/// # Errors
///
/// [`Failure::Usage`] for an unknown subcommand, else only those of writing to stdout.
pub fn run(args: &Args, _context: &Context) -> Result<(), Failure> {
    let wanted = match &args.subcommand {
        None => "handoff".to_owned(),
        Some(name) => format!("handoff-{name}"),
    };
    let Some((_, page)) = pages().into_iter().find(|(name, _)| *name == wanted) else {
        let name = args.subcommand.as_deref().unwrap_or_default();
        return Err(Failure::usage(format!(
            "no subcommand \"{name}\"; `handoff --help` lists them"
        )));
    };
    output::bytes(&page)
}

/// Every page: its name without the section (`handoff-doctor`), and its roff.
pub fn pages() -> Vec<(String, Vec<u8>)> {
    let mut root = crate::definition();
    // Hands the global flags down to the subcommands and names them `handoff-...`.
    root.build();
    let mut pages = vec![("handoff".to_owned(), roff(root.clone()))];
    for subcommand in root.get_subcommands() {
        pages.push((format!("handoff-{}", subcommand.get_name()), roff(subcommand.clone())));
    }
    pages
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
    }
}
