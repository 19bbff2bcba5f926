//! Common parts of the tests of several benches.

use std::sync::atomic::Ordering;

use clap::{Args, Parser};
use handoff_command::{Context, Failure, Stop};

use crate::{report::Report, run::Found};

/// The command line of one bench.
#[derive(Parser)]
struct Cli<A: Args> {
    #[command(flatten)]
    args: A,
}

/// The arguments of a bench, from words with spaces between them.
///
/// # Errors
///
/// clap's error.
pub(crate) fn parse<A: Args>(line: &str) -> Result<A, clap::Error> {
    Cli::try_parse_from(format!("x {line}").split_whitespace()).map(|cli| cli.args)
}

/// The report of a bench, which runs in its own thread, since it moves that thread to other namespaces.
///
/// # Errors
///
/// See [`Failure`].
pub(crate) fn report_of(
    stopped: bool,
    bench: impl FnOnce(&Context) -> Result<Found, Failure> + Send + 'static,
) -> Result<Report, Failure> {
    let work = move || {
        let stop = Stop::new().unwrap();
        stop.flag().store(stopped, Ordering::Relaxed);
        bench(&Context { json: true, stop }).map(|found| found.report)
    };
    std::thread::spawn(work).join().unwrap()
}

/// Takes the report that a test checks, or skips the test if the bench cannot run here.
macro_rules! report_or_skip {
    ($measured:expr) => {
        match $measured {
            Ok(report) => report,
            Err(Failure::NotPossible(reason)) => handoff_testbed::skip!("{reason}"),
            Err(failure) => panic!("{failure:?}"),
        }
    };
}
pub(crate) use report_or_skip;
