//! Requests as bytes: parsing without I/O.
//!
//! Contracts:
//! - for any bytes, parsing ends within the limits and does not panic;
//! - it refuses whatever two readers could take for different requests: lengths that contradict each other or
//!   are given twice, lines that end by LF alone, folded lines, blanks before a colon, sizes beyond 64 bits.

mod chunked;
mod head;
mod host;
mod lines;
#[cfg(test)]
mod tests;

pub use chunked::{Chunked, Piece};
pub(crate) use head::has_token;
pub use head::{Framing, Head};
use http::StatusCode;
pub use lines::Lines;

/// Why a request is not served, and the status that tells its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct Refusal {
    /// The status of the answer.
    pub status: StatusCode,
    /// The reason, in words.
    pub why: &'static str,
}

impl Refusal {
    pub(crate) const fn new(status: StatusCode, why: &'static str) -> Self {
        Self { status, why }
    }

    const fn bad(why: &'static str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, why)
    }
}

/// The body is longer than allowed.
pub(crate) const TOO_LONG: Refusal =
    Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "the body is longer than this server takes");

/// The request's target is longer than allowed.
pub(crate) const LONG_TARGET: Refusal =
    Refusal::new(StatusCode::URI_TOO_LONG, "the request's target is longer than this server takes");

const TOO_MANY_FIELDS: Refusal = Refusal::new(
    StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
    "the request has more fields than this server takes",
);
