//! Where the kernel's reports and the copy meter, the witness, disagree.
//!
//! Contracts:
//!
//! 1. A report is compared with what the witness must see if it is right
//!    ([`Engine::implied`](crate::measure::Engine::implied)). Without a report there is nothing to compare.
//! 2. Headers and message frames are copied too and are no payload: small messages may disagree by
//!    [`FRAMING`].
//! 3. The report lists who copied, as far as the witness can tell.

use std::cmp::Reverse;

use serde::{Deserialize, Serialize};

/// The largest difference that is no disagreement, as a share of the payload, or of its copies if those are more.
pub(crate) const TOLERANCE: f64 = 0.02;
/// Bytes that may be copied per message besides its payload, in all its headers and at all ends.
pub(crate) const FRAMING: f64 = 256.0;
/// A place with less than this share of the payload gets no line.
const LEAST: f64 = 0.01;
/// The number of places that are kept.
const PLACES: usize = 4;

/// A row whose engine's report and witness disagree. Shares are copies of each payload byte.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Disagreement {
    /// The row's name.
    pub row: String,
    /// Payload bytes per operation, if rows of several sizes have the same name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// The copies that the kernel reports.
    pub reported: f64,
    /// The copies that the witness must see if the report is right: more than `reported`, if bytes are also
    /// copied at an end without a report.
    pub implied: f64,
    /// The copies that the witness saw.
    pub witness: f64,
    /// The places where the kernel copied, most bytes first.
    pub places: Vec<CopiedAt>,
}

/// A place where bytes were copied.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CopiedAt {
    /// The kernel function that copied.
    pub function: String,
    /// The functions that called it, innermost first.
    pub path: Vec<String>,
    /// The copies of each payload byte that the function made.
    pub share: f64,
}

/// Whether `witness` differs from what is `implied`, for messages of this length.
pub(crate) fn disagree(implied: f64, witness: f64, bytes: Option<u64>) -> bool {
    let framing = bytes.map_or(0.0, |bytes| FRAMING / bytes as f64);
    (witness - implied).abs() > (TOLERANCE * implied.max(1.0)).max(framing)
}

impl CopiedAt {
    /// The places in `report`, for `bytes` bytes of payload.
    pub(crate) fn of(report: &handoff_meter::Report, bytes: u64) -> Vec<Self> {
        let share = |place: &handoff_meter::Place| place.bytes as f64 / bytes as f64;
        let all = report.places.iter().chain(&report.unattributed_places);
        let mut places: Vec<_> = all.filter(|place| share(place) >= LEAST).collect();
        places.sort_by_key(|place| Reverse(place.bytes));
        places.truncate(PLACES);
        let of = |place: &handoff_meter::Place| Self {
            function: place.function.clone(),
            path: place.path.clone(),
            share: share(place),
        };
        places.into_iter().map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_no_disagreement_and_payload_is_one() {
        assert!(!disagree(1.0, 1.019, Some(1 << 20)));
        assert!(disagree(1.0, 1.021, Some(1 << 20)));
        assert!(disagree(1.0, 0.97, None), "too little is one, too");
        assert!(disagree(0.0, 0.021, None) && !disagree(4.0, 4.07, None), "of four copies");
        assert!(!disagree(1.0, 4.9, Some(64)), "250 bytes");
        assert!(disagree(1.0, 5.1, Some(64)), "262 bytes");
    }
}
