//! `handoff nbd serve`: files and block devices over NBD.
//!
//! Contracts:
//! - a file that is written to is locked, so that no other server of ours, and no QEMU, writes it beside;
//! - however the command ends, what was flushed is on the disk, and requests under way have --grace seconds;
//! - the report says which way bytes went, and what of them was copied.

use std::ffi::OsStr;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use handoff_command::clock::Clock;
use handoff_command::failure::Failed;
use handoff_command::threads::{on_threads, share};
use handoff_command::{Context, Failure, descriptors, output, service};
use handoff_nbd_server::{Export, Limits, Sessions};
use handoff_net::address::Endpoint;
use handoff_net::deadline::Deadline;
use handoff_net::listening::{Listening, Place};

use super::args::ServeArgs;
use super::exports;
use super::report::{Counts, Report};
use super::worker::Worker;

/// Serves until it is stopped.
///
/// # Errors
///
/// [`Failure::Usage`] for a bad address or export, [`Failure::NotPossible`] if the kernel lacks something necessary,
/// [`Failure::Failed`] for a file that cannot be opened or is in use, [`Failure::Stopped`] after a signal, when the report
/// is printed.
pub(super) fn run(args: &ServeArgs, context: &Context) -> Result<(), Failure> {
    let by_port = |text: &OsStr| {
        Endpoint::to_listen_at(&text.to_string_lossy()).map_err(|error| error.to_string())
    };
    let places = args.listen.iter().map(|text| Place::parse(text, by_port).map_err(Failure::usage));
    let places = places.collect::<Result<Vec<_>, _>>()?;
    if args.max_connections < u32::from(args.threads) {
        return Err(Failure::usage("--max-connections is below --threads: each thread needs one"));
    }
    let exports = exports::open(args, &context.stop)?;
    descriptors::allow_all();
    let deadline = Deadline::new(&context.stop, None);
    let from = args.addresses.from();
    let (first, _files) = Listening::bind(&places, args.addresses.family(), from, deadline)?;
    let listening = first.said("nbd")?;
    let mut listeners = Vec::new();
    for _ in 1..args.threads {
        listeners.push(first.beside()?);
    }
    for note in exports.iter().filter_map(|export| export.note()) {
        output::say(format_args!("note: {note}"));
    }
    output::say(&listening);
    service::ready(&listening);
    first.warn(from, if args.read_only { "read these exports" } else { "write these exports" })?;
    listeners.push(first);
    let clock = Clock::start();
    let counts = serve(args, context, &exports, listeners)?;
    let report = Report::new(&clock, args.threads, &exports, counts);
    if context.json {
        output::json(&report)?
    } else {
        output::text(&report.text())?
    }
    context.stop.check()
}

/// Serves on all threads, until a signal comes or one of them fails.
fn serve(
    args: &ServeArgs,
    context: &Context,
    exports: &[Arc<Export>],
    listeners: Vec<Listening>,
) -> Result<Counts, Failure> {
    let (quit, watched) = UnixStream::pair().failed("watching threads")?;
    let carried = descriptors::carry(args.max_connections, args.threads, 1, false);
    let mut instance = [0; 16];
    // Before the kernel's generator is seeded nobody else is running.
    let _ = rustix::rand::getrandom(&mut instance, rustix::rand::GetRandomFlags::NONBLOCK);
    let sessions = Sessions::new(u128::from_ne_bytes(instance));
    let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    let mut workers = Vec::new();
    for (number, listener) in listeners.into_iter().enumerate() {
        let connections = share(carried.connections, args.threads, number) as usize;
        workers.push(Worker {
            limits: Limits {
                connections,
                per_client: args.max_per_client.map_or(usize::MAX, |most| most as usize),
                requests: usize::from(args.requests),
                bytes: size(args.memory_per_client),
                memory: size(args.memory) / usize::from(args.threads),
                stall: args.stall,
                grace: args.grace,
                lists: !args.no_list,
            },
            exports,
            sessions: sessions.clone(),
            note: carried.note.clone(),
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
