//! `--lab`: a bench in the lab's guest, under instruction counting.
//!
//! Contracts:
//!
//! 1. The guest runs this very program, on a stock kernel, with one processor whose clock is the number of
//!    executed instructions; the user's files stay on this side.
//! 2. The stderr of the guest's bench is passed on; its table is drawn here, from its JSON.
//! 3. The figures are instructions, and carry the word `emulated`.
//! 4. A bench that exceeds its time limit is ended, and the output shows where the guest's tasks stood.

use std::time::Duration;

use handoff_command::{Context, Failure};
use handoff_lab::{
    Acceleration, Machine,
    command::{self, Carried, TIMED_OUT},
};
use handoff_sys::companion::WORKSHOP;

use crate::{failure, report::Report};

/// The time limit with `--quick`. Such benches end in three minutes; busy machines are three times as slow.
const QUICK_LIMIT: Duration = Duration::from_secs(10 * 60);
/// The time limit of a whole table. Its slots take up to five times those of a quick one; the rest is for other
/// programs, and for longer slots if the user wants them.
const LIMIT: Duration = Duration::from_secs(2 * 60 * 60);

/// The time limit of a bench in the guest.
pub(crate) fn limit(quick: bool) -> Duration {
    if quick { QUICK_LIMIT } else { LIMIT }
}

/// Whether this is a guest of the lab, where nothing else runs and modules may be loaded.
pub(crate) fn is_guest() -> bool {
    std::env::var_os("HANDOFF_GUEST").is_some()
}

/// Loads a module if this is a guest of the lab; elsewhere it does nothing.
///
/// # Errors
///
/// [`Failure::NotPossible`] with the reason.
pub(crate) fn load_in_guest(module: &str) -> Result<(), Failure> {
    if !is_guest() {
        return Ok(());
    }
    handoff_testbed::load(module, &[]).map_err(failure::of_testbed)
}

/// Runs a bench with `arguments`, which follow `handoff-workshop`, in a guest. The guest has what is `carried`
/// in and `virtio_net` pairs of virtio-net devices, and runs at most for `limit`. Returns the report, and how
/// the guest's bench ended if it did not end well: some rows failed, or it hung afterwards.
///
/// # Errors
///
/// See [`Failure`].
pub fn run(
    arguments: &[String],
    carried: &Carried,
    virtio_net: u8,
    limit: Duration,
    context: &Context,
) -> Result<(Report, Option<String>), Failure> {
    let machine = Machine {
        cpus: 1,
        acceleration: Acceleration::InstructionCounting,
        virtio_net,
        ..Machine::default()
    };
    let ended = command::run_program(
        &machine,
        carried,
        WORKSHOP,
        arguments,
        Some(limit),
        context.stop.flag(),
    );
    let (code, output) = ended.map_err(|error| failure::of_lab(error, &context.stop))?;
    let failure = match code {
        0 => None,
        TIMED_OUT => Some(format!(
            "the bench in the guest did not end within {}; above is where its tasks stood",
            humantime::format_duration(limit)
        )),
        code => Some(format!("the bench in the guest ended with exit code {code}")),
    };
    match (serde_json::from_slice(&output), failure) {
        (Ok(report), failure) => Ok((report, failure)),
        (Err(_), Some(failure)) => Err(Failure::Failed(failure)),
        (Err(error), None) => {
            Err(Failure::Failed(format!("the bench in the guest printed no report: {error}")))
        }
    }
}

#[cfg(test)]
mod tests {
    mod guest {
        mod fixture {
            /// A fixture that takes the bench's place in the guest.
            #[test]
            #[ignore = "fixture: does not end"]
            fn does_not_end() {
                // A sleep would end at once: where instructions are counted, the clock jumps to the sleep's end.
                loop {
                    std::thread::park();
                }
            }
        }
    }

    mod native {
        use std::time::Duration;

        use handoff_command::{Context, Failure, Stop};
        use handoff_lab::command::Carried;

        #[test]
        fn a_bench_that_does_not_end_is_ended_and_says_so() {
            let context = Context { json: true, stop: Stop::new().unwrap() };
            let fixture = "lab::tests::guest::fixture::does_not_end";
            let arguments = ["--exact", "--ignored", fixture].map(str::to_owned);
            let limit = Duration::from_secs(3);
            match crate::lab::run(&arguments, &Carried::default(), 0, limit, &context) {
                Err(Failure::Failed(cause)) => {
                    assert!(cause.contains("did not end within 3s"), "{cause}");
                }
                Err(Failure::NotPossible(reason)) => handoff_testbed::skip!("{reason}"),
                Err(failure) => panic!("{failure:?}"),
                Ok(_) => panic!("no report was printed"),
            }
        }
    }
}
