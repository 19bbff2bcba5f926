//! `handoff lab`: mounts the lab.

use std::sync::Arc;

use handoff_lab::{Error, command};

use crate::{Context, Failure};

pub(crate) fn run(args: &command::Args, context: &Context) -> Result<(), Failure> {
    match command::run(args, &Arc::clone(context.stop.flag())) {
        Ok(0) => Ok(()),
        Ok(code) => Err(Failure::Ended(code)),
        Err(Error::Failed(cause)) => Err(Failure::Failed(cause)),
        Err(Error::Usage(cause)) => Err(Failure::Usage(cause)),
        Err(Error::NotPossible(cause)) => Err(Failure::NotPossible(cause)),
        Err(Error::Stopped) => Err(context.stop.failure()),
    }
}
