//! TCP as the hosts see it: ordered bytes, acknowledged on arrival, kept until they are read.

use std::collections::VecDeque;

use handoff_rds::protocol::{ConnectionId, MessageId};

/// Bytes that may be under way and unread in one direction.
pub(crate) const WINDOW: usize = 20_000;

/// A connection: two ends.
pub(crate) struct Tcp {
    pub(crate) ends: [End; 2],
    /// From when on nothing passes.
    pub(crate) cut: bool,
}

/// One end, and what is on the way from it.
pub(crate) struct End {
    pub(crate) host: usize,
    /// The host's incarnation that this end belongs to.
    pub(crate) incarnation: u32,
    /// The name that the host has for it; `None` before it knows and after it is closed.
    pub(crate) id: Option<ConnectionId>,
    /// Written, not on the way yet.
    pub(crate) outgoing: VecDeque<u8>,
    pub(crate) on_the_way: VecDeque<Vec<u8>>,
    /// Nothing is written any more, and the other side learns it behind what is on the way.
    pub(crate) finished: bool,
    /// When the last of them arrives; those behind can't be earlier.
    pub(crate) arrival: u64,
    pub(crate) written: u64,
    /// What this end knows to be acknowledged.
    pub(crate) acknowledged: u64,
    /// What has arrived from the other end, in all and unread.
    pub(crate) arrived: u64,
    pub(crate) unread: VecDeque<u8>,
    /// The host wants to know when what is unread is taken in.
    pub(crate) awaited: bool,
    /// Lent payloads, each with the offset of its end.
    pub(crate) loans: VecDeque<(u64, MessageId)>,
}

impl End {
    pub(crate) fn new(host: usize, incarnation: u32, id: Option<ConnectionId>) -> Self {
        Self {
            host,
            incarnation,
            id,
            outgoing: VecDeque::new(),
            on_the_way: VecDeque::new(),
            finished: false,
            arrival: 0,
            written: 0,
            acknowledged: 0,
            arrived: 0,
            unread: VecDeque::new(),
            awaited: false,
            loans: VecDeque::new(),
        }
    }

    pub(crate) fn read(&mut self, len: usize) -> Option<Vec<u8>> {
        (self.unread.len() >= len).then(|| self.unread.drain(..len).collect())
    }

    pub(crate) fn bytes_on_the_way(&self) -> usize {
        self.on_the_way.iter().map(Vec::len).sum()
    }
}
