//! `handoff bench`: mounts the benches.

use handoff_bench::command::{self, BenchArgs};
use handoff_bench::context::{self, BenchError};

use handoff_command::output::Stdout;
use handoff_command::{Context, Failure};

pub(crate) fn run(args: &BenchArgs, context: &Context) -> Result<(), Failure> {
    on_stdout(context, |with| command::run(args, with))
}

/// Also for modules that use the benches.
pub(crate) fn on_stdout(
    context: &Context,
    work: impl FnOnce(&mut context::Context<'_>) -> Result<(), BenchError>,
) -> Result<(), Failure> {
    let mut out = Stdout::lock();
    let mut with =
        context::Context { json: context.json, stop: context.stop.flag(), out: &mut out };
    work(&mut with).map_err(|error| match error {
        BenchError::Usage(cause) => Failure::Usage(cause),
        BenchError::NotPossible(cause) => Failure::NotPossible(cause),
        BenchError::Failed(cause) => Failure::Failed(cause),
        BenchError::Stopped => context.stop.failure(),
        BenchError::Output(error) => Failure::stdout(&error),
    })
}
