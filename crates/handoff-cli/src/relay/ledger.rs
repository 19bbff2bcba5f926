//! What was relayed: connections, bytes, engines, copies, and how many are open.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::future::poll_fn;
use std::net::IpAddr;
use std::rc::Rc;
use std::task::{Poll, Waker};

use handoff::Route;
use indicatif::ProgressBar;

use super::report::{Counts, Report};
use crate::clock::Clock;
use crate::progress;

/// The counts. Clones are of the same.
#[derive(Clone)]
pub(super) struct Ledger(Rc<Book>);

struct Book {
    clock: Clock,
    progress: ProgressBar,
    open: Cell<u64>,
    /// How many of them each client has.
    clients: RefCell<HashMap<IpAddr, u32>>,
    counts: RefCell<Counts>,
    notes: RefCell<Vec<String>>,
    /// Who waits for connections to end.
    waiting: RefCell<Vec<Waker>>,
}

impl Ledger {
    pub(super) fn new(quiet: bool) -> Self {
        Self(Rc::new(Book {
            clock: Clock::start(),
            progress: progress::bytes(None, quiet),
            open: Cell::new(0),
            clients: RefCell::default(),
            counts: RefCell::default(),
            notes: RefCell::default(),
            waiting: RefCell::default(),
        }))
    }

    /// A connection has come; `None` where its client has `most` already.
    pub(super) fn enter(&self, client: IpAddr, most: Option<u32>) -> Option<Counted> {
        let mut clients = self.0.clients.borrow_mut();
        let own = clients.entry(client).or_default();
        if most.is_some_and(|most| *own >= most) {
            self.0.counts.borrow_mut().turned_away += 1;
            return None;
        }
        *own += 1;
        let open = self.0.open.get() + 1;
        self.0.open.set(open);
        let mut counts = self.0.counts.borrow_mut();
        counts.connections += 1;
        counts.most_open = counts.most_open.max(open);
        Some(Counted {
            ledger: self.clone(),
            client,
            up: Rc::default(),
            down: Rc::default(),
            told: Cell::new(0),
            over: false,
        })
    }

    /// Connections under way.
    pub(super) fn open(&self) -> u64 {
        self.0.open.get()
    }

    /// Waits until fewer than so many are under way.
    pub(super) async fn until_below(&self, most: u64) {
        poll_fn(|context| {
            if self.open() < most {
                return Poll::Ready(());
            }
            self.0.waiting.borrow_mut().push(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Says something now.
    pub(super) fn say(&self, line: &str) {
        self.0.progress.suspend(|| eprintln!("handoff: {line}"));
    }

    /// The progress line goes; the report follows later.
    pub(super) fn clear(&self) {
        self.0.progress.finish_and_clear();
    }

    /// Says what goes otherwise than asked, now and in the report.
    pub(super) fn note(&self, note: String) {
        if !self.0.notes.borrow().contains(&note) {
            self.say(&format!("note: {note}"));
            self.0.notes.borrow_mut().push(note);
        }
    }

    /// The report of all.
    pub(super) fn close(&self) -> Report {
        self.0.progress.finish_and_clear();
        Report::new(&self.0.clock, &self.0.counts.borrow(), self.0.notes.borrow().clone())
    }
}

/// A connection that is counted, until it is dropped.
pub(super) struct Counted {
    ledger: Ledger,
    client: IpAddr,
    up: Rc<Cell<u64>>,
    down: Rc<Cell<u64>>,
    /// Bytes that the progress knows of.
    told: Cell<u64>,
    over: bool,
}

impl Counted {
    /// The counts of its two directions.
    pub(super) fn watch(&mut self, up: Rc<Cell<u64>>, down: Rc<Cell<u64>>) {
        (self.up, self.down) = (up, down);
    }

    /// Bytes in both directions.
    pub(super) fn moved(&self) -> u64 {
        self.up.get() + self.down.get()
    }

    /// Shows how far it is.
    pub(super) fn tell(&self) {
        let moved = self.moved();
        self.ledger.0.progress.inc(moved - self.told.replace(moved));
    }

    /// A direction has ended, well or not.
    pub(super) fn carried(&self, route: &Route) {
        let mut counts = self.ledger.0.counts.borrow_mut();
        *counts.engines.entry(route.engine().name()).or_default() += 1;
        counts.taken += route.taken();
        counts.given += route.given();
    }

    pub(super) fn ended_well(mut self) {
        self.over = true;
    }

    pub(super) fn failed(mut self, reason: String) {
        self.over = true;
        let mut counts = self.ledger.0.counts.borrow_mut();
        counts.failed += 1;
        *counts.failures.entry(reason).or_default() += 1;
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.tell();
        let book = &self.ledger.0;
        {
            let mut counts = book.counts.borrow_mut();
            counts.up += self.up.get();
            counts.down += self.down.get();
            if !self.over {
                counts.failed += 1;
                *counts.failures.entry("ended with the relay".to_owned()).or_default() += 1;
            }
        }
        book.open.set(book.open.get() - 1);
        if let Entry::Occupied(mut own) = book.clients.borrow_mut().entry(self.client) {
            *own.get_mut() -= 1;
            if *own.get() == 0 {
                own.remove();
            }
        }
        book.waiting.take().into_iter().for_each(Waker::wake);
    }
}
