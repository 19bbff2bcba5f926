//! How a subcommand fails by an error of the library.

use handoff_block::{Control, Error, ErrorKind, Found};
use handoff_command::Failure;

/// The failure of a subcommand by an error of the library.
pub(super) fn failure(error: Error) -> Failure {
    let cause = error.to_string();
    match error.kind() {
        ErrorKind::Usage => Failure::Usage(cause),
        ErrorKind::NotPossible => Failure::NotPossible(cause),
        _ => Failure::Failed(cause),
    }
}

/// The device of this number.
pub(super) fn device(control: &mut Control, id: u32) -> Result<Found, Failure> {
    let none = || Failure::usage(format!("there is no device {id}: handoff blk list"));
    control.find(id).map_err(failure)?.ok_or_else(none)
}
