//! `handoff serve`: the files of a directory over HTTP, from the page cache's own pages.
//!
//! Contracts:
//! - nothing outside of the directory is opened, whatever names, `..` and symbolic links say;
//! - however the command ends, no request is accepted any more, and those under way have --grace seconds;
//! - the report says what was sent, and what of it was copied.
//!
//! The way: [`root`] (from a path to an open file) -> [`header_cache`] (its headers) -> [`conditions`] (the wanted
//! part) -> [`files`] (the service) -> [`worker`] (a thread that serves) -> [`report`].

mod args;
mod conditions;
mod files;
mod header_cache;
mod log;
mod report;
mod root;
mod tls;
mod worker;

use std::ffi::OsStr;
use std::os::unix::net::UnixStream;

pub(crate) use args::Args;
use handoff_command::access_log::AccessLog;
use handoff_command::clock::Clock;
use handoff_command::failure::Failed;
use handoff_command::rate_limit::RateLimit;
use handoff_command::threads::{on_threads, share};
use handoff_command::{Context, Failure, descriptors, output, service};
use handoff_net::address::Endpoint;
use handoff_net::deadline::Deadline;
use handoff_net::listening::{Listening, Place};
use report::{Counts, Report};
use root::Root;
use tls::Tls;
use worker::Worker;

/// What to type instead of serving in the clear.
const IN_THE_CLEAR: &str = "others on the way read along: --cert FILE --cert-key FILE serves https://, --from ADDR/LEN lets \
                            fewer in";

/// Serves until it is stopped.
///
/// # Errors
///
/// [`Failure::Usage`] for a bad address or directory, [`Failure::NotPossible`] if the kernel lacks something
/// necessary, [`Failure::Stopped`] after a signal, when the report is printed.
pub(crate) fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    let by_port = |text: &OsStr| {
        Endpoint::to_listen_at(&text.to_string_lossy()).map_err(|error| error.to_string())
    };
    let places = args.listen.iter().map(|text| Place::parse(text, by_port).map_err(Failure::usage));
    let places = places.collect::<Result<Vec<_>, _>>()?;
    if args.max_connections < u32::from(args.threads) {
        return Err(Failure::usage("--max-connections is below --threads: each thread needs one"));
    }
    let root = Root::open(&args.directory)?;
    let tls = Tls::new(&args.cert)?;
    let log = args.log.open()?;
    descriptors::allow_all();
    let family = args.addresses.family();
    let deadline = Deadline::new(&context.stop, None);
    let (first, _files) = Listening::bind(&places, family, args.addresses.from(), deadline)?;
    let listening = first.said(if tls.is_some() { "https" } else { "http" })?;
    let mut listeners = Vec::new();
    for _ in 1..args.threads {
        listeners.push(first.beside()?);
    }
    output::say(&listening);
    service::ready(&listening);
    match &tls {
        Some(_) => first.warn(args.addresses.from(), "read these files")?,
        None => first.warn_with(args.addresses.from(), "read these files", IN_THE_CLEAR)?,
    }
    listeners.push(first);
    let clock = Clock::start();
    let counts = serve(args, context, &root, listeners, log.as_ref(), tls.as_ref());
    log.into_iter().for_each(AccessLog::close);
    let counts = counts?;
    let report = Report::new(&clock, args.threads, tls.is_some(), counts);
    if context.json {
        output::json(&report)?
    } else {
        output::text(&report.text())?
    }
    context.stop.check()
}

/// Serves on all threads, until a signal comes or one of them fails.
fn serve(
    args: &Args,
    context: &Context,
    root: &Root,
    listeners: Vec<Listening>,
    log: Option<&AccessLog>,
    tls: Option<&Tls>,
) -> Result<Counts, Failure> {
    let (quit, watched) = UnixStream::pair().failed("watching threads")?;
    let unopened =
        RateLimit::new(|count| format!("{count} more files could not be opened"), output::say);
    // A socket and a file.
    let carried = descriptors::carry(args.max_connections, args.threads, 2, true);
    let notes: Vec<_> =
        carried.note.into_iter().chain(tls.and_then(|tls| tls.note.clone())).collect();
    let mut workers = Vec::new();
    for (number, listener) in listeners.into_iter().enumerate() {
        workers.push(Worker {
            args,
            connections: share(carried.connections, args.threads, number),
            pipes: carried.pipes / usize::from(args.threads),
            reserve: carried.reserve / usize::from(args.threads),
            notes: notes.clone(),
            acceptor: tls.map(|tls| tls.acceptor.clone()),
            log: log.cloned(),
            root: root.clone(),
            unopened: unopened.clone(),
            listener,
            stop: context.stop.clone(),
            tells: number == 0,
            quit: watched.try_clone().failed("watching threads")?,
        });
    }
    let tasks = workers.into_iter().map(|worker| move || worker.serve()).collect();
    let mut counts = Counts::default();
    for served in on_threads(&quit, tasks) {
        counts.add(served?);
    }
    Ok(counts)
}
