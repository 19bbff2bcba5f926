//! `handoff serve`: the files of a directory over HTTP, from the page cache's own pages.
//!
//! Contracts:
//! - nothing outside of the directory is opened, whatever names, `..` and symbolic links say;
//! - however the command ends, no request is accepted any more, and those under way have --grace seconds;
//! - the report says what was sent, and what of it was copied.
//!
//! The way: [`root`] (from a path to an open file) -> [`known`] (its headers) -> [`conditions`] (the wanted part) ->
//! [`files`] (the service) -> [`worker`] (a thread that serves) -> [`report`].

mod conditions;
mod files;
mod known;
mod log;
mod report;
mod root;
mod worker;

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use handoff_command::access_log::{AccessLog, LogArgs};
use handoff_command::clock::Clock;
use handoff_command::failure::Failed;
use handoff_command::rate_limit::RateLimit;
use handoff_command::threads::{on_threads, share};
use handoff_command::{Context, Failure, allow_list, descriptors, output, quantity, service};

use handoff_net::address::Endpoint;
use handoff_net::deadline::Deadline;
use handoff_net::reach::{Addresses, Listener};
use report::{Counts, Report};
use root::Root;
use worker::Worker;

const EXAMPLES: &str = "\
Examples:
  handoff serve public                                 http://127.0.0.1:8080/, for this machine
  handoff serve public --listen :80 --threads 4        for all who reach this machine
  handoff serve public --listen '[::1]:0' --json       on a free port, which is told; a report
  handoff serve public --from 192.0.2.0/24 --listen :8080
  handoff serve public --access-log /var/log/handoff.log

Files of 64 KiB and more are sent from the page cache's own pages: lent (get-buf, needs the module
getbuf), or by splice(2), which does not report whether it copies. Smaller files are read and
copied. A request for one range gets this range, and a request for several gets the whole file. A
request for a directory gets its index.html. Names that begin with a dot are not served, except
.well-known; symbolic links are followed within the directory. A file that shrinks while it is sent
ends the connection. --access-log has a line for each request. After SIGINT, SIGTERM or SIGHUP the command takes no new
connections, gives requests under way --grace seconds, and prints its report.";

/// Arguments of `handoff serve`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// The directory whose files are served
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,

    /// Where to wait for connections: addr:port, or :port for all addresses (port 0 takes a free one, and the
    /// command prints it)
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:8080")]
    pub listen: String,

    /// Threads that serve, each with its own ring; the kernel spreads connections over them
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: u16,

    /// Most connections at the same time, divided evenly among the threads, at least one each; then the one that
    /// is idle for longest is closed for the next. Fewer if the limit on open files does not carry them
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub max_connections: u32,

    /// Most connections of one client address at the same time, for each thread; more are closed at once
    /// [default: three quarters of the thread's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_per_client: Option<u32>,

    /// Close a connection after this many seconds without a request
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = quantity::seconds_above_0)]
    pub idle: Duration,

    /// Seconds that requests under way have to end after SIGINT, SIGTERM or SIGHUP
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = quantity::seconds)]
    pub grace: Duration,

    /// Where requests are logged.
    #[command(flatten)]
    pub(crate) log: LogArgs,

    /// Who may connect, and by which addresses.
    #[command(flatten)]
    pub addresses: Addresses,
}

/// Serves until it is stopped.
///
/// # Errors
///
/// [`Failure::Usage`] for a bad address or directory, [`Failure::NotPossible`] if the kernel lacks something
/// necessary, [`Failure::Stopped`] after a signal, when the report is printed.
pub(crate) fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    let endpoint = Endpoint::to_listen_at(&args.listen).map_err(Failure::usage)?;
    if args.max_connections < u32::from(args.threads) {
        return Err(Failure::usage("--max-connections is below --threads: each thread needs one"));
    }
    let root = Root::open(&args.directory)?;
    let log = args.log.open()?;
    descriptors::allow_all();
    let family = args.addresses.family();
    let deadline = Deadline::new(&context.stop, None);
    let first = Listener::bind(&endpoint, family, args.addresses.from(), deadline)?;
    let address = first.address()?;
    let mut listeners = Vec::new();
    for _ in 1..args.threads {
        listeners.push(first.beside()?);
    }
    listeners.push(first);
    let listening = format!("listening on http://{address}");
    output::say(&listening);
    service::ready(&listening);
    allow_list::warn(address, args.addresses.from(), "read these files");
    let clock = Clock::start();
    let counts = serve(args, context, &root, listeners, log.as_ref());
    log.into_iter().for_each(AccessLog::close);
    let counts = counts?;
    let report = Report::new(&clock, args.threads, counts);
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
    listeners: Vec<Listener>,
    log: Option<&AccessLog>,
) -> Result<Counts, Failure> {
    let (quit, watched) = UnixStream::pair().failed("watching threads")?;
    let unopened =
        RateLimit::new(|count| format!("{count} more files could not be opened"), output::say);
    // A socket and a file.
    let carried = descriptors::carry(args.max_connections, args.threads, 2, true);
    let mut workers = Vec::new();
    for (number, listener) in listeners.into_iter().enumerate() {
        workers.push(Worker {
            args,
            connections: share(carried.connections, args.threads, number),
            pipes: carried.pipes / usize::from(args.threads),
            reserve: carried.reserve / usize::from(args.threads),
            note: carried.note.clone(),
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
