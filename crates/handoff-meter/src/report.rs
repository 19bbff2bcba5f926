//! What was counted: sums, shares, and the table.

use std::collections::BTreeMap;

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

/// The sums alone; cheap to read again and again.
///
/// [`Meter::totals`](crate::Meter::totals) returns them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Bytes that the kernel's CPU copied from one buffer to another, each copy counted.
    pub copied_bytes: u64,
    /// Bytes that went through files and sockets, once at each end: a loop of read and write and a
    /// `sendfile` both move each byte twice.
    pub moved_bytes: u64,
    /// Bytes that kernel threads and the idle task copied while only some processes were counted: nobody
    /// knows on whose behalf. Not in `copied_bytes`. Zero for [`Scope::Machine`]. Pages that the kernel
    /// moves to keep memory in order (`khugepaged`, `kcompactd`) are not included.
    ///
    /// [`Scope::Machine`]: crate::Scope::Machine
    pub unattributed_bytes: u64,
    /// Bytes that the processes copied by the C library in user space; not in `copied_bytes`, nor in the
    /// share. `None` unless [`Options::libc`] asks for it.
    ///
    /// [`Options::libc`]: crate::Options::libc
    pub libc_bytes: Option<u64>,
}

impl Totals {
    /// What was counted since `earlier`, an older reading of the same meter.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            copied_bytes: self.copied_bytes.saturating_sub(earlier.copied_bytes),
            moved_bytes: self.moved_bytes.saturating_sub(earlier.moved_bytes),
            unattributed_bytes: self.unattributed_bytes.saturating_sub(earlier.unattributed_bytes),
            libc_bytes: self
                .libc_bytes
                .map(|bytes| bytes.saturating_sub(earlier.libc_bytes.unwrap_or(0))),
        }
    }

    /// Copied bytes for each moved byte: 0 is zero copy, 1 is a read or a write, and more means several
    /// copies on the way. `None` when nothing was moved.
    pub fn share(self) -> Option<f64> {
        (self.moved_bytes > 0).then(|| self.copied_bytes as f64 / self.moved_bytes as f64)
    }

    /// Whether more than `share` of the moved bytes was copied. If nothing was moved, any copy is too
    /// many.
    pub fn exceeds(self, share: f64) -> bool {
        self.copied_bytes as f64 > share * self.moved_bytes as f64
    }
}

/// Where bytes were copied.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Place {
    /// The kernel function that copied.
    pub function: String,
    /// The function's callers, innermost first, to the system call. Empty where the kernel could not
    /// tell, or does not show its symbols to this user.
    pub path: Vec<String>,
    /// Bytes copied.
    pub bytes: u64,
    /// How often the function copied.
    pub calls: u64,
}

/// Everything counted since the meter was attached.
///
/// [`Meter::read`](crate::Meter::read) returns it.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Report {
    /// The sums.
    #[serde(flatten)]
    pub totals: Totals,
    /// [`Totals::share`].
    pub share: Option<f64>,
    /// Where bytes were copied, most bytes first.
    pub places: Vec<Place>,
    /// Where unattributed bytes were copied, as far as call paths are told apart.
    pub unattributed_places: Vec<Place>,
    /// Functions that this kernel lacks or does not let us trace: nothing was counted there.
    pub missing: Vec<String>,
}

/// Bytes and calls of one function.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counter {
    pub(crate) bytes: u64,
    pub(crate) calls: u64,
}

impl std::ops::AddAssign for Counter {
    fn add_assign(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.calls += other.calls;
    }
}

/// Makes places from exact sums by function and sums by call path; the latter may be incomplete.
///
/// Paths with the same names are one place. What the paths lack of a function's sum becomes a
/// place with an empty path, so that the places always add up to the sums.
pub(crate) fn places(
    sums: &BTreeMap<String, Counter>,
    by_path: Vec<(String, Vec<String>, Counter)>,
) -> Vec<Place> {
    let mut merged: BTreeMap<(String, Vec<String>), Counter> = BTreeMap::new();
    let mut known: BTreeMap<String, Counter> = BTreeMap::new();
    for (function, path, counter) in by_path {
        *known.entry(function.clone()).or_default() += counter;
        *merged.entry((function, path)).or_default() += counter;
    }
    for (function, sum) in sums {
        let known = known.get(function).copied().unwrap_or_default();
        let rest = Counter {
            bytes: sum.bytes.saturating_sub(known.bytes),
            calls: sum.calls.saturating_sub(known.calls),
        };
        if rest != Counter::default() {
            *merged.entry((function.clone(), Vec::new())).or_default() += rest;
        }
    }
    let place =
        |((function, path), Counter { bytes, calls })| Place { function, path, bytes, calls };
    sorted(merged.into_iter().map(place))
}

/// What was copied since `earlier`, without places where nothing was.
fn places_since(all: &[Place], earlier: &[Place]) -> Vec<Place> {
    let before: BTreeMap<_, _> =
        earlier.iter().map(|place| ((&place.function, &place.path), place)).collect();
    let spent = |place: &Place| {
        let (bytes, calls) = before
            .get(&(&place.function, &place.path))
            .map_or((0, 0), |before| (before.bytes, before.calls));
        let (bytes, calls) = (place.bytes.saturating_sub(bytes), place.calls.saturating_sub(calls));
        Place { bytes, calls, ..place.clone() }
    };
    sorted(all.iter().map(spent).filter(|place| place.calls > 0))
}

/// Most bytes first.
fn sorted(places: impl Iterator<Item = Place>) -> Vec<Place> {
    let mut places: Vec<Place> = places.collect();
    places.sort_by(|one, other| other.bytes.cmp(&one.bytes).then_with(|| one.cmp(other)));
    places
}

/// How many places the table shows; the others share one row.
const ROWS: usize = 20;
/// How many callers of a function the table shows.
const CALLERS: usize = 4;

impl Report {
    /// What was counted since `earlier`, an older reading of the same meter.
    pub fn since(&self, earlier: &Self) -> Self {
        let totals = self.totals.since(earlier.totals);
        Self {
            totals,
            share: totals.share(),
            places: places_since(&self.places, &earlier.places),
            unattributed_places: places_since(
                &self.unattributed_places,
                &earlier.unattributed_places,
            ),
            missing: self.missing.clone(),
        }
    }

    /// The report for people.
    pub fn table(&self) -> String {
        let Totals { copied_bytes, moved_bytes, unattributed_bytes, libc_bytes } = self.totals;
        let share = self.share.map_or_else(String::new, |share| format!(", share {share:.4}"));
        let mut text = format!("copied {copied_bytes} bytes, moved {moved_bytes} bytes{share}\n");
        if !self.places.is_empty() {
            text.push_str(&self.rows());
            text.push('\n');
        }
        if unattributed_bytes > 0 {
            text.push_str(&format!(
                "not attributed: {unattributed_bytes} bytes that kernel threads copied for anybody"
            ));
            if let Some(place) = near(&self.unattributed_places).first() {
                let Place { function, bytes, .. } = place;
                text.push_str(&format!("; {bytes} by {function} for {}", place.callers()));
            }
            text.push('\n');
        }
        if let Some(bytes) = libc_bytes {
            text.push_str(&format!("in user space: {bytes} bytes by the C library\n"));
        }
        if !self.missing.is_empty() {
            text.push_str(&format!("not counted on this kernel: {}\n", self.missing.join(", ")));
        }
        text
    }

    fn rows(&self) -> String {
        let places = near(&self.places);
        let row = |place: &Place| {
            let Place { function, bytes, calls, .. } = place;
            [bytes.to_string(), calls.to_string(), function.clone(), place.callers()]
        };
        let mut rows: Vec<_> = places.iter().take(ROWS).map(row).collect();
        let rest = places.get(ROWS..).unwrap_or_default();
        if !rest.is_empty() {
            let bytes: u64 = rest.iter().map(|place| place.bytes).sum();
            let calls: u64 = rest.iter().map(|place| place.calls).sum();
            let others = format!("{} other places (--json lists them)", rest.len());
            rows.push([bytes.to_string(), calls.to_string(), others, String::new()]);
        }
        draw(["bytes", "calls", COPIED_BY, FOR], rows)
    }
}

/// Places as people see them: those that differ only in far callers are one.
pub fn near(places: &[Place]) -> Vec<Place> {
    let mut near: BTreeMap<(&str, &[String]), Counter> = BTreeMap::new();
    for Place { function, path, bytes, calls } in places {
        let path = &path[..path.len().min(CALLERS)];
        *near.entry((function, path)).or_default() += Counter { bytes: *bytes, calls: *calls };
    }
    sorted(near.into_iter().map(|((function, path), Counter { bytes, calls })| Place {
        function: function.to_owned(),
        path: path.to_vec(),
        bytes,
        calls,
    }))
}

impl Place {
    /// The callers that are shown.
    pub fn callers(&self) -> String {
        self.path.join(" < ")
    }
}

/// The title of the column that says where.
pub const COPIED_BY: &str = "copied by";
/// The title of the column of callers.
pub const FOR: &str = "for";

/// Two columns of figures, and two that say where.
pub fn draw(titles: [&str; 4], rows: Vec<[String; 4]>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(titles);
    table.add_rows(rows);
    for (number, column) in table.column_iter_mut().enumerate() {
        column.set_padding((if number == 0 { 0 } else { 2 }, 0));
        if number < 2 {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counter(bytes: u64, calls: u64) -> Counter {
        Counter { bytes, calls }
    }

    fn totals(copied_bytes: u64, moved_bytes: u64) -> Totals {
        Totals { copied_bytes, moved_bytes, ..Totals::default() }
    }

    fn path(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_share_is_of_what_was_moved() {
        assert_eq!(totals(50, 200).share(), Some(0.25));
        assert_eq!(totals(0, 200).share(), Some(0.0));
        assert_eq!(totals(400, 200).share(), Some(2.0));
        assert_eq!(totals(50, 0).share(), None);
    }

    #[test]
    fn only_more_than_the_share_exceeds_it() {
        assert!(!totals(2, 200).exceeds(0.01));
        assert!(totals(3, 200).exceeds(0.01));
        assert!(!totals(0, 0).exceeds(0.0));
        assert!(totals(1, 0).exceeds(0.5), "copies where nothing was moved");
    }

    #[test]
    fn a_span_is_the_difference_of_two_readings() {
        let totals = |copied_bytes, moved_bytes, libc| Totals {
            copied_bytes,
            moved_bytes,
            unattributed_bytes: 3,
            libc_bytes: Some(libc),
        };
        let (later, earlier) = (totals(7, 9, 20), totals(5, 1, 4));
        let span = later.since(earlier);
        assert_eq!(span, Totals { unattributed_bytes: 0, ..totals(2, 8, 16) });
    }

    #[test]
    fn places_have_what_came_after_and_the_most_first() {
        let report = |of_copy, of_other| {
            let sums = BTreeMap::from([
                ("copy".to_owned(), counter(of_copy, of_copy)),
                ("other".to_owned(), counter(of_other, of_other)),
                ("silent".to_owned(), counter(3, 3)),
            ]);
            Report { places: places(&sums, Vec::new()), ..Report::default() }
        };
        let span = report(100, 50).since(&report(90, 10));
        let found: Vec<_> =
            span.places.iter().map(|place| (&*place.function, place.bytes, place.calls)).collect();
        assert_eq!(found, [("other", 40, 40), ("copy", 10, 10)]);
    }

    #[test]
    fn places_that_look_the_same_are_one_row() {
        let of = |callers: &[&str]| (callers.iter().map(|name| (*name).to_owned())).collect();
        let near = ["a", "b", "c", "d"];
        let by_path = vec![
            ("copy".to_owned(), of(&[&near[..], &["read"]].concat()), counter(30, 2)),
            ("copy".to_owned(), of(&[&near[..], &["write"]].concat()), counter(40, 3)),
            ("copy".to_owned(), of(&["a"]), counter(60, 1)),
        ];
        let sums = BTreeMap::from([("copy".to_owned(), counter(130, 6))]);
        let report = Report { places: places(&sums, by_path), ..Report::default() };
        assert_eq!(report.places.len(), 3);
        let table = report.table();
        let rows: Vec<_> = table.lines().skip(2).map(str::trim).collect();
        assert_eq!(
            rows,
            ["70      5  copy       a < b < c < d", "60      1  copy       a"],
            "{table}"
        );
    }

    #[test]
    fn places_merge_by_name_and_add_up_to_the_sums() {
        let sums = BTreeMap::from([
            ("copy".to_owned(), counter(100, 10)),
            ("other".to_owned(), counter(7, 1)),
            ("silent".to_owned(), counter(0, 0)),
        ]);
        let by_path = vec![
            ("copy".to_owned(), path(&["read", "sys"]), counter(30, 2)),
            ("copy".to_owned(), path(&["read", "sys"]), counter(40, 3)),
            ("copy".to_owned(), path(&["write"]), counter(10, 1)),
        ];
        let found = places(&sums, by_path);
        let expected = [
            ("copy", path(&["read", "sys"]), 70, 5),
            ("copy", path(&[]), 20, 4),
            ("copy", path(&["write"]), 10, 1),
            ("other", path(&[]), 7, 1),
        ];
        let found: Vec<_> = found
            .iter()
            .map(|place| (place.function.as_str(), place.path.clone(), place.bytes, place.calls))
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn json_has_the_documented_form() {
        let report = Report {
            totals: totals(50, 200),
            share: totals(50, 200).share(),
            places: places(
                &BTreeMap::from([("copy".to_owned(), counter(50, 2))]),
                vec![("copy".to_owned(), path(&["read"]), counter(50, 2))],
            ),
            ..Report::default()
        };
        let expected = serde_json::json!({
            "copied_bytes": 50,
            "moved_bytes": 200,
            "unattributed_bytes": 0,
            "libc_bytes": null,
            "share": 0.25,
            "places": [{"function": "copy", "path": ["read"], "bytes": 50, "calls": 2}],
            "unattributed_places": [],
            "missing": [],
        });
        assert_eq!(serde_json::to_value(&report).expect("JSON"), expected);
    }

    #[test]
    fn the_table_says_where_most_of_what_is_nobodys_was_copied() {
        let by_path = vec![
            ("copy".to_owned(), path(&["write", "loop_workfn"]), counter(30, 2)),
            ("other".to_owned(), Vec::new(), counter(10, 1)),
        ];
        let report = Report {
            totals: Totals { unattributed_bytes: 40, ..Totals::default() },
            unattributed_places: places(&BTreeMap::new(), by_path),
            ..Report::default()
        };
        let table = report.table();
        let line = "not attributed: 40 bytes that kernel threads copied for anybody; 30 by copy for \
                    write < loop_workfn";
        assert!(table.lines().any(|found| found == line), "{table}");
    }

    #[test]
    fn the_table_sums_up_what_it_does_not_list() {
        let sums = (0..ROWS + 3).map(|n| (format!("f{n}"), counter(n as u64 + 1, 1))).collect();
        let report = Report { places: places(&sums, Vec::new()), ..Report::default() };
        let table = report.table();
        assert!(table.contains("3 other places"), "{table}");
        let last = table.lines().last().expect("rows");
        assert!(last.trim_start().starts_with("6 "), "1 + 2 + 3 bytes: {last}");
    }
}
