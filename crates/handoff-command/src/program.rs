//! A program made of subcommands: its global options, and its way from the arguments to the exit code.

use std::io::{self, Write as _};
use std::process::ExitCode;

use crate::context::Context;
use crate::failure::Failure;
use crate::stop::Stop;
use crate::{logging, output};

/// The end of each program's help: what its exit codes say.
pub const EXIT_CODES: &str = "\
Exit codes:
  0    done
  1    failed; the line on stderr says why
  2    usage: the command line or an address is wrong
  3    not possible on this machine; the line on stderr says why and what would help
  130  stopped by SIGINT after cleaning up, 143 by SIGTERM, 129 by SIGHUP (the session ended);
       a second SIGINT or SIGTERM ends the command at once";

/// Where help lists the options of all commands: below those of one.
const HEADING: &str = "Options of all commands";

/// The options of all commands.
#[derive(Debug, clap::Args)]
pub struct Global {
    /// Print the result as one JSON value instead of text; on failure {"error": ..., "exit_code": ...}
    #[arg(long, global = true, help_heading = HEADING)]
    pub json: bool,

    /// Log to standard error; -vv logs every step, -vvv everything
    ///
    /// To log some modules only, set HANDOFF_LOG instead, for example HANDOFF_LOG=handoff_probe=debug.
    #[arg(short, long, global = true, action = clap::ArgAction::Count, help_heading = HEADING)]
    pub verbose: u8,
}

/// The arguments of a program, and what it does with them.
pub trait Program: clap::Parser {
    /// The options of all commands.
    fn global(&self) -> &Global;

    /// Whether stdout carries bytes, so that the JSON value of a failure goes to stderr.
    fn gives_bytes(&self) -> bool {
        false
    }

    /// Runs the subcommand.
    ///
    /// # Errors
    ///
    /// The [`Failure`] of the subcommand, which carries the exit code.
    fn run(&self, context: &Context) -> Result<(), Failure>;
}

/// Parses the arguments, runs the subcommand, reports a failure on stderr.
pub fn main<P: Program>() -> ExitCode {
    let program = match P::try_parse() {
        Ok(program) => program,
        Err(error) => return not_parsed(&error),
    };
    let Global { json, verbose } = *program.global();
    logging::start(verbose);
    let outcome = Stop::on_signals()
        .map_err(|error| Failure::failed(format!("signal handlers could not be set: {error}")))
        .and_then(|stop| {
            let context = Context { json, stop };
            program.run(&context).map_err(|failure| context.stop.explain(failure))
        });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if let Some(line) = failure.line() {
                output::say(line);
            }
            if json {
                output::failure(&failure, program.gives_bytes());
            }
            failure.exit_code()
        }
    }
}

/// clap has its own message, and leaves with 0 (help, version) or 2 (usage).
fn not_parsed(error: &clap::Error) -> ExitCode {
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
    match error.print().and_then(|()| io::stdout().flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(unwritten) => {
            let failure = Failure::stdout(&unwritten);
            failure.line().into_iter().for_each(output::say);
            failure.exit_code()
        }
    }
}

/// For tests of a program: its definition is consistent, every subcommand says what it does, and each that does not
/// only group others has examples.
///
/// # Panics
///
/// If one does not.
pub fn assert_explained(mut definition: clap::Command, elsewhere: &[&str]) {
    definition.clone().debug_assert();
    definition.build();
    let here = |command: &&clap::Command| !elsewhere.contains(&command.get_name());
    definition.get_subcommands().filter(here).for_each(explains_itself);
}

fn explains_itself(command: &clap::Command) {
    let name = command.get_name();
    assert!(command.get_about().is_some(), "{name} has no description");
    let help = command.clone().render_long_help().to_string();
    if !help.contains("Examples:") {
        assert!(command.has_subcommands(), "{name} --help has no examples");
        command.get_subcommands().for_each(explains_itself);
    }
}
