//! Connections are accepted as long as there is room, until it is time to end.

use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use futures_util::future::{Either, select};
use handoff::{Driver, Executor, Readiness};
use handoff_command::failure::Failed;
use handoff_command::{Failure, Stop, clock};
use handoff_net::listening::{Listening, lets_in};

use super::args::Args;
use super::connection;
use super::shared::Relay;

/// When it is time to end.
pub(super) struct Ends<'a> {
    pub(super) stop: &'a Stop,
    /// Readable when another thread has failed.
    pub(super) quit: UnixStream,
    pub(super) limit: &'a ConnectionLimit,
}

/// How many connections all threads together still let in.
pub(super) struct ConnectionLimit {
    left: AtomicU64,
    /// Readable, at its other end, when these are 0.
    closing: UnixStream,
    closed: UnixStream,
}

impl ConnectionLimit {
    pub(super) fn new(connections: Option<u64>) -> Result<Self, Failure> {
        let (closing, closed) = UnixStream::pair().failed("watching threads")?;
        Ok(Self { left: AtomicU64::new(connections.unwrap_or(u64::MAX)), closing, closed })
    }

    fn is_open(&self) -> bool {
        self.left.load(Relaxed) > 0
    }

    /// Lets one more in; how many are left, or `None` if another thread has let the last one in.
    fn take_one(&self) -> Option<u64> {
        let fewer = |left: u64| left.checked_sub(1);
        let left = self.left.fetch_update(Relaxed, Relaxed, fewer).ok()? - 1;
        if left == 0 {
            // Shut down already, it is closed.
            let _ = self.closing.shutdown(Shutdown::Both);
        }
        Some(left)
    }

    fn watch(&self) -> Result<UnixStream, Failure> {
        self.closed.try_clone().failed("watching threads")
    }
}

/// Waits until one of the two ends of a pair is shut down.
fn readable(driver: &Driver, end: UnixStream) -> Result<Readiness, Failure> {
    let end = driver.file(end).failed("watching threads")?;
    end.readable().failed("watching threads")
}

/// Lets connections in, and waits for those under way when it ends.
///
/// # Errors
///
/// When nothing can be accepted any more.
pub(super) async fn run(
    relay: &Rc<Relay>,
    executor: &Executor,
    listener: Listening,
    args: &Args,
    ends: Ends<'_>,
) -> Result<(), Failure> {
    {
        let stop = ends.stop;
        let quit = readable(&relay.driver, ends.quit)?;
        let signalled = pin!(stop.wait(&relay.driver));
        let stopped = pin!(select(signalled, quit));
        let accepting = pin!(accept(relay, executor, listener, ends.limit));
        match select(stopped, accepting).await {
            Either::Left((Either::Left((failure, _)), _)) if !stop.requested() => {
                return Err(failure);
            }
            Either::Left(_) => {}
            // All that were to come have come, and are through.
            Either::Right((accepted, _)) => return accepted,
        }
    }
    // The listener is closed, and so is the progress line: the terminal is the user's again.
    relay.counters.clear();
    let over = pin!(relay.counters.until_below(1));
    let grace = pin!(clock::pass(&relay.driver, args.grace));
    if let Either::Right(_) = select(over, grace).await {
        let left = relay.counters.open();
        relay.counters.note(format!("{left} connections were under way when --grace was over"));
    }
    Ok(())
}

async fn accept(
    relay: &Rc<Relay>,
    executor: &Executor,
    listener: Listening,
    limit: &ConnectionLimit,
) -> Result<(), Failure> {
    let (mut listener, allow_list) = listener.on(&relay.driver)?;
    let most_open = u64::from(relay.most_open);
    let mut closed = pin!(readable(&relay.driver, limit.watch()?)?);
    while limit.is_open() {
        relay.counters.until_below(most_open).await;
        let accepted = match select(pin!(listener.accept()), closed.as_mut()).await {
            Either::Left((accepted, _)) => accepted,
            Either::Right(_) => break,
        };
        match accepted {
            Ok((client, peer)) => {
                if !lets_in(&allow_list, peer) {
                    relay.counters.refused();
                    continue;
                }
                // Whose client it is, a front has yet to say.
                let most = relay.most_per_client.filter(|_| !relay.accept_proxy);
                let Some(counted) = relay.counters.enter(peer, most) else {
                    let most = "it has as many connections as --max-per-client allows";
                    allow_list.turned_away(peer, most);
                    continue;
                };
                let Some(left) = limit.take_one() else {
                    counted.uncount();
                    break;
                };
                if left == 0 || relay.counters.open() >= most_open {
                    // The kernel would take more on, whom nobody serves meanwhile.
                    listener.pause();
                }
                let relay = Rc::clone(relay);
                executor.spawn(connection::serve(relay, client, peer, counted)).detach();
            }
            Err(error) => {
                // Out of descriptors, mostly: others end.
                relay.counters.note(error.to_string());
                clock::pass(&relay.driver, connection::AGAIN).await;
            }
        }
    }
    drop(listener);
    relay.counters.until_below(1).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both threads have seen that one is left before one of them lets the last one in.
    #[test]
    fn no_more_are_let_in_than_were_to_come() {
        let limit = ConnectionLimit::new(Some(1)).expect("a pair");
        assert!(limit.is_open());
        assert_eq!(limit.take_one(), Some(0));
        assert_eq!(limit.take_one(), None);
        assert!(!limit.is_open());
    }
}
