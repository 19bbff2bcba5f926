//! `handoff meter`: mounts the copy witness.

use handoff_meter::command::{self, MeterArgs, MeterError};

use handoff_command::output::Stdout;
use handoff_command::{Context, Failure};

pub(crate) fn run(args: &MeterArgs, context: &Context) -> Result<(), Failure> {
    let mut out = Stdout::lock();
    let mut with =
        command::Context { json: context.json, stop: context.stop.flag(), out: &mut out };
    command::run(args, &mut with).map_err(|error| match error {
        MeterError::Usage(cause) => Failure::Usage(cause),
        MeterError::NotPossible(cause) => Failure::not_possible(cause),
        MeterError::Read(cause) => Failure::failed(cause),
        MeterError::AboveLimit(cause) => Failure::Failed(cause),
        MeterError::Ended(code) => Failure::Ended(code),
        MeterError::Output(error) => Failure::stdout(&error),
    })
}
