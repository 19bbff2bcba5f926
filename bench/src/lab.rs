//! `--lab`: a bench in the lab's guest, under instruction counting.
//!
//! Contracts:
//!
//! 1. The guest runs this very program, on a stock kernel, with one processor whose clock is the
//!    number of instructions that it has executed; files of the user stay on this side.
//! 2. What the guest's bench says on stderr is passed on; its table is drawn here, from its JSON.
//! 3. The figures are instructions, and carry the word `emulated`.

use handoff_lab::{
    Acceleration, Error, Machine,
    command::{self, Carried},
};

use crate::{
    command::{BenchError, Context},
    report::Report,
};

/// Whether this is a guest of the lab, where nothing else runs and modules may be loaded.
pub(crate) fn is_guest() -> bool {
    std::env::var_os("HANDOFF_GUEST").is_some()
}

/// Runs a bench with `arguments`, which follow `handoff`, in a guest that has what is `carried` in, and so
/// many pairs of virtio-net devices. With the report, the exit code of the guest's bench where it was not 0:
/// some of its rows failed.
///
/// # Errors
///
/// See [`BenchError`].
pub fn run(
    arguments: &[String],
    carried: &Carried,
    virtio_net: u8,
    context: &Context<'_>,
) -> Result<(Report, Option<u8>), BenchError> {
    let machine = Machine {
        cpus: 1,
        acceleration: Acceleration::InstructionCounting,
        virtio_net,
        ..Machine::default()
    };
    let (code, output) = command::run_ourselves(&machine, carried, arguments, context.stop)
        .map_err(|error| match error {
            Error::Failed(cause) => BenchError::Failed(cause),
            Error::Usage(cause) => BenchError::Usage(cause),
            Error::NotPossible(cause) => BenchError::NotPossible(cause),
            Error::Stopped => BenchError::Stopped,
        })?;
    match serde_json::from_slice(&output) {
        Ok(report) => Ok((report, Some(code).filter(|&code| code != 0))),
        Err(_) if code != 0 => {
            Err(BenchError::Failed(format!("the bench in the guest ended with exit code {code}")))
        }
        Err(error) => {
            Err(BenchError::Failed(format!("the bench in the guest printed no report: {error}")))
        }
    }
}
