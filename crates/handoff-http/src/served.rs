//! What a server has done: counts, of bytes by whether they were copied.

use std::cell::RefCell;

use handoff::Tally;

/// Counts of a server so far.
///
/// [`Server::served`](crate::Server::served) returns it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Connections that came.
    pub connections: u64,
    /// Connections open now.
    pub open: u64,
    /// The most at once.
    pub most_open: u64,
    /// Connections closed at once, because their client is not admitted or had as many as it may; not counted
    /// among those that came.
    pub turned_away: u64,
    /// Connections that waited for a request, and were ended since all places were taken.
    pub displaced: u64,
    /// Connections whose bytes the kernel ciphers.
    pub tls_by_kernel: u64,
    /// Connections whose bytes this process ciphers.
    pub tls_by_process: u64,
    /// Connections that ended in their handshake: those that spoke no TLS, asked for what is not served, or took too long.
    pub tls_refused: u64,
    /// Requests given to the service.
    pub requests: u64,
    /// Requests refused before the service was done with them: malformed, too large, too slow.
    pub refused: u64,
    /// Services that panicked, failed, or gave an invalid answer; each was a 500.
    pub failed: u64,
    /// Answers that ended early: the client left or stalled, the body failed, a file shrank.
    pub cut_short: u64,
    /// Bytes of answers by whether the CPU copied them into sockets; bytes still on loan are not included.
    pub sent: Tally,
    /// Bytes of files by whether the CPU copied them out of the page cache.
    pub read: Tally,
}

impl Served {
    /// Adds another server's counts; `most_open` becomes the sum, which is at least what both had at once.
    pub fn add(&mut self, other: &Self) {
        self.connections += other.connections;
        self.open += other.open;
        self.most_open += other.most_open;
        self.turned_away += other.turned_away;
        self.displaced += other.displaced;
        self.tls_by_kernel += other.tls_by_kernel;
        self.tls_by_process += other.tls_by_process;
        self.tls_refused += other.tls_refused;
        self.requests += other.requests;
        self.refused += other.refused;
        self.failed += other.failed;
        self.cut_short += other.cut_short;
        self.sent += other.sent;
        self.read += other.read;
    }
}

/// The counts, which all connections of a server update.
#[derive(Default)]
pub(crate) struct Counters(RefCell<Served>);

impl Counters {
    pub(crate) fn read(&self) -> Served {
        *self.0.borrow()
    }

    pub(crate) fn write(&self, change: impl FnOnce(&mut Served)) {
        change(&mut self.0.borrow_mut());
    }
}
