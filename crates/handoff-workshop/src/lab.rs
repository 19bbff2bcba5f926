//! The subcommand `handoff lab`.

use handoff_bench::failure::of_lab;
use handoff_command::{Context, Failure};
use handoff_lab::command;

pub(crate) fn run(args: &command::Args, context: &Context) -> Result<(), Failure> {
    match command::run(args, context.stop.flag()) {
        Ok(0) => Ok(()),
        Ok(code) => Err(Failure::Ended(code)),
        Err(error) => Err(of_lab(error, &context.stop)),
    }
}
