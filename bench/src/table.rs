//! The table that people read.

use std::iter;

use comfy_table::{CellAlignment, Table, presets};
use handoff_command::quantity::{format_size, percent};

use crate::{
    disagreement,
    report::{BLOCK, HTTP, PASS, RECV, Report, Row, SPLICE},
};

const GIB: f64 = 1_073_741_824.0;

/// The content of a table: titles, the cells below them, and why rows have none.
pub struct Sheet {
    /// The titles of the columns; the first names the row.
    pub titles: Vec<&'static str>,
    /// The cells of each row, in the order of the report's rows.
    pub rows: Vec<Vec<String>>,
    /// A line for each reason for which rows were skipped.
    pub footnotes: Vec<String>,
}

/// The figures of a report in their units.
pub fn sheet(report: &Report) -> Sheet {
    let mut columns: Vec<Column> = Vec::new();
    if report.has_sizes_apart() {
        columns.push(("bytes", |row| row.config.bytes.map_or_else(String::new, format_size)));
    }
    columns.extend(figures(report));
    let titles = iter::once("row").chain(columns.iter().map(|(title, _)| *title)).collect();
    let cells = |row: &Row| -> Vec<String> {
        iter::once(row.name.clone()).chain(columns.iter().map(|(_, figure)| figure(row))).collect()
    };
    let rows = report.rows.iter().map(cells).collect();
    let mut skipped: Vec<(&str, &str, usize)> = Vec::new();
    for row in &report.rows {
        let Some(reason) = &row.skipped else { continue };
        match skipped.iter_mut().find(|(_, of, _)| of == reason) {
            Some((_, _, more)) => *more += 1,
            None => skipped.push((&row.name, reason, 0)),
        }
    }
    let footnote = |(name, reason, more): (&str, &str, usize)| match more {
        0 => format!("{name} was skipped: {reason}"),
        _ => format!("{name} and {more} more were skipped: {reason}"),
    };
    Sheet { titles, rows, footnotes: skipped.into_iter().map(footnote).collect() }
}

/// Draws the rows of a report; with an `earlier` one, each ratio stands beside the earlier one.
pub fn draw(report: &Report, earlier: Option<&Report>) -> String {
    let Sheet { mut titles, rows, footnotes } = sheet(report);
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    if earlier.is_some() {
        titles.extend(["ratio then", "change"]);
    }
    table.set_header(titles);
    for (mut cells, row) in rows.into_iter().zip(&report.rows) {
        if let Some(earlier) = earlier {
            cells.extend(change(row, earlier.find(row)));
        }
        table.add_row(cells);
    }
    for (number, column) in table.column_iter_mut().enumerate() {
        column.set_padding((if number == 0 { 0 } else { 2 }, 0));
        if number > 0 {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let mut text = table.trim_fmt();
    for footnote in footnotes.into_iter().chain(disagreement::lines(report)) {
        text.push('\n');
        text.push_str(&footnote);
    }
    text
}

/// Whether the row's operations are of one page: bytes say no more about them.
fn passes_pages(row: &Row) -> bool {
    row.config.op.as_deref() == Some(PASS)
}

/// The title of a column, and its cell in a row.
type Column = (&'static str, fn(&Row) -> String);

fn figures(report: &Report) -> Vec<Column> {
    let ratio: [Column; 2] = [
        ("ratio", |row| show(row.ratio, |ratio| format!("{ratio:.2}"))),
        ("min-max", |row| {
            let range = row.ratio_min.zip(row.ratio_max);
            range.map_or_else(|| NONE.to_owned(), |(min, max)| format!("{min:.2}-{max:.2}"))
        }),
    ];
    let pages = report.bench == SPLICE;
    let sized = !report.rows.iter().all(passes_pages);
    let served = report.bench == HTTP;
    let requests = pages || served || report.bench == BLOCK;
    let counted = report.counts_instructions();
    let per_operation = if requests { "kinsn/request" } else { "kinsn/message" };
    let costs: [Column; 2] = match counted {
        true => [
            ("Minsn/GiB", |row| {
                let count = row.minsn_per_gib.filter(|_| !passes_pages(row));
                show(count, |count| format!("{count:.1}"))
            }),
            (
                per_operation,
                if pages {
                    |row| show(row.kinsn_per_op, |count| format!("{count:.3}"))
                } else {
                    |row| show(row.kinsn_per_op, |count| format!("{count:.2}"))
                },
            ),
        ],
        false => [
            (if requests { "requests/s" } else { "messages/s" }, |row| {
                show(row.ops_per_s, |rate| format!("{rate:.0}"))
            }),
            ("CPU s/GiB", |row| {
                let cost = row.cpu_ns_per_byte.filter(|_| !passes_pages(row));
                show(cost, |ns| format!("{:.3}", ns * GIB / 1e9))
            }),
        ],
    };
    let mut columns: Vec<Column> = Vec::new();
    if !counted && sized {
        columns.push(("MB/s", |row| {
            let rate = row.bytes_per_s.filter(|_| !passes_pages(row));
            show(rate, |rate| format!("{:.0}", rate / 1e6))
        }));
    }
    columns.extend(ratio);
    // Nobody knows where a message of a stream ends.
    let streams = report.bench == RECV && report.rows.iter().all(|row| row.config.bytes.is_none());
    let told_of = |title: &str| if title.ends_with("GiB") { sized } else { !streams };
    columns.extend(costs.into_iter().filter(|(title, _)| told_of(title)));
    let others: [(bool, Column); 22] = [
        (
            served && !counted,
            ("CPU us", |row| show(row.cpu_ns_per_op, |ns| format!("{:.1}", ns / 1e3))),
        ),
        (true, ("p50 us", |row| show(row.latency_us.map(|it| it.p50), |us| format!("{us:.1}")))),
        (true, ("p99 us", |row| show(row.latency_us.map(|it| it.p99), |us| format!("{us:.1}")))),
        (
            true,
            ("p50 kinsn", |row| {
                show(row.latency_kinsn.map(|it| it.p50), |kinsn| format!("{kinsn:.1}"))
            }),
        ),
        (true, ("user us", |row| show(row.user_ns_per_op, |ns| format!("{:.2}", ns / 1e3)))),
        (true, ("user", |row| show(row.user_share, |share| format!("{:.1} %", share * 100.0)))),
        (true, ("reap calls", |row| show(row.reap_calls, |count| format!("{count:.2}")))),
        (
            true,
            (if counted { "reap insn" } else { "reap ns" }, |row| {
                show(row.reap_ns, |count| format!("{count:.0}"))
            }),
        ),
        (true, ("with load", |row| show(row.kinsn_per_op_all, |count| format!("{count:.2}")))),
        (
            true,
            ("CPU us, load too", |row| {
                show(row.cpu_ns_per_op_all, |ns| format!("{:.2}", ns / 1e3))
            }),
        ),
        (counted, ("Minsn/s", |row| show(row.cpu_share, |share| format!("{:.1}", share * 1e3)))),
        (
            !counted,
            ("server CPU", |row| show(row.cpu_share, |share| format!("{:.1} %", share * 100.0))),
        ),
        (true, ("enters", |row| show(row.enters_per_op, |count| format!("{count:.2}")))),
        (true, ("lends", |row| show(row.lends_per_op, |count| format!("{count:.2}")))),
        (true, ("switches", |row| show(row.switches_per_op, |count| format!("{count:.2}")))),
        (true, ("busy", |row| show(row.busy_share, percent))),
        (true, ("softirq", |row| show(row.softirq_share, percent))),
        (true, ("cipher", |row| show(row.cipher_share, percent))),
        (true, (if counted { "beside Minsn/GiB" } else { "beside s/GiB" }, beside_cipher)),
        (true, ("ciphered", |row| show(row.ciphered_share, percent))),
        (true, ("copied", |row| show(row.copied_share, percent))),
        (true, ("witness", |row| show(row.copied_share_witness, percent))),
    ];
    let told = |figure: fn(&Row) -> String| report.rows.iter().any(|row| figure(row) != NONE);
    let others = others.into_iter().filter(|(wanted, (_, figure))| *wanted && told(*figure));
    columns.extend(others.map(|(_, column)| column));
    columns
}

/// What a GiB costs outside the cipher's functions.
fn beside_cipher(row: &Row) -> String {
    let beside = row.cipher_share.map(|share| 1.0 - share);
    match (row.minsn_per_gib, row.cpu_ns_per_byte) {
        (Some(count), _) => show(beside, |beside| format!("{:.1}", beside * count)),
        (None, Some(ns)) => show(beside, |beside| format!("{:.3}", beside * ns * GIB / 1e9)),
        (None, None) => NONE.to_owned(),
    }
}

/// The cell where there is no figure.
const NONE: &str = "-";

fn show(figure: Option<f64>, write: impl Fn(f64) -> String) -> String {
    figure.map_or_else(|| NONE.to_owned(), write)
}

fn change(row: &Row, earlier: Option<&Row>) -> [String; 2] {
    match (row.ratio, earlier.and_then(|row| row.ratio)) {
        (Some(now), Some(then)) if then > 0.0 => {
            [format!("{then:.2}"), format!("{:+.1} %", (now / then - 1.0) * 100.0)]
        }
        (_, Some(then)) => [format!("{then:.2}"), "-".to_owned()],
        _ => ["-".to_owned(), "-".to_owned()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{machine::Machine, report::Config};

    fn report(rows: Vec<Row>) -> Report {
        Report {
            bench: "send".into(),
            version: "0".into(),
            date: String::new(),
            machine: Machine::this(),
            emulated: false,
            conditions: Vec::new(),
            disagreements: None,
            rows,
        }
    }

    fn row(name: &str, bytes: u64, ratio: f64) -> Row {
        Row {
            name: name.into(),
            config: Config { bytes: Some(bytes), ..Config::default() },
            bytes_per_s: Some(ratio * 1e10),
            ratio: Some(ratio),
            ratio_min: Some(ratio - 0.1),
            ratio_max: Some(ratio + 0.1),
            copied_share: Some(1.0),
            cpu_ns_per_byte: Some(0.1),
            ..Row::default()
        }
    }

    #[test]
    fn figures_stand_in_their_units() {
        let text = draw(&report(vec![row("a", 4_096, 1.5)]), None);
        let line = text.lines().nth(1).unwrap();
        let cells: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(cells, ["a", "15000", "1.50", "1.40-1.60", "-", "0.107", "100", "%"]);
    }

    #[test]
    fn counted_instructions_stand_beside_the_witness() {
        let mut counted = row("a", 4_096, 1.5);
        counted.copied_share_witness = Some(0.004);
        counted.ops_per_s = Some(1e5);
        counted.count_instructions();
        let text = draw(&report(vec![counted]), None);
        let cells = |line: usize| text.lines().nth(line).unwrap().split_whitespace();
        let titles = ["row", "ratio", "min-max", "Minsn/GiB", "kinsn/message", "copied", "witness"];
        assert!(cells(0).eq(titles), "{text}");
        assert!(cells(1).eq(["a", "1.50", "1.40-1.60", "71.6", "10.00", "100", "%", "0", "%"]));
    }

    #[test]
    fn requests_of_a_page_are_counted_and_their_bytes_are_not() {
        let page = |counted: bool| {
            let mut row = row("a", 4_096, 1.5);
            row.config.op = Some(PASS.into());
            (row.ops_per_s, row.lends_per_op) = (Some(1e6), Some(1.0));
            if counted {
                row.count_instructions();
            }
            draw(&Report { bench: SPLICE.into(), ..report(vec![row]) }, None)
        };
        let text = page(false);
        let cells = |line: usize| text.lines().nth(line).unwrap().split_whitespace();
        assert!(
            cells(0).eq(["row", "ratio", "min-max", "requests/s", "lends", "copied"]),
            "{text}"
        );
        assert!(cells(1).eq(["a", "1.50", "1.40-1.60", "1000000", "1.00", "100", "%"]), "{text}");
        let text = page(true);
        assert!(text.contains("kinsn/request") && text.contains(" 1.000 "), "{text}");
        assert!(!text.contains("GiB"), "{text}");
    }

    #[test]
    fn streams_beside_requests_of_a_page_have_their_bytes() {
        let mut page = row("a", 4_096, 1.5);
        page.config.op = Some(PASS.into());
        let mut rows = vec![page, row("b", 65_536, 1.5)];
        rows.iter_mut().for_each(Row::count_instructions);
        let text = draw(&Report { bench: SPLICE.into(), ..report(rows) }, None);
        let cells = |line: usize| text.lines().nth(line).unwrap().split_whitespace();
        let titles = ["row", "bytes", "ratio", "min-max", "Minsn/GiB", "kinsn/request", "copied"];
        assert!(cells(0).eq(titles), "{text}");
        assert!(cells(1).eq(["a", "4k", "1.50", "1.40-1.60", "-", "-", "100", "%"]), "{text}");
        assert!(cells(2).eq(["b", "64k", "1.50", "1.40-1.60", "71.6", "-", "100", "%"]), "{text}");
    }

    #[test]
    fn skipped_rows_stay_with_their_reason() {
        let skipped =
            Row { name: "b".into(), skipped: Some("no such device".into()), ..Row::default() };
        let text = draw(&report(vec![skipped.clone()]), None);
        assert!(text.lines().nth(1).unwrap().starts_with("b"), "{text}");
        assert!(text.ends_with("b was skipped: no such device"), "{text}");
        let other = Row { name: "c".into(), ..skipped.clone() };
        let text = draw(&report(vec![skipped, other]), None);
        assert!(text.ends_with("b and 1 more were skipped: no such device"), "{text}");
    }

    #[test]
    fn sizes_have_a_column_where_they_differ() {
        let text = draw(&report(vec![row("a", 1_024, 1.0), row("a", 65_536, 2.0)]), None);
        assert!(text.contains("1k") && text.contains("64k"), "{text}");
        assert!(!draw(&report(vec![row("a", 1_024, 1.0)]), None).contains("1k"));
    }

    #[test]
    fn an_earlier_report_stands_beside() {
        let earlier = report(vec![row("a", 4_096, 1.0)]);
        let now = report(vec![row("a", 4_096, 1.25), row("new", 4_096, 2.0)]);
        let text = draw(&now, Some(&earlier));
        let cells = |line: usize| -> Vec<String> {
            text.lines().nth(line).unwrap().split_whitespace().map(str::to_owned).collect()
        };
        assert!(cells(1).ends_with(&["1.00".into(), "+25.0".into(), "%".into()]), "{text}");
        assert!(cells(2).ends_with(&["-".into(), "-".into()]), "{text}");
    }
}
