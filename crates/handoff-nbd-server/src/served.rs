//! What a server has done.

use std::cell::RefCell;
use std::collections::BTreeMap;

use handoff::Tally;

use crate::pieces::Piece;

/// Counts of a [`Server`](crate::Server).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Connections that were accepted and let in.
    pub connections: u64,
    /// Of these, open now.
    pub open: u64,
    /// The most at once.
    pub most_open: u64,
    /// Connections that were closed at once: addresses that may not connect, clients with too many.
    pub turned_away: u64,
    /// Connections that ended in a failure, by its reason.
    pub failures: BTreeMap<String, u64>,
    /// Requests, by what they ask for.
    pub requests: BTreeMap<&'static str, u64>,
    /// Requests that were answered by an error.
    pub refused: u64,
    /// Bytes that clients asked for and got.
    pub bytes_read: u64,
    /// Of these, bytes that were told as holes.
    pub bytes_of_holes: u64,
    /// Bytes that clients wrote.
    pub bytes_written: u64,
    /// On the way from files: lent, or read by the device, counts as not copied.
    pub read: Tally,
    /// Payload on the way into sockets.
    pub sent: Tally,
    /// On the way into files.
    pub written: Tally,
    /// Payload of writes that was copied once more, since it came together with a header.
    pub gathered: u64,
    /// Writes of parts of blocks, for which blocks were read first.
    pub filled_around: u64,
}

impl Served {
    /// Adds the counts of another thread.
    pub fn add(&mut self, other: Self) {
        self.connections += other.connections;
        self.open += other.open;
        self.most_open += other.most_open;
        self.turned_away += other.turned_away;
        other.failures.into_iter().for_each(|(why, n)| *self.failures.entry(why).or_default() += n);
        other
            .requests
            .into_iter()
            .for_each(|(what, n)| *self.requests.entry(what).or_default() += n);
        self.refused += other.refused;
        self.bytes_read += other.bytes_read;
        self.bytes_of_holes += other.bytes_of_holes;
        self.bytes_written += other.bytes_written;
        self.read += other.read;
        self.sent += other.sent;
        self.written += other.written;
        self.gathered += other.gathered;
        self.filled_around += other.filled_around;
    }

    pub(crate) fn count_read(&mut self, is_direct: bool, bytes: u64) {
        count(&mut self.read, is_direct, bytes);
    }

    pub(crate) fn count_written(&mut self, is_direct: bool, piece: &Piece) {
        count(&mut self.written, is_direct, piece.len() as u64);
        self.filled_around += u64::from(!piece.is_whole());
    }
}

fn count(tally: &mut Tally, is_direct: bool, bytes: u64) {
    match is_direct {
        true => tally.zero_copy += bytes,
        false => tally.copied += bytes,
    }
}

/// Reasons of failures that are told apart.
const REASONS: usize = 32;

#[derive(Debug, Default)]
pub(crate) struct Counters(RefCell<Served>);

impl Counters {
    pub(crate) fn write(&self, change: impl FnOnce(&mut Served)) {
        change(&mut self.0.borrow_mut());
    }

    pub(crate) fn read(&self) -> Served {
        self.0.borrow().clone()
    }

    pub(crate) fn failed(&self, why: String) {
        self.write(|served| {
            let known = served.failures.len() < REASONS || served.failures.contains_key(&why);
            let why = if known { why } else { "others".to_owned() };
            *served.failures.entry(why).or_default() += 1;
        });
    }
}
