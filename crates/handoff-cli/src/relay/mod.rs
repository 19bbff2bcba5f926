//! `handoff relay`: connections over TCP and Unix sockets passed on to another address, payload by reference.
//!
//! Contracts:
//! - each direction ends by itself: the end of one is passed on and the other goes on;
//! - a side that takes nothing holds back the other, with bounded memory;
//! - whatever ends the command, connections are closed and what was lent is back;
//! - the engine that served, what was passed over and what was copied are in the report;
//! - with `--proxy-protocol` the target hears who connects before the first byte; with `--accept-proxy` no client comes
//!   past the head of its front.
//!
//! The way: [`worker`] (a thread) -> [`accept`] (accepts, connects, keeps the number) -> [`connection`] (two routes
//! and their end) -> [`counters`] (counts, and tells the access log) -> [`report`].

mod accept;
mod args;
mod connection;
mod counters;
mod log;
mod report;
mod shared;
mod stats;
mod target;
mod worker;

use std::os::unix::net::UnixStream;
use std::sync::mpsc::channel;

use accept::ConnectionLimit;
pub(crate) use args::Args;
use args::EngineName;
use counters::Shared;
use handoff_command::access_log::AccessLog;
use handoff_command::clock::Clock;
use handoff_command::descriptors::{self};
use handoff_command::failure::Failed;
use handoff_command::threads::{on_threads, share};
use handoff_command::{Context, Failure, output};
use handoff_net::deadline::Deadline;
use handoff_net::listening::{Goal, Listening, Place, Target};
use handoff_net::nic::{self, Card};
use report::Report;
use worker::{First, Turn, Worker};

/// Relays until it is stopped, or the number of connections is through.
///
/// # Errors
///
/// [`Failure::Usage`] for addresses that make no sense, [`Failure::NotPossible`] for an engine that was
/// asked for and is missing, [`Failure::Stopped`] after a signal, when the report is out.
pub(crate) fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    let listen = std::iter::once(&args.listen).chain(&args.beside);
    let places = listen.map(|text| Place::by_scheme(text).map_err(Failure::usage));
    let places = places.collect::<Result<Vec<_>, _>>()?;
    if args.nic.is_some() && !matches!(args.engine, EngineName::Auto | EngineName::Memory) {
        return Err(Failure::usage("--nic receives into memory: use --engine auto or memory"));
    }
    if args.nic.is_some() && args.accept_proxy {
        return Err(Failure::usage(
            "--accept-proxy reads the first bytes into memory, which --nic gives to the card's queue: leave out one",
        ));
    }
    if args.max_connections < u32::from(args.threads) {
        return Err(Failure::usage("--max-connections is below --threads: each thread needs one"));
    }
    let family = args.addresses.family();
    let deadline = Deadline::new(&context.stop, Some(args.connect_timeout));
    let goal = Goal::parse(&args.target)?;
    let target = goal.find(family, deadline)?;
    let by_unix =
        places.iter().any(|place| matches!(place, Place::Unix(_))) || matches!(goal, Goal::Unix(_));
    if by_unix && args.engine == EngineName::GetBuf {
        return Err(Failure::usage(
            "--engine get-buf sends without copying, which Unix sockets cannot: use --engine auto or splice",
        ));
    }
    let (listener, _files) = Listening::bind(&places, family, args.addresses.from(), deadline)?;
    let stats = args.stats.as_deref().map(|text| Place::by_scheme(text).map_err(Failure::usage));
    let stats = stats
        .transpose()?
        .map(|place| Listening::listen_at(&[place], family, &args.stats_from(), deadline));
    let (stats, _stats_files) = stats.transpose()?.unzip();
    let card = match &args.nic {
        Some(name) => {
            let addresses = listener.addresses()?;
            if addresses.is_empty() {
                return Err(Failure::usage("--nic receives by TCP: give a tcp-listen:// address"));
            }
            let flows = addresses.into_iter().flat_map(nic::arriving_at).collect();
            Some(nic::prepare(name, 1, flows)?)
        }
        None => None,
    };
    let ended = relay(args, context, Ways { listener, stats, goal, target }, card.as_ref());
    match card {
        Some(card) => nic::put_back(card, ended),
        None => ended,
    }
}

/// From where to where.
struct Ways {
    listener: Listening,
    /// For those who ask for the counts.
    stats: Option<Listening>,
    goal: Goal,
    /// Its addresses now.
    target: Vec<Target>,
}

/// Relays on all threads; their drivers have let go of everything afterwards.
fn relay(args: &Args, context: &Context, ways: Ways, card: Option<&Card>) -> Result<(), Failure> {
    let Ways { listener, stats, goal, target } = ways;
    descriptors::allow_all();
    let clock = Clock::start();
    let (said, addresses) = (listener.said("tcp")?, listener.addresses()?);
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
    let mut first =
        First { said, addresses, card, stats: stats.map(|it| (it, clock)), others: Vec::new() };
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
            goal: &goal,
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
