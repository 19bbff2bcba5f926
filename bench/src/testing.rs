//! Common parts of the tests of several benches.

use std::sync::{Arc, atomic::AtomicBool};

use clap::{Args, Parser};

use crate::{
    context::{BenchError, Context},
    report::Report,
};

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
/// See [`BenchError`].
pub(crate) fn report_of(
    stopped: bool,
    bench: impl FnOnce(&mut Context<'_>) -> Result<(), BenchError> + Send + 'static,
) -> Result<Report, BenchError> {
    let work = move || {
        let mut out = Vec::new();
        let stop = Arc::new(AtomicBool::new(stopped));
        bench(&mut Context { json: true, stop: &stop, out: &mut out })?;
        Ok(serde_json::from_slice(&out).unwrap())
    };
    std::thread::spawn(work).join().unwrap()
}

/// The report that a test checks; skips the test if the bench cannot run here.
macro_rules! report_or_skip {
    ($measured:expr) => {
        match $measured {
            Ok(report) => report,
            Err(BenchError::NotPossible(reason)) => handoff_testbed::skip!("{reason}"),
            Err(error) => panic!("{error}"),
        }
    };
}
pub(crate) use report_or_skip;
