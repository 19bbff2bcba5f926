//! The failures of commands that cannot have the lab or the testbed that they need.

use handoff_command::{Failure, Stop};
use handoff_lab::Error;
use handoff_testbed::TopologyError;

/// The failure of a command for which the lab has failed.
pub fn of_lab(error: Error, stop: &Stop) -> Failure {
    match error {
        Error::Failed(cause) => Failure::Failed(cause),
        Error::Usage(cause) => Failure::Usage(cause),
        Error::NotPossible(cause) => Failure::NotPossible(cause),
        Error::Stopped => stop.failure(),
    }
}

/// The failure of a command for which no hosts or disks could be made.
pub(crate) fn of_testbed(error: TopologyError) -> Failure {
    match error.is_unavailable() {
        true => Failure::NotPossible(error.to_string()),
        false => Failure::Failed(error.to_string()),
    }
}
