//! Connections that wait for a request, so that a full server can end the one that has waited longest.
//!
//! Contracts:
//! - a connection is ended only while it waits, and has waited for [`RIPE`];
//! - each task is woken once, by the waker of its last poll.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// A connection that waits for less may have a request on its way.
const RIPE: Duration = Duration::from_secs(1);

/// All connections of a server.
#[derive(Default)]
pub(crate) struct Seats {
    made: Cell<u64>,
    all: RefCell<BTreeMap<u64, Rc<Seat>>>,
}

struct Seat {
    peer: SocketAddr,
    /// It waits for a request since then.
    idle_since: Cell<Option<Instant>>,
    ended: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Seats {
    pub(crate) fn take(self: &Rc<Self>, peer: SocketAddr) -> Place {
        self.made.update(|made| made + 1);
        let number = self.made.get();
        let (idle_since, ended, waker) = Default::default();
        let seat = Rc::new(Seat { peer, idle_since, ended, waker });
        self.all.borrow_mut().insert(number, Rc::clone(&seat));
        Place { seats: Rc::clone(self), number, seat }
    }

    fn longest(&self) -> Option<Rc<Seat>> {
        let all = self.all.borrow();
        let idle = all.values().filter_map(|seat| Some((seat.idle_since.get()?, seat)));
        let (since, seat) = idle.min_by_key(|(since, _)| *since)?;
        (since.elapsed() >= RIPE).then(|| Rc::clone(seat))
    }

    /// Whether a connection could be ended.
    pub(crate) fn has_ripe(&self) -> bool {
        self.longest().is_some()
    }

    /// Ends the connection that has waited longest; whose it was.
    pub(crate) fn end_longest(&self) -> Option<SocketAddr> {
        let seat = self.longest()?;
        seat.idle_since.set(None);
        seat.ended.set(true);
        let waker = seat.waker.take();
        waker.into_iter().for_each(Waker::wake);
        Some(seat.peer)
    }
}

/// The place of one connection.
pub(crate) struct Place {
    seats: Rc<Seats>,
    number: u64,
    seat: Rc<Seat>,
}

impl Place {
    /// Notes since when it waits for a request.
    pub(crate) fn mark_idle(&self, since: Instant) {
        self.seat.idle_since.set(Some(since));
    }

    /// Notes that it has one.
    pub(crate) fn mark_busy(&self) {
        self.seat.idle_since.set(None);
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.seat.ended.get()
    }

    /// Ready when the connection is to end for another.
    pub(crate) fn poll_ended(&self, context: &mut Context<'_>) -> Poll<()> {
        if self.is_ended() {
            return Poll::Ready(());
        }
        let mut waker = self.seat.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            *waker = Some(context.waker().clone());
        }
        Poll::Pending
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.seats.all.borrow_mut().remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_one_that_waits_longest_is_ended_and_no_other() {
        let seats = Rc::<Seats>::default();
        let places = [1, 2, 3].map(|port| seats.take(([127, 0, 0, 1], port).into()));
        let Some(early) = Instant::now().checked_sub(2 * RIPE) else { return };
        let mut context = Context::from_waker(Waker::noop());
        assert_eq!(seats.end_longest(), None);
        places[0].mark_idle(Instant::now());
        assert!(!seats.has_ripe(), "its request may be on its way");
        places[1].mark_idle(early);
        places[2].mark_idle(early - RIPE);
        places[2].mark_busy();
        assert_eq!(seats.end_longest().map(|peer| peer.port()), Some(2));
        assert_eq!(seats.end_longest(), None);
        let ended = places.each_ref().map(|place| place.poll_ended(&mut context).is_ready());
        assert_eq!(ended, [false, true, false]);
        drop(places);
        assert!(seats.all.borrow().is_empty());
    }
}
