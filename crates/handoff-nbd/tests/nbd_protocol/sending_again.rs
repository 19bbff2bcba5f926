//! What is sent again, and when a flush must fail: rule by rule, and in a world where servers crash.

use std::collections::{BTreeMap, VecDeque};

use handoff_nbd::resend::{Connection, Kind, Resend, Ticket, Verdict};
use proptest::prelude::*;

const A: Option<u128> = Some(1);
const B: Option<u128> = Some(2);

/// Submits a request, sends it, and gets a success.
fn done(resend: &mut Resend, connection: Connection, kind: Kind) -> Verdict {
    let ticket = resend.submit(kind);
    assert_eq!(resend.next(connection), Some(ticket));
    resend.answered(connection, ticket, true)
}

/// Ends the turn, and begins one with another instance.
fn renew(resend: &mut Resend, instance: Option<u128>) -> Connection {
    for connection in resend.ended() {
        assert_eq!(resend.aborted(connection), []);
    }
    resend.connected(instance).expect("the first of its turn")
}

#[test]
fn a_request_waits_until_its_connection_is_aborted() {
    let mut resend = Resend::new();
    let old = resend.connected(A).expect("the first");
    let tickets = [Kind::Write, Kind::Read].map(|kind| resend.submit(kind));
    assert_eq!(resend.next(old), Some(tickets[0]));
    assert_eq!(resend.ended(), [old]);
    assert_eq!(resend.next(old), None, "nothing goes over a connection that ended");
    let new = resend.connected(A).expect("the first");
    assert_eq!(resend.next(new), Some(tickets[1]), "it was on no connection");
    assert_eq!(resend.next(new), None);
    assert_eq!(resend.outstanding(old).collect::<Vec<_>>(), [tickets[0]]);
    assert_eq!(resend.answered(old, tickets[0], true), Verdict::Ignored);
    assert_eq!(resend.aborted(old), []);
    assert_eq!(resend.next(new), Some(tickets[0]));
    assert_eq!(resend.answered(old, tickets[0], true), Verdict::Ignored);
    assert_eq!(resend.answered(new, tickets[0], true), Verdict::Over);
    assert!(!resend.has_waiting());
}

#[test]
fn a_flush_fails_where_writes_may_be_gone() {
    for (first, second, kind, expected) in [
        (A, A, Kind::Write, Verdict::Over),
        (A, B, Kind::Write, Verdict::Lost),
        (A, None, Kind::Write, Verdict::Lost),
        (None, A, Kind::Write, Verdict::Lost),
        (None, None, Kind::Write, Verdict::Lost),
        (A, B, Kind::DurableWrite, Verdict::Over),
        (None, None, Kind::DurableWrite, Verdict::Over),
        (None, None, Kind::Read, Verdict::Over),
    ] {
        let mut resend = Resend::new();
        let old = resend.connected(first).expect("the first");
        assert_eq!(done(&mut resend, old, kind), Verdict::Over);
        let new = renew(&mut resend, second);
        assert_eq!(done(&mut resend, new, Kind::Flush), expected, "{first:?} {second:?} {kind:?}");
        assert_eq!(done(&mut resend, new, Kind::Flush), Verdict::Over, "it was told");
    }
    let mut resend = Resend::new();
    let old = resend.connected(A).expect("the first");
    done(&mut resend, old, Kind::Write);
    done(&mut resend, old, Kind::Flush);
    let new = renew(&mut resend, B);
    assert_eq!(done(&mut resend, new, Kind::Flush), Verdict::Over, "all was flushed");
}

#[test]
fn flushes_that_were_under_way_fail_too() {
    let mut resend = Resend::new();
    let old = resend.connected(A).expect("the first");
    done(&mut resend, old, Kind::Write);
    let flushes = [Kind::Flush, Kind::Flush].map(|kind| resend.submit(kind));
    resend.next(old);
    let new = renew(&mut resend, B);
    for flush in flushes {
        assert_eq!(resend.next(new), Some(flush));
        assert_eq!(resend.answered(new, flush, true), Verdict::Lost);
    }
    assert_eq!(done(&mut resend, new, Kind::Flush), Verdict::Over);
}

#[test]
fn a_flush_that_covers_less_does_not_settle_the_loss() {
    let mut resend = Resend::new();
    let old = resend.connected(A).expect("the first");
    let early = resend.submit(Kind::Flush);
    assert_eq!(resend.next(old), Some(early));
    done(&mut resend, old, Kind::Write);
    let new = renew(&mut resend, B);
    assert_eq!(resend.next(new), Some(early));
    assert_eq!(resend.answered(new, early, true), Verdict::Lost);
    assert_eq!(done(&mut resend, new, Kind::Flush), Verdict::Lost, "it is the first to cover it");
    assert_eq!(done(&mut resend, new, Kind::Flush), Verdict::Over);
}

#[test]
fn a_flush_does_not_settle_what_was_answered_meanwhile() {
    let mut resend = Resend::new();
    let old = resend.connected(A).expect("the first");
    let flush = resend.submit(Kind::Flush);
    assert_eq!(resend.next(old), Some(flush));
    done(&mut resend, old, Kind::Write);
    assert_eq!(resend.answered(old, flush, true), Verdict::Over);
    let new = renew(&mut resend, B);
    assert_eq!(done(&mut resend, new, Kind::Flush), Verdict::Lost);
}

#[test]
fn failed_writes_are_told_already_and_failed_flushes_settle_nothing() {
    for (kind, expected) in [(Kind::Write, Verdict::Over), (Kind::Flush, Verdict::Lost)] {
        let mut resend = Resend::new();
        let old = resend.connected(A).expect("the first");
        if kind == Kind::Flush {
            done(&mut resend, old, Kind::Write);
        }
        let failed = resend.submit(kind);
        assert_eq!(resend.next(old), Some(failed));
        assert_eq!(resend.answered(old, failed, false), Verdict::Over);
        let new = renew(&mut resend, B);
        assert_eq!(done(&mut resend, new, Kind::Flush), expected);
    }
}

#[test]
fn a_turn_has_one_instance() {
    let mut resend = Resend::new();
    let first = resend.connected(A).expect("the first");
    let second = resend.connected(A).expect("the same");
    assert!(resend.connected(B).is_err());
    assert!(resend.connected(None).is_err());
    assert_eq!(resend.ended(), [first, second], "one ends all");
}

#[test]
fn who_gives_up_gets_what_waits_and_later_what_comes_back() {
    let mut resend = Resend::new();
    let connection = resend.connected(A).expect("the first");
    let tickets = [Kind::Write, Kind::Read].map(|kind| resend.submit(kind));
    resend.next(connection);
    resend.ended();
    assert_eq!(resend.give_up(), [tickets[1]], "the other one's memory is still lent");
    assert_eq!(resend.aborted(connection), [tickets[0]]);
    assert_eq!(resend.give_up(), []);
    let connection = resend.connected(A).expect("the first");
    assert_eq!(done(&mut resend, connection, Kind::Read), Verdict::Over);
}

const CELLS: usize = 4;

/// A disk with a cache that a crash loses.
#[derive(Default)]
struct Server {
    instance: u128,
    cached: [u64; CELLS],
    stored: [u64; CELLS],
}

/// What a client does with cells that it numbers up.
#[derive(Clone, Copy, Debug)]
enum Job {
    Write {
        cell: usize,
        value: u64,
        durable: bool,
    },
    /// With the values whose writes were over when it was submitted.
    Flush([u64; CELLS]),
}

struct World {
    resend: Resend,
    server: Server,
    /// Whether it proves who it is.
    proves: bool,
    live: Vec<Connection>,
    aborting: Vec<Connection>,
    jobs: BTreeMap<Ticket, Job>,
    /// Requests on the way to the server, and answers on the way back.
    requests: VecDeque<(Connection, Ticket)>,
    answers: VecDeque<(Connection, Ticket)>,
    over: [u64; CELLS],
    busy: [bool; CELLS],
    /// What a failed flush has told to be in doubt; a later flush says nothing of it.
    doubted: [u64; CELLS],
    values: u64,
}

impl World {
    fn step(&mut self, what: u8, which: u8) {
        let cell = usize::from(which) % CELLS;
        match what % 9 {
            0 if !self.busy[cell] => {
                self.values += 1;
                self.busy[cell] = true;
                let durable = which > 200;
                let kind = if durable { Kind::DurableWrite } else { Kind::Write };
                let ticket = self.resend.submit(kind);
                self.jobs.insert(ticket, Job::Write { cell, value: self.values, durable });
            }
            1 => {
                let ticket = self.resend.submit(Kind::Flush);
                self.jobs.insert(ticket, Job::Flush(self.over));
            }
            2 | 3 => self.send(which),
            4 => self.carry_out(which),
            5 => self.hear(which),
            6 if which < 60 => self.fail(which < 30),
            7 => {
                if let Some(connection) = self.aborting.pop() {
                    // What it had on the way is not carried out any more, and its answers are not heard.
                    self.requests.retain(|(on, _)| *on != connection);
                    self.answers.retain(|(on, _)| *on != connection);
                    assert_eq!(self.resend.aborted(connection), []);
                }
            }
            8 if self.live.is_empty() => {
                let instance = self.proves.then_some(self.server.instance);
                for _ in 0..1 + which % 3 {
                    self.live.push(self.resend.connected(instance).expect("one instance"));
                }
            }
            _ => {}
        }
    }

    fn send(&mut self, which: u8) {
        if let Some(connection) = self.live.get(usize::from(which) % self.live.len().max(1))
            && let Some(ticket) = self.resend.next(*connection)
        {
            self.requests.push_back((*connection, ticket));
        }
    }

    /// The server carries out any of the requests that live connections have brought.
    fn carry_out(&mut self, which: u8) {
        let at = usize::from(which) % self.requests.len().max(1);
        let Some((connection, ticket)) = self.requests.get(at).copied() else { return };
        if !self.live.contains(&connection) {
            return;
        }
        self.requests.remove(at);
        match self.jobs[&ticket] {
            Job::Write { cell, value, durable } => {
                self.server.cached[cell] = value;
                if durable {
                    self.server.stored[cell] = value;
                }
            }
            Job::Flush(_) => self.server.stored = self.server.cached,
        }
        self.answers.push_back((connection, ticket));
    }

    /// Answers of several connections come in any order.
    fn hear(&mut self, which: u8) {
        let at = usize::from(which) % self.answers.len().max(1);
        let Some((connection, ticket)) = self.answers.remove(at) else { return };
        match (self.resend.answered(connection, ticket, true), self.jobs.get(&ticket)) {
            (Verdict::Ignored, _) => return,
            (Verdict::Over, Some(Job::Write { cell, value, .. })) => {
                self.over[*cell] = *value;
                self.busy[*cell] = false;
            }
            (Verdict::Over, Some(Job::Flush(covered))) => {
                for (cell, value) in covered.iter().enumerate() {
                    let is_stored = self.server.stored[cell] >= *value;
                    assert!(is_stored || *value <= self.doubted[cell], "a flush lied about {cell}");
                }
            }
            (Verdict::Lost, Some(Job::Flush(covered))) => {
                for (doubted, value) in self.doubted.iter_mut().zip(covered) {
                    *doubted = (*doubted).max(*value);
                }
            }
            other => panic!("{other:?}"),
        }
        self.jobs.remove(&ticket);
    }

    /// All connections end; the server's host may crash, and loses its cache.
    fn fail(&mut self, crashes: bool) {
        if crashes {
            self.server.cached = self.server.stored;
            self.server.instance += 1;
        }
        let ended = self.resend.ended();
        assert_eq!(ended.len(), self.live.len());
        self.aborting.extend(ended);
        self.live.clear();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn no_flush_lies_however_servers_crash(
        steps in prop::collection::vec(any::<(u8, u8)>(), 1..400), proves in any::<bool>(),
    ) {
        let mut world = World {
            resend: Resend::new(),
            server: Server::default(),
            proves,
            live: Vec::new(),
            aborting: Vec::new(),
            jobs: BTreeMap::new(),
            requests: VecDeque::new(),
            answers: VecDeque::new(),
            over: [0; CELLS],
            busy: [false; CELLS],
            doubted: [0; CELLS],
            values: 0,
        };
        for (what, which) in steps {
            world.step(what, which);
        }
        // And all comes to an end.
        world.live.is_empty().then(|| world.step(8, 0));
        while !world.aborting.is_empty() {
            world.step(7, 0);
        }
        while !world.jobs.is_empty() {
            world.send(0);
            world.carry_out(0);
            world.hear(0);
        }
    }
}
