//! The door: connections are accepted as long as there is room, until it is time to end.

use std::net::TcpStream;
use std::pin::pin;
use std::rc::Rc;

use futures_util::future::{Either, select};
use handoff::Executor;

use super::{Args, Relay, connection};
use crate::net::reach::Listener;
use crate::{Failure, Stop};

/// Lets connections in, and waits for those under way when it ends.
///
/// # Errors
///
/// When nothing can be accepted any more.
pub(super) async fn run(
    relay: &Rc<Relay>,
    executor: &Executor,
    listener: Listener,
    args: &Args,
    stop: &Stop,
) -> Result<(), Failure> {
    {
        let stopped = pin!(stopped(relay, stop));
        let accepting = pin!(accept(relay, executor, listener, args));
        match select(stopped, accepting).await {
            Either::Left((stopped, _)) => stopped?,
            // All that were to come have come, and are through.
            Either::Right((accepted, _)) => return accepted,
        }
    }
    // The listener is closed, and so is the progress line: the terminal is the user's again.
    relay.ledger.clear();
    let over = pin!(relay.ledger.until_below(1));
    let patience = pin!(relay.ticks.pass(args.grace));
    if let Either::Right(_) = select(over, patience).await {
        let left = relay.ledger.open();
        relay.ledger.note(format!("{left} connections were under way when --grace was over"));
    }
    Ok(())
}

async fn accept(
    relay: &Rc<Relay>,
    executor: &Executor,
    listener: Listener,
    args: &Args,
) -> Result<(), Failure> {
    let failed = |error: handoff::Error| Failure::failed(format!("accepting: {error}"));
    let waiting = listener.fd().try_clone_to_owned().map_err(Failure::failed)?;
    let waiting = relay.driver.file(waiting).map_err(failed)?;
    let mut left = args.connections.unwrap_or(u64::MAX);
    while left > 0 {
        relay.ledger.until_below(u64::from(args.max_connections)).await;
        match listener.try_accept() {
            Ok(Some((client, peer))) => {
                let Some(counted) = relay.ledger.enter(peer.ip(), args.max_per_client) else {
                    let most = "it has as many connections as --max-per-client allows";
                    listener.visitors.turned_away(peer, most);
                    continue;
                };
                left -= 1;
                let relay = Rc::clone(relay);
                executor.spawn(connection::serve(relay, client, peer, counted)).detach();
            }
            Ok(None) => waiting.readable().map_err(failed)?.await.map_err(failed)?,
            Err(error) => {
                // Out of descriptors, mostly: others end.
                relay.ledger.note(format!("accepting: {error}"));
                relay.ticks.next().await;
            }
        }
    }
    relay.ledger.until_below(1).await;
    Ok(())
}

async fn stopped(relay: &Relay, stop: &Stop) -> Result<(), Failure> {
    let failed =
        |error: &dyn std::fmt::Display| Failure::failed(format!("watching for signals: {error}"));
    let signal = stop.fd().try_clone_to_owned().map_err(|error| failed(&error))?;
    let signal = relay.driver.file(signal).map_err(|error| failed(&error))?;
    while !stop.requested() {
        let waited = signal.readable().map_err(|error| failed(&error))?.await;
        waited.map_err(|error| failed(&error))?;
    }
    Ok(())
}

/// A connection to the first address of the target that takes it.
pub(super) async fn connect(relay: &Relay) -> Result<TcpStream, String> {
    let mut errors = Vec::new();
    for address in &relay.target {
        let reached = pin!(reach(relay, *address));
        let patience = pin!(relay.ticks.pass(relay.connect_timeout));
        match select(reached, patience).await {
            Either::Left((Ok(stream), _)) => {
                relay.down.set(false);
                return Ok(stream);
            }
            Either::Left((Err(error), _)) => errors.push(format!("{address}: {error}")),
            Either::Right(_) => {
                errors.push(format!("{address}: no answer in time (--connect-timeout)"));
            }
        }
    }
    let failure = format!("the target can't be reached: {}", errors.join("; "));
    if !relay.down.replace(true) {
        relay.ledger.say(&failure);
    }
    Err(failure)
}

async fn reach(relay: &Relay, address: std::net::SocketAddr) -> Result<TcpStream, String> {
    let begun = crate::net::reach::begin(address).map_err(|error| error.to_string())?;
    // Attaching it to be waited for costs more than all of the rest.
    if !crate::net::reach::is_settled(&begun) {
        let waiting = begun.try_clone().map_err(|error| error.to_string())?;
        let waiting = relay.driver.file(waiting).map_err(|error| error.to_string())?;
        let writable = waiting.writable().map_err(|error| error.to_string())?;
        writable.await.map_err(|error| error.to_string())?;
    }
    crate::net::reach::finish(begun).map_err(|error| error.to_string())
}
