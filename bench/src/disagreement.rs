//! Where the kernel's reports and the copy meter, the witness, disagree.
//!
//! Contracts:
//!
//! 1. A report is compared with what the witness has to see if it is right
//!    ([`Engine::implied`](crate::measure::Engine::implied)). Where nothing is reported there is nothing
//!    to compare.
//! 2. Headers and what frames a message are copied too and are no payload: small messages disagree by
//!    [`FRAMING`] only.
//! 3. Who copied stands beside, as far as the witness can tell.

use std::cmp::Reverse;

use serde::{Deserialize, Serialize};

use crate::{
    report::{Report, Row},
    table::{self, percent},
};

/// Difference up to which they agree: of the payload, or of its copies where those are more.
const TOLERANCE: f64 = 0.02;
/// Bytes that each message may be copied with besides, in all its headers and at all ends.
const FRAMING: f64 = 256.0;
/// A place of less than this share of the payload is not worth its line.
const LEAST: f64 = 0.01;
/// How many places are kept.
const PLACES: usize = 4;
/// How many callers of a function a line has.
const CALLERS: usize = 3;

/// A row whose engine's report and witness disagree. Shares are copies of each payload byte.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Disagreement {
    /// The row's name.
    pub row: String,
    /// Payload bytes per operation, where rows of several sizes have the same name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// What is reported.
    pub reported: f64,
    /// What the witness has to see if that is right: more, where bytes are also copied at an end of
    /// which nothing reports.
    pub implied: f64,
    /// What it saw.
    pub witness: f64,
    /// Where, most bytes first.
    pub places: Vec<CopiedAt>,
}

/// Where bytes were copied.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CopiedAt {
    /// The kernel function that copied.
    pub function: String,
    /// Who called it, innermost first.
    pub path: Vec<String>,
    /// Copies by it of each payload byte.
    pub share: f64,
}

/// Whether `witness` says something else than what is `implied`, for messages of this length.
pub(crate) fn disagree(implied: f64, witness: f64, bytes: Option<u64>) -> bool {
    let framing = bytes.map_or(0.0, |bytes| FRAMING / bytes as f64);
    (witness - implied).abs() > (TOLERANCE * implied.max(1.0)).max(framing)
}

impl CopiedAt {
    /// The places that `report` has, for so many bytes of payload.
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

    fn line(&self) -> String {
        let callers = self.path.iter().take(CALLERS).map(String::as_str);
        let callers = callers.collect::<Vec<_>>().join(" < ");
        let whom = if callers.is_empty() { callers } else { format!(" for {callers}") };
        format!("{} by {}{whom}", percent(self.share), self.function)
    }
}

impl Disagreement {
    fn line(&self) -> String {
        let bytes = self.bytes.map_or_else(String::new, |bytes| format!(" ({bytes} bytes)"));
        let implied = match disagree(self.reported, self.implied, None) {
            true => format!(", which makes {} at all ends", percent(self.implied)),
            false => String::new(),
        };
        let (reported, witness) = (percent(self.reported), percent(self.witness));
        let mut text =
            format!("{}{bytes}: reported {reported}{implied}; witness {witness}", self.row);
        if !self.places.is_empty() {
            let places: Vec<String> = self.places.iter().map(CopiedAt::line).collect();
            text.push_str(": ");
            text.push_str(&places.join(", "));
        }
        text
    }
}

/// What a report says about it, a line for each row below one that says what follows; that all agree is
/// one line. Nothing where nothing could be compared.
pub fn lines(report: &Report) -> Vec<String> {
    let Some(disagreements) = &report.disagreements else { return Vec::new() };
    let compared = |row: &&Row| row.copied_share.is_some() && row.copied_share_witness.is_some();
    let told = "copied bytes, as reported and by the witness";
    match (report.rows.iter().filter(compared).count(), disagreements.len()) {
        (0, _) => Vec::new(),
        (1, 0) => vec![format!("{told}: agree in the one row that has both")],
        (compared, 0) => vec![format!("{told}: agree in all {compared} rows that have both")],
        (compared, count) => {
            let heading = format!(
                "{told}: disagree in {count} of {compared} rows that have both (by more than {} and \
                 {FRAMING} bytes a message)",
                percent(TOLERANCE)
            );
            let line = |found: &Disagreement| match table::has_sizes_apart(report) {
                true => found.line(),
                false => Disagreement { bytes: None, ..found.clone() }.line(),
            };
            std::iter::once(heading).chain(disagreements.iter().map(line)).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{machine::Machine, report::Config};

    fn row(name: &str, bytes: u64, copied: Option<f64>, witness: Option<f64>) -> Row {
        Row {
            name: name.into(),
            config: Config { bytes: Some(bytes), ..Config::default() },
            copied_share: copied,
            copied_share_witness: witness,
            ..Row::default()
        }
    }

    fn found(row: &Row, implied: f64) -> Option<Disagreement> {
        let (reported, witness) = (row.copied_share?, row.copied_share_witness?);
        let place = CopiedAt {
            function: "skb_copy_ubufs".into(),
            path: ["a", "b", "c", "d"].map(str::to_owned).to_vec(),
            share: 0.25,
        };
        disagree(implied, witness, row.config.bytes).then(|| Disagreement {
            row: row.name.clone(),
            bytes: row.config.bytes,
            reported,
            implied,
            witness,
            places: vec![place],
        })
    }

    /// Of rows with what is implied by their reports.
    fn report(rows: Vec<(Row, f64)>) -> Report {
        let (rows, found): (Vec<_>, Vec<_>) =
            rows.into_iter().map(|(row, implied)| (row.clone(), found(&row, implied))).unzip();
        Report {
            bench: "send".into(),
            version: "0".into(),
            date: String::new(),
            machine: Machine::this(),
            emulated: false,
            conditions: Vec::new(),
            disagreements: Some(found.into_iter().flatten().collect()),
            rows,
        }
    }

    #[test]
    fn headers_are_no_disagreement_and_payload_is_one() {
        assert!(!disagree(1.0, 1.019, Some(1 << 20)));
        assert!(disagree(1.0, 1.021, Some(1 << 20)));
        assert!(disagree(1.0, 0.97, None), "too little is one, too");
        assert!(disagree(0.0, 0.021, None) && !disagree(4.0, 4.07, None), "of four copies");
        assert!(!disagree(1.0, 4.9, Some(64)), "250 bytes");
        assert!(disagree(1.0, 5.1, Some(64)), "262 bytes");
    }

    #[test]
    fn one_line_says_that_all_agree_and_none_that_there_is_nothing() {
        let agree = report(vec![
            (row("a", 65_536, Some(1.0), Some(1.001)), 1.0),
            (row("b", 65_536, Some(0.0), Some(1.0)), 1.0),
            (row("c", 65_536, None, Some(2.0)), 0.0),
        ]);
        let [line] = &lines(&agree)[..] else { panic!("{:?}", lines(&agree)) };
        assert!(line.ends_with("agree in all 2 rows that have both"), "{line}");
        let unknown = report(vec![(row("c", 65_536, None, Some(2.0)), 0.0)]);
        assert!(lines(&unknown).is_empty());
        let unasked = Report { disagreements: None, ..agree };
        assert!(lines(&unasked).is_empty());
    }

    #[test]
    fn a_line_says_what_was_reported_seen_and_where() {
        let one = report(vec![
            (row("a", 65_536, Some(0.0), Some(0.25)), 0.0),
            (row("b", 65_536, Some(0.5), Some(1.0)), 1.5),
            (row("c", 65_536, Some(1.0), Some(1.0)), 1.0),
        ]);
        let [heading, a, b] = &lines(&one)[..] else { panic!("{:?}", lines(&one)) };
        assert!(heading.contains("disagree in 2 of 3 rows"), "{heading}");
        assert!(heading.contains("more than 2 % and 256 bytes a message"), "{heading}");
        assert_eq!(a, "a: reported 0 %; witness 25 %: 25 % by skb_copy_ubufs for a < b < c");
        assert!(b.starts_with("b: reported 50 %, which makes 150 % at all ends; witness 100 %: "));
        let sizes = report(vec![
            (row("a", 1_024, Some(1.0), Some(1.0)), 1.0),
            (row("a", 65_536, Some(0.0), Some(0.25)), 0.0),
        ]);
        assert!(lines(&sizes)[1].starts_with("a (65536 bytes): "), "{:?}", lines(&sizes));
    }
}
