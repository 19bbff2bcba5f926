//! The commands of the program `handoff-workshop`, which measures and tests: this program starts it with the
//! arguments as they are.

use std::convert::Infallible;
use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use handoff_command::Failure;
use handoff_sys::companion::{self, PRODUCT, WORKSHOP};

/// Their names.
pub const COMMANDS: [&str; 4] = ["bench", "report", "lab", "tour"];

/// The arguments of such a command, which the other program reads.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// What handoff-workshop is to do
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    pub arguments: Vec<OsString>,
}

/// Becomes the other program, with this program's arguments.
///
/// # Errors
///
/// If it is not installed or cannot be started.
pub(crate) fn start(command: &str) -> Result<Infallible, Failure> {
    become_it(command, std::env::args_os().skip(1))
}

/// The same with other arguments, for `command`.
///
/// # Errors
///
/// As [`start`].
pub(crate) fn become_it(
    command: &str,
    arguments: impl IntoIterator<Item = OsString>,
) -> Result<Infallible, Failure> {
    let program = companion::find(WORKSHOP).ok_or_else(|| {
        Failure::not_possible(format!(
            "`handoff {command}` is a command of {WORKSHOP}, which is neither beside this program nor on PATH: \
             install the package {WORKSHOP}"
        ))
    })?;
    // Its help and its messages then name the command as the user has typed it.
    let error = Command::new(&program).arg0(PRODUCT).args(arguments).exec();
    Err(Failure::failed(format!("{} cannot be started: {error}", program.display())))
}
