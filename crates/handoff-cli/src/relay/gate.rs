//! The door: connections are accepted as long as there is room, until it is time to end.

use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::{Either, select};
use handoff::Executor;

use super::{Args, Relay, connection};
use crate::net::reach::Listener;
use crate::{Failure, Stop, clock};

/// After a failure to accept that says nothing of when it ends.
const AGAIN: Duration = Duration::from_millis(250);

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
        let stopped = pin!(stop.wait(&relay.driver));
        let accepting = pin!(accept(relay, executor, listener, args));
        match select(stopped, accepting).await {
            Either::Left((failure, _)) if !stop.requested() => return Err(failure),
            Either::Left(_) => {}
            // All that were to come have come, and are through.
            Either::Right((accepted, _)) => return accepted,
        }
    }
    // The listener is closed, and so is the progress line: the terminal is the user's again.
    relay.ledger.clear();
    let over = pin!(relay.ledger.until_below(1));
    let patience = pin!(clock::pass(&relay.driver, args.grace));
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
    let (mut listener, visitors) = listener.on(&relay.driver)?;
    let most_open = u64::from(args.max_connections);
    let mut left = args.connections.unwrap_or(u64::MAX);
    while left > 0 {
        relay.ledger.until_below(most_open).await;
        match listener.accept().await {
            Ok((client, peer)) => {
                if !visitors.lets_in(peer) {
                    continue;
                }
                let Some(counted) = relay.ledger.enter(peer.ip(), args.max_per_client) else {
                    let most = "it has as many connections as --max-per-client allows";
                    visitors.turned_away(peer, most);
                    continue;
                };
                left -= 1;
                if left == 0 || relay.ledger.open() >= most_open {
                    // The kernel would take more on, whom nobody serves meanwhile.
                    listener.pause();
                }
                let relay = Rc::clone(relay);
                executor.spawn(connection::serve(relay, client, peer, counted)).detach();
            }
            Err(error) => {
                // Out of descriptors, mostly: others end.
                relay.ledger.note(error.to_string());
                clock::pass(&relay.driver, AGAIN).await;
            }
        }
    }
    drop(listener);
    relay.ledger.until_below(1).await;
    Ok(())
}
