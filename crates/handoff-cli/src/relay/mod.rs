//! `handoff relay`: TCP connections passed on to another address, payload by reference.
//!
//! Contracts:
//! - each direction ends by itself: the end of one is passed on and the other goes on;
//! - a side that takes nothing holds back the other, with bounded memory;
//! - whatever ends the command, connections are closed and what was lent is back;
//! - the engine that served, what was passed over and what was copied are in the report.
//!
//! The way: [`worker`] (a thread) -> [`accept`] (accepts, connects, keeps the number) -> [`connection`] (two routes
//! and their end) -> [`counters`] (counts, and tells the access log) -> [`report`].

mod accept;
mod connection;
mod counters;
mod log;
mod report;
mod worker;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::Duration;

use handoff::{Driver, Intake, RouteEngine};
use handoff_command::access_log::{AccessLog, LogArgs};
use handoff_command::clock::Clock;
use handoff_command::descriptors::{self, Reserve};
use handoff_command::failure::Failed;
use handoff_command::quantity::parse_bytes;
use handoff_command::threads::{on_threads, share};
use handoff_command::{Context, Failure, output, quantity};
use handoff_sys::getbuf;

use accept::ConnectionLimit;
use counters::{Counters, Shared};
use handoff_net::address::{Address, Endpoint};
use handoff_net::deadline::Deadline;
use handoff_net::nic::{self, Card};
use handoff_net::reach::{self, Addresses, Listener};
use report::Report;
use worker::{First, Turn, Worker};

const EXAMPLES: &str = "\
Examples:
  handoff relay tcp-listen://:8080 tcp://192.0.2.7:80       pass every connection on
  handoff relay --engine splice tcp-listen://:8080 tcp://host:80
  handoff relay --max-connections 100 --idle 30 tcp-listen://[::1]:8080 tcp://host:80
  handoff relay --from 192.0.2.0/24 --max-per-client 20 tcp-listen://:8080 tcp://host:80
  handoff relay --idle 30 --least-rate 1k tcp-listen://:8080 tcp://host:80
  handoff relay --nic eth0 --threads 4 tcp-listen://:8080 tcp://host:80   one queue, four rings
  handoff relay --connections 1 --json tcp-listen://:9000 tcp://host:9000   one, and its report

Payload goes from socket to socket without being read into memory: lent from the receive queue
(get-buf, needs the module getbuf), or by splice(2). Of each direction the first 16 KiB are copied,
as long as they come in small pieces, which is cheaper. With --nic what clients send stays where
the NIC has put it. After SIGINT, SIGTERM or SIGHUP the relay takes no new connections, gives
those under way --grace seconds, and prints its report.";

/// Arguments of `handoff relay`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// Where to wait for connections: tcp-listen://[addr]:port (port 0 takes a free one, and the command
    /// prints it)
    #[arg(value_name = "LISTEN")]
    pub listen: OsString,

    /// Where each connection goes on to: tcp://host:port
    #[arg(value_name = "TARGET")]
    pub target: OsString,

    /// Engine to pass payload on with
    #[arg(long, value_enum, default_value_t = EngineName::Auto)]
    pub engine: EngineName,

    /// Receive what clients send without copies on this interface. The command prepares it, and puts it back
    /// at the end (see `handoff nic`); needs root
    #[arg(long, value_name = "IFACE")]
    pub nic: Option<String>,

    /// Threads that relay, each with its own ring; the kernel spreads connections over them. With --nic they
    /// share its queue
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: u16,

    /// Most connections at the same time, divided evenly among the threads; more wait to be accepted. Fewer
    /// if the limit on open files does not carry them
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=16_384))]
    pub max_connections: u32,

    /// Most connections of one client address at the same time, for each thread; more are closed at once
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_per_client: Option<u32>,

    /// End after this many connections [default: go on until stopped]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub connections: Option<u64>,

    /// Close a connection after this many seconds without a byte in either direction; 0: never
    #[arg(long, value_name = "SECONDS", default_value = "300", value_parser = quantity::seconds)]
    pub idle: Duration,

    /// Close a connection that moves fewer bytes a second than this (k, m, g), in both directions together,
    /// over the time of --idle; 0: never
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = parse_bytes)]
    pub least_rate: u64,

    /// Seconds that open connections have to end after SIGINT, SIGTERM or SIGHUP
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = quantity::seconds)]
    pub grace: Duration,

    /// Seconds to reach the target
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = quantity::seconds_above_0)]
    pub connect_timeout: Duration,

    /// Where connections are logged.
    #[command(flatten)]
    pub(crate) log: LogArgs,

    /// Who may connect, and by which addresses.
    #[command(flatten)]
    pub addresses: Addresses,
}

/// Engines, as they are called on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum EngineName {
    /// Copy the first small pieces, then take the best that works
    Auto,
    /// Lent from the socket's receive queue, and sent with io_uring without copying
    GetBuf,
    /// splice(2) through a pipe
    Splice,
    /// Received into registered memory, and sent from there
    Memory,
    /// Received into memory, and copied out of it
    Copy,
}

impl EngineName {
    fn only(self) -> Option<RouteEngine> {
        match self {
            Self::Auto => None,
            Self::GetBuf => Some(RouteEngine::GetBuf),
            Self::Splice => Some(RouteEngine::Splice),
            Self::Memory => Some(RouteEngine::Memory),
            Self::Copy => Some(RouteEngine::Copy),
        }
    }

    /// Descriptors of a connection: two sockets, and what its engine cannot do without.
    fn descriptors(self) -> usize {
        match self {
            Self::Auto if Path::new(getbuf::PATH).exists() => 4,
            Self::Auto | Self::Memory | Self::Copy => 2,
            Self::GetBuf => 4,
            Self::Splice => 6,
        }
    }
}

/// What all connections share.
pub(crate) struct Relay {
    driver: Driver,
    /// Connections at once on this thread.
    most_open: u32,
    engine: Option<RouteEngine>,
    /// What clients' payload is received from, where that is a NIC's queue.
    intake: Option<Intake>,
    /// The target's addresses, in the order in which they are tried.
    target: Vec<SocketAddr>,
    connect_timeout: Duration,
    reserve: Reserve,
    /// What a connection takes of it.
    beside_client: usize,
    /// `None` keeps idle connections.
    idle: Option<Duration>,
    /// Bytes a second.
    least_rate: u64,
    /// Between looks at a connection that may stand still.
    look: Duration,
    counters: Counters,
}

/// Relays until it is stopped, or the number of connections is through.
///
/// # Errors
///
/// [`Failure::Usage`] for addresses that make no sense, [`Failure::NotPossible`] for an engine that was
/// asked for and is missing, [`Failure::Stopped`] after a signal, when the report is out.
pub(crate) fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    let (listen, target) = addresses(args)?;
    if args.nic.is_some() && !matches!(args.engine, EngineName::Auto | EngineName::Memory) {
        return Err(Failure::usage("--nic receives into memory: use --engine auto or memory"));
    }
    if args.max_connections < u32::from(args.threads) {
        return Err(Failure::usage("--max-connections is below --threads: each thread needs one"));
    }
    let family = args.addresses.family();
    let deadline = Deadline::new(&context.stop, Some(args.connect_timeout));
    let target = reach::resolve(&target, family, deadline)?;
    let listener = Listener::bind(&listen, family, args.addresses.from(), deadline)?;
    let address = listener.address()?;
    let card = match &args.nic {
        Some(name) => Some(nic::prepare(name, 1, nic::arriving_at(address))?),
        None => None,
    };
    let ended = relay(args, context, listener, target, card.as_ref());
    match card {
        Some(card) => nic::put_back(card, ended),
        None => ended,
    }
}

/// Relays on all threads; their drivers have let go of everything afterwards.
fn relay(
    args: &Args,
    context: &Context,
    listener: Listener,
    target: Vec<SocketAddr>,
    card: Option<&Card>,
) -> Result<(), Failure> {
    descriptors::allow_all();
    let clock = Clock::start();
    let address = listener.address()?;
    let mut listeners = Vec::new();
    for _ in 1..args.threads {
        listeners.push(listener.beside()?);
    }
    listeners.insert(0, listener);
    let carried = descriptors::carry(
        args.max_connections,
        args.threads,
        args.engine.descriptors(),
        args.engine == EngineName::Auto,
    );
    let log = args.log.open()?;
    let shared = Shared::new(context.json, log.clone());
    let limit = ConnectionLimit::new(args.connections)?;
    let (quit, watched) = UnixStream::pair().failed("watching threads")?;
    let mut first = First { address, card, others: Vec::new() };
    let mut turns = Vec::new();
    for _ in 1..args.threads {
        let (tell, told) = channel();
        let (is_ready, ready) = channel();
        first.others.push((tell, ready));
        turns.push(Turn::Other { told, is_ready });
    }
    turns.insert(0, Turn::First(first));
    let mut workers = Vec::new();
    for (number, (listener, turn)) in listeners.into_iter().zip(turns).enumerate() {
        workers.push(Worker {
            number,
            args,
            connections: share(carried.connections, args.threads, number),
            pipes: match args.engine {
                EngineName::Auto => carried.pipes / usize::from(args.threads),
                _ => usize::MAX,
            },
            reserve: carried.reserve / usize::from(args.threads),
            note: carried.note.clone().filter(|_| number == 0),
            listener,
            target: target.clone(),
            shared: shared.clone(),
            limit: &limit,
            stop: context.stop.clone(),
            quit: watched.try_clone().failed("watching threads")?,
            turn,
        });
    }
    let tasks = workers.into_iter().map(|worker| move || worker.relay()).collect();
    // Of several failures the first is told.
    let ended: Result<(), Failure> = on_threads(&quit, tasks).into_iter().collect();
    log.into_iter().for_each(AccessLog::close);
    let totals = shared.close();
    // Some have let clients in.
    if !totals.counts.is_empty() {
        let report = Report::new(&clock, totals);
        if context.json { output::json(&report)? } else { output::text(&report.text())? }
    }
    ended?;
    context.stop.check()
}

fn addresses(args: &Args) -> Result<(Endpoint, Endpoint), Failure> {
    let parse = |text| Address::parse(text).map_err(Failure::usage);
    match (parse(&args.listen)?, parse(&args.target)?) {
        (Address::Listen(listen), Address::Connect(target)) => Ok((listen, target)),
        (Address::Listen(_), other) => {
            Err(Failure::usage(format!("TARGET is {other}; it must be tcp://host:port")))
        }
        (other, _) => {
            Err(Failure::usage(format!("LISTEN is {other}; it must be tcp-listen://[addr]:port")))
        }
    }
}
