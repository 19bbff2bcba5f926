//! The disagreements of a report, as lines of text.

use handoff_command::quantity::percent;

use crate::report::{CopiedAt, Disagreement, FRAMING, Report, Row, TOLERANCE, disagree};

/// The most callers of a function that a line names.
const CALLERS: usize = 3;

/// A place where bytes were copied, in words.
fn place(copied: &CopiedAt) -> String {
    let callers = copied.path.iter().take(CALLERS).map(String::as_str);
    let callers = callers.collect::<Vec<_>>().join(" < ");
    let whom = if callers.is_empty() { callers } else { format!(" for {callers}") };
    format!("{} by {}{whom}", percent(copied.share), copied.function)
}

fn line(found: &Disagreement) -> String {
    let bytes = found.bytes.map_or_else(String::new, |bytes| format!(" ({bytes} bytes)"));
    let implied = match disagree(found.reported, found.implied, None) {
        true => format!(", which makes {} at all ends", percent(found.implied)),
        false => String::new(),
    };
    let (reported, witness) = (percent(found.reported), percent(found.witness));
    let mut text = format!("{}{bytes}: reported {reported}{implied}; witness {witness}", found.row);
    if !found.places.is_empty() {
        let places: Vec<String> = found.places.iter().map(place).collect();
        text.push_str(": ");
        text.push_str(&places.join(", "));
    }
    text
}

/// The report's disagreements: one line that explains them, then a line for each row that disagrees. There is
/// one line if all rows agree, and none if nothing could be compared.
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
            let told_of = |found: &Disagreement| match report.has_sizes_apart() {
                true => line(found),
                false => line(&Disagreement { bytes: None, ..found.clone() }),
            };
            std::iter::once(heading).chain(disagreements.iter().map(told_of)).collect()
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

    /// A report of these rows, each with the copies that its report implies.
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
