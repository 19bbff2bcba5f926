//! What a client sends again when connections end, and when a flush must fail.
//!
//! The connections to a server come and go in turns. When one of a turn ends, the turn is over: end the others, make a
//! new turn's connections, and only then send requests over them.
//!
//! Contracts:
//! - a request is on one connection at most. It waits again only when that connection was aborted, so that neither the
//!   kernel nor the peer can reach its memory any more ([`Resend::aborted`]);
//! - an answer counts only in the turn in which its request was sent;
//! - writes that were answered, and not flushed, may be gone if the server is another instance in the next turn. It is
//!   the same one only if it proves that ([`Session`](crate::wire::Session)). The next flush then fails, and so does each
//!   that was submitted before this was told. Writes with FUA are never in doubt.
//!
//! A server that does not know sessions may still carry out a write of an earlier turn after the same write, and a newer
//! one, were answered in this turn. Nothing here can tell.

use std::collections::{BTreeMap, BTreeSet};

use crate::request::{Operation, Request};

/// A request of the client, in the order of submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

/// A connection. Each has another number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Connection(u64);

/// What a request is, for these rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It changes nothing.
    Read,
    /// It changes bytes, which may be lost until a flush.
    Write,
    /// It changes bytes, which are on stable storage when it is answered.
    DurableWrite,
    /// It makes answered writes durable.
    Flush,
}

impl From<&Request> for Kind {
    fn from(request: &Request) -> Self {
        match request.operation {
            Operation::Flush => Self::Flush,
            _ if !request.is_write() => Self::Read,
            _ if request.fua => Self::DurableWrite,
            _ => Self::Write,
        }
    }
}

/// What an answer means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The request is over, with the server's result.
    Over,
    /// The flush is over, with `EIO`: writes that it covers may be gone.
    Lost,
    /// The answer does not count: its turn is over, and the request is sent again.
    Ignored,
}

/// The turn's connections do not lead to the same instance of the server: end the turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the connections lead to different instances of the server")]
pub struct OtherInstance;

#[derive(Clone, Copy, Debug)]
struct Submitted {
    kind: Kind,
    /// Writes that had been answered at submission: what a flush covers.
    covers: u64,
    /// `None` while it waits.
    on: Option<Connection>,
}

/// Answered writes that may be gone.
#[derive(Clone, Copy, Debug)]
struct Loss {
    /// The last of them, by number.
    last: u64,
    /// A flush that covers it has failed; those submitted from this ticket on know nothing of it.
    told: Option<Ticket>,
}

/// The state of one device's requests.
#[derive(Clone, Debug, Default)]
pub struct Resend {
    requests: BTreeMap<Ticket, Submitted>,
    waiting: BTreeSet<Ticket>,
    tickets: u64,
    connections: u64,
    /// Those of the turn.
    live: BTreeSet<Connection>,
    /// Those of turns that are over, not aborted yet.
    ending: BTreeSet<Connection>,
    /// The server's instance in this turn or in the last one. `None` at first.
    instance: Option<Option<u128>>,
    /// Writes that were answered and are not durable by themselves, counted.
    answered: u64,
    /// So many of them were flushed, or are known to be lost.
    settled: u64,
    loss: Option<Loss>,
    gave_up: bool,
}

impl Resend {
    /// Without requests and connections.
    pub fn new() -> Self {
        Self::default()
    }

    /// A request, which waits now.
    pub fn submit(&mut self, kind: Kind) -> Ticket {
        let ticket = Ticket(self.tickets);
        self.tickets += 1;
        self.requests.insert(ticket, Submitted { kind, covers: self.answered, on: None });
        self.waiting.insert(ticket);
        ticket
    }

    /// A connection of the turn was made, to a server that proves to be this instance, or proves nothing. The first one
    /// begins the turn. Make all of a turn before you ask for requests to send.
    ///
    /// # Errors
    ///
    /// The turn's connections lead to different instances. This one does not count: close it, and end the turn.
    pub fn connected(&mut self, instance: Option<u128>) -> Result<Connection, OtherInstance> {
        if self.live.is_empty() {
            self.begin(instance);
        } else if self.instance != Some(instance) {
            return Err(OtherInstance);
        }
        self.gave_up = false;
        let connection = Connection(self.connections);
        self.connections += 1;
        self.live.insert(connection);
        Ok(connection)
    }

    fn begin(&mut self, instance: Option<u128>) {
        let before = self.instance.replace(instance);
        let is_same = instance.is_some() && before == Some(instance);
        if !is_same && self.settled < self.answered {
            self.loss = Some(Loss { last: self.answered, told: None });
            self.settled = self.answered;
        }
    }

    /// The oldest waiting request, which is now on this connection. `None` if there is none, or the connection's turn is
    /// over.
    pub fn next(&mut self, connection: Connection) -> Option<Ticket> {
        if !self.live.contains(&connection) {
            return None;
        }
        let ticket = self.waiting.pop_first()?;
        self.requests.get_mut(&ticket)?.on = Some(connection);
        Some(ticket)
    }

    /// The server answered a request on a connection, with a success or an error.
    pub fn answered(&mut self, connection: Connection, ticket: Ticket, success: bool) -> Verdict {
        let found = self.requests.get(&ticket).copied();
        let Some(submitted) = found.filter(|submitted| submitted.on == Some(connection)) else {
            return Verdict::Ignored;
        };
        if !self.live.contains(&connection) {
            return Verdict::Ignored;
        }
        self.requests.remove(&ticket);
        match submitted.kind {
            Kind::Write if success => self.answered += 1,
            Kind::Flush if self.tells_loss(ticket, submitted.covers) => return Verdict::Lost,
            Kind::Flush if success => self.settled = self.settled.max(submitted.covers),
            _ => {}
        }
        Verdict::Over
    }

    /// Whether a flush has to say that writes may be gone.
    fn tells_loss(&mut self, flush: Ticket, covers: u64) -> bool {
        let Some(loss) = &mut self.loss else { return false };
        match loss.told {
            Some(from) => flush < from,
            None => {
                if covers >= loss.last {
                    loss.told = Some(Ticket(self.tickets));
                }
                true
            }
        }
    }

    /// A connection ended, so the turn is over. Abort all that this returns, and say so of each.
    pub fn ended(&mut self) -> Vec<Connection> {
        let ended: Vec<_> = std::mem::take(&mut self.live).into_iter().collect();
        self.ending.extend(&ended);
        ended
    }

    /// A connection was aborted, and the memory of its requests is back. They wait again, or, when the client has given up,
    /// are over: fail those that this returns.
    pub fn aborted(&mut self, connection: Connection) -> Vec<Ticket> {
        if !self.ending.remove(&connection) {
            return Vec::new();
        }
        let requests = self.requests.iter_mut();
        let mut back = Vec::new();
        for (ticket, submitted) in requests.filter(|(_, it)| it.on == Some(connection)) {
            submitted.on = None;
            back.push(*ticket);
        }
        self.waiting.extend(back);
        if self.gave_up { self.fail_waiting() } else { Vec::new() }
    }

    /// No connection came back in time. Fail the requests that this returns; those on connections that are not aborted yet
    /// follow from [`Resend::aborted`]. A new connection ends this.
    pub fn give_up(&mut self) -> Vec<Ticket> {
        self.gave_up = true;
        self.fail_waiting()
    }

    fn fail_waiting(&mut self) -> Vec<Ticket> {
        let failed: Vec<_> = std::mem::take(&mut self.waiting).into_iter().collect();
        for ticket in &failed {
            self.requests.remove(ticket);
        }
        failed
    }

    /// Requests that are on a connection, in the order of submission.
    pub fn outstanding(&self, connection: Connection) -> impl Iterator<Item = Ticket> {
        let on = move |(_, it): &(&Ticket, &Submitted)| it.on == Some(connection);
        self.requests.iter().filter(on).map(|(ticket, _)| *ticket)
    }

    /// Whether anything waits to be sent.
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }
}
