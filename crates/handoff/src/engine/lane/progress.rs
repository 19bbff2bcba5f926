//! What came of the requests of a lane, for its counts and its next steps.

use crate::outcome::Tally;
use crate::ring::token::NEXT_GENERATION;
use crate::ring::{Ring, Token};

/// The sum of a run of completions.
#[derive(Default)]
pub(super) struct Sum {
    pub(super) messages: u64,
    pub(super) notifications: u64,
    /// Requests that completed with a return signal still to come.
    pub(super) lent: u32,
    /// Return signals of such requests.
    pub(super) returned: u32,
    /// Requests that the kernel no longer has.
    pub(super) ended: u32,
    pub(super) tally: Tally,
}

/// Result of an attempt to submit.
#[derive(Default)]
pub(super) struct Submitted {
    pub(super) requests: u32,
    /// The ring had no room for all.
    pub(super) stalled: bool,
    /// Buffers that came back without a request.
    pub(super) settled: Option<Sum>,
}

/// Makes room for one request in the ring's queue; returns whether there is some.
pub(super) fn make_room(ring: &mut Ring) -> bool {
    ring.make_room(1)
        .inspect_err(|error| tracing::debug!(%error, "a lane waits for the ring"))
        .is_ok()
}

/// Places that wait for the socket to have room.
pub(super) type Blocked = Option<Vec<Token>>;

/// The next use of a place, for another request.
pub(super) fn next_use(data: u64) -> u64 {
    data.wrapping_add(NEXT_GENERATION)
}
