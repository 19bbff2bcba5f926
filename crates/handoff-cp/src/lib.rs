//! `handoff cp`: copies a file or pipe to another, here or on another machine.
//!
//! Contracts:
//! - a destination file appears whole or not at all, however the process ends; a power cut is another matter (--sync);
//!   what no new file can replace is written in place, and that is said;
//! - a sender succeeds only after the receiver has everything in place;
//! - the report says for each hop what the CPU copied, and the reason for every fallback.
//!
//! The way down: [`run`] takes [`Args`], which `sides` compares with the addresses, and makes an `order` of them. Then
//! one of four carries it out:
//!
//! - `receive`: the threads of a receiver. `reach` waits for the sender or connects to it, and `handshake` says hello;
//!   `queues` gives each thread a queue of the NIC. A thread has a `share` of the connections; each `connection` brings
//!   its bytes (by `gathering`, past the page cache) to the thread's `sink`. All have one `intake` and one `ending`;
//! - `send`: `reach` again; `copier` brings pieces from the `inlet` to the `outlet`, and `answer` is the receiver's;
//! - `local`: `in_kernel`, or `copier` to a file;
//! - `messages`: both sides by reliable datagrams.
//!
//! Over TLS, `secured` has the KEY and tells it, or `typed` asks for it; `lock` makes the connections by it, `ciphered`
//! receives, and `ear` hears the receiver's answer. With `--raw`, `certified` has certificates instead of a KEY.
//!
//! All of it stands on a `job`, which is the order on a thread, on `origin` and `destination`, and on `wire`, the protocol.

// `eprintln!` panics where nobody reads standard error any more; `handoff_sys::hangup::say` does not.
#![cfg_attr(not(test), deny(clippy::print_stderr))]

mod answer;
mod args;
mod certified;
pub mod checksum;
mod ciphered;
mod connection;
mod copier;
pub mod coverage;
mod destination;
mod ear;
mod ending;
mod extents;
mod gathering;
mod handshake;
mod in_kernel;
mod inlet;
mod intake;
mod job;
mod kept;
mod key;
mod lending;
mod local;
mod lock;
mod messages;
mod order;
mod origin;
mod outlet;
mod queues;
mod random;
mod ranged;
mod reach;
mod receive;
mod report;
mod secured;
mod send;
mod share;
mod sides;
mod sink;
mod staging;
mod stream;
mod tell;
mod turn;
mod typed;
mod unfinished;
pub mod wire;

pub use args::{Args, EngineName, Lend};
use certified::Certified;
use handoff_command::failure::Failed;
use handoff_command::{Context, Failure, output, standard};
use handoff_net::address::{self, Address};
use handoff_net::nic::{self, Card};
use inlet::Inlet;
use job::Job;
use order::Order;
use origin::Origin;
use receive::Spread;
use report::Report;
use secured::Secured;
use sink::Output;

/// Copies, and reports the result.
///
/// # Errors
///
/// See [`Failure`]: addresses that make no sense are usage, a requested engine that is missing is not
/// possible, everything else is a failed copy, which leaves nothing under the destination's name.
pub fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    let (source, destination) = sides::of(args)?;
    let prepare = |name| nic::prepare(name, args.queues.into(), Vec::new());
    let card = args.nic.as_deref().map(prepare).transpose()?;
    let ended = copy(args, context, source, destination, card.as_ref());
    match card {
        Some(card) => nic::put_back(card, ended),
        None => ended,
    }
}

/// Copies; all drivers have let go of everything afterwards.
fn copy(
    args: &Args,
    context: &Context,
    source: Address,
    destination: Address,
    card: Option<&Card>,
) -> Result<(), Failure> {
    let certified = Certified::of(args, [&source, &destination])?;
    let secured = match &certified {
        Some(_) => None,
        None => Secured::of(args, context, [&source, &destination])?,
    };
    let mut order = Order::new(args, context, source, destination);
    order.secured = secured;
    order.certified = certified;
    let report = until_whole(&order, card);
    order.progress.finish_and_clear();
    let report = report?;
    match (&order.destination, context.json) {
        (Address::Pipe, true) => {
            let text =
                serde_json::to_string_pretty(&report).failed("the result has no JSON form")?;
            output::print_aside(text);
            Ok(())
        }
        (Address::Pipe, false) => {
            output::print_aside(report.text().trim_end());
            Ok(())
        }
        (_, true) => output::json(&report),
        (_, false) => output::text(&report.text()),
    }
}

/// Carries it out, and again if a KEY is still good for that.
fn until_whole(order: &Order<'_>, card: Option<&Card>) -> Result<Report, Failure> {
    loop {
        order.begin();
        match carry_out(order, card) {
            Err(failure) if order.goes_on() && order.stop.check().is_ok() => {
                let why = failure.line().unwrap_or_default();
                let goes_on = "the KEY is good for another try, which is waited for";
                order.note_each_time(format!("{why}; {goes_on}"));
            }
            ended => return ended,
        }
    }
}

/// Receives, sends, or copies here, as the addresses say.
fn carry_out(order: &Order<'_>, card: Option<&Card>) -> Result<Report, Failure> {
    for side in [&order.source, &order.destination] {
        if let Address::File(path) = side
            && let Some(shown) = address::looks_like_endpoint(path)
            && !path.exists()
        {
            order.note(format!("{shown} is taken for a file: an address is tcp://{shown}"));
        }
    }
    match &order.source {
        Address::Connect(_) | Address::Listen(_) => {
            let (threads, queues) = (order.args.threads(), order.args.queues.into());
            let target = Output::target(order)?;
            receive::receive(order, target, &Spread { threads, card, queues })
        }
        Address::ConnectTls(_) | Address::ListenTls(_) => {
            let target = Output::target(order)?;
            ciphered::receive(&Job::new(order)?, target)
        }
        Address::Rds(endpoint) => {
            let target = Output::target(order)?;
            messages::receive(&Job::new(order)?, endpoint, target)
        }
        Address::File(_) | Address::Pipe => send_or_copy(&Job::new(order)?),
    }
}

/// Opens the source, then its sink.
fn send_or_copy(job: &Job<'_>) -> Result<Report, Failure> {
    let origin = match &job.order.source {
        Address::File(path) => Origin::open(job.order.stop, path)?,
        _ => Origin::stdin()?,
    };
    let length = origin.len();
    job.order.set_length(length);
    job.source_kind.set(Some(origin.kind()));
    let preserved = if job.order.args.preserve { origin.preserved()? } else { None };
    match &job.order.destination {
        Address::Connect(_)
        | Address::Listen(_)
        | Address::ConnectTls(_)
        | Address::ListenTls(_) => send::send(job, origin, preserved),
        Address::Rds(endpoint) => {
            messages::send(job, &Inlet::new(job, origin, false, true)?, length, endpoint)
        }
        Address::File(path) => local::to_path(job, origin, preserved, path),
        Address::Pipe => local::to_stream(job, origin, standard::output()?),
    }
}
