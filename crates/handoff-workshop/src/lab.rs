//! `handoff lab`: mounts the lab.

use std::sync::Arc;

use handoff_lab::{Error, command};

use handoff_command::{Context, Failure};

pub(crate) fn run(args: &command::Args, context: &Context) -> Result<(), Failure> {
    match command::run(args, &Arc::clone(context.stop.flag())) {
        Ok(0) => Ok(()),
        Ok(code) => Err(Failure::Ended(code)),
        Err(error) => Err(failure(error, context)),
    }
}

/// The failure of a subcommand that the lab did not run.
pub(crate) fn failure(error: Error, context: &Context) -> Failure {
    match error {
        Error::Failed(cause) => Failure::Failed(cause),
        Error::Usage(cause) => Failure::Usage(cause),
        Error::NotPossible(cause) => Failure::NotPossible(cause),
        Error::Stopped => context.stop.failure(),
    }
}
