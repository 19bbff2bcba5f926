//! Connections that wait for a request, so that a full server can end the one that has waited longest.
//!
//! Contracts:
//! - a connection is ended only while it waits, and has waited for [`RIPE`];
//! - each task is woken once, by the waker of its last poll.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use handoff::Client;

/// A connection that waits for less may have a request on its way.
const RIPE: Duration = Duration::from_secs(1);

/// All connections of a server.
#[derive(Default)]
pub(crate) struct Registry {
    made: Cell<u64>,
    all: RefCell<BTreeMap<u64, Rc<Entry>>>,
}

struct Entry {
    peer: Client,
    /// It waits for a request since then.
    idle_since: Cell<Option<Instant>>,
    ended: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Registry {
    pub(crate) fn register(self: &Rc<Self>, peer: Client) -> Registration {
        self.made.update(|made| made + 1);
        let number = self.made.get();
        let (idle_since, ended, waker) = Default::default();
        let entry = Rc::new(Entry { peer, idle_since, ended, waker });
        self.all.borrow_mut().insert(number, Rc::clone(&entry));
        Registration { registry: Rc::clone(self), number, entry }
    }

    fn longest(&self) -> Option<Rc<Entry>> {
        let all = self.all.borrow();
        let idle = all.values().filter_map(|entry| Some((entry.idle_since.get()?, entry)));
        let (since, entry) = idle.min_by_key(|(since, _)| *since)?;
        (since.elapsed() >= RIPE).then(|| Rc::clone(entry))
    }

    /// Whether a connection could be ended.
    pub(crate) fn has_ripe(&self) -> bool {
        self.longest().is_some()
    }

    /// Ends the connection that has waited longest; whose it was.
    pub(crate) fn end_longest(&self) -> Option<Client> {
        let entry = self.longest()?;
        entry.idle_since.set(None);
        entry.ended.set(true);
        let waker = entry.waker.take();
        waker.into_iter().for_each(Waker::wake);
        Some(entry.peer)
    }
}

/// The registration of one connection; dropping it removes the entry.
pub(crate) struct Registration {
    registry: Rc<Registry>,
    number: u64,
    entry: Rc<Entry>,
}

impl Registration {
    /// Notes since when it waits for a request.
    pub(crate) fn mark_idle(&self, since: Instant) {
        self.entry.idle_since.set(Some(since));
    }

    /// Notes that it has one.
    pub(crate) fn mark_busy(&self) {
        self.entry.idle_since.set(None);
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.entry.ended.get()
    }

    /// Ready when the connection is to end for another.
    pub(crate) fn poll_ended(&self, context: &mut Context<'_>) -> Poll<()> {
        if self.is_ended() {
            return Poll::Ready(());
        }
        let mut waker = self.entry.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            *waker = Some(context.waker().clone());
        }
        Poll::Pending
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.registry.all.borrow_mut().remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_one_that_waits_longest_is_ended_and_no_other() {
        let registry = Rc::<Registry>::default();
        let registrations = [1, 2, 3].map(|port| {
            let address = std::net::SocketAddr::from(([127, 0, 0, 1], port));
            registry.register(address.into())
        });
        let Some(early) = Instant::now().checked_sub(2 * RIPE) else { return };
        let mut context = Context::from_waker(Waker::noop());
        assert_eq!(registry.end_longest(), None);
        registrations[0].mark_idle(Instant::now());
        assert!(!registry.has_ripe(), "its request may be on its way");
        registrations[1].mark_idle(early);
        registrations[2].mark_idle(early - RIPE);
        registrations[2].mark_busy();
        assert_eq!(registry.end_longest().and_then(|peer| peer.address()?.port().into()), Some(2));
        assert_eq!(registry.end_longest(), None);
        let ended = registrations
            .each_ref()
            .map(|registration| registration.poll_ended(&mut context).is_ready());
        assert_eq!(ended, [false, true, false]);
        drop(registrations);
        assert!(registry.all.borrow().is_empty());
    }
}
