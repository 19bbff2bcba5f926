//! The tables in `docs/figures` match the runs in `docs/figures/data`.
//!
//! `<!-- figures: NAME.json -->` stands above such a table, `<!-- figures: end -->` below it. After the
//! file's name you may list, separated by commas, the beginnings of the rows' names for the table.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use handoff_bench::report::Report;
use handoff_bench::table::{Sheet, sheet};

/// The variable that makes the test rewrite the tables, if it is set.
const UPDATE: &str = "UPDATE_FIGURES";
const BEGIN: &str = "<!-- figures: ";
const BEGIN_ENDS: &str = " -->\n";
const END: &str = "<!-- figures: end -->";

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/figures")
}

/// The date and the conditions of a run, which name the machine, in one line; and the run's rows as a table.
fn table(report: &Report, of_rows: &str) -> String {
    let date = report.date.split('T').next().unwrap_or_default();
    let mut text = format!("\n{date}: {}.\n\n", report.conditions.join("; "));
    let Sheet { titles, rows, footnotes } = sheet(report);
    let _ = writeln!(text, "| {} |", titles.join(" | "));
    let _ = writeln!(text, "|---|{}", "---:|".repeat(titles.len() - 1));
    let beginnings: Vec<&str> = of_rows.split(',').map(str::trim).collect();
    for cells in rows.iter().filter(|cells| beginnings.iter().any(|it| cells[0].starts_with(it))) {
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    }
    for footnote in footnotes {
        let _ = write!(text, "\n{footnote}.\n");
    }
    text + "\n"
}

/// The page with its tables made anew. `read` returns the run of a name.
fn with_tables(page: &str, read: impl Fn(&str) -> Report) -> String {
    let mut parts = page.split(BEGIN);
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        if part.starts_with("end") {
            text += BEGIN;
            text += part;
            continue;
        }
        let (what, _) = part.split_once(BEGIN_ENDS).expect("a run is named in a line of its own");
        let (name, of_rows) = what.split_once(' ').unwrap_or((what, ""));
        text += &format!("{BEGIN}{what}{BEGIN_ENDS}{}", table(&read(name), of_rows));
    }
    text
}

fn read(name: &str) -> Report {
    let text = fs::read_to_string(directory().join("data").join(name))
        .unwrap_or_else(|error| panic!("docs/figures/data/{name}: {error}"));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("docs/figures/data/{name}: {error}"))
}

#[test]
fn pages_and_data_agree() {
    let entries =
        fs::read_dir(directory()).expect("the pages").map(|entry| entry.expect("one").path());
    let mut pages = String::new();
    for page in entries.filter(|path| path.extension().is_some_and(|ending| ending == "md")) {
        let text = fs::read_to_string(&page).expect("a page");
        let anew = with_tables(&text, read);
        if std::env::var_os(UPDATE).is_some() {
            fs::write(&page, &anew).expect("written");
        } else {
            assert!(text == anew, "{}: run this with {UPDATE}=1", page.display());
        }
        pages += &anew;
    }
    let data = fs::read_dir(directory().join("data")).into_iter().flatten();
    for path in data.map(|entry| entry.expect("an entry").path()) {
        let name = path.file_name().expect("a name").to_str().expect("text");
        let used = pages.contains(&format!("{BEGIN}{name}"));
        assert!(
            used || !name.ends_with(".json"),
            "no page has a table of docs/figures/data/{name}"
        );
        let text = fs::read_to_string(&path).expect("a run");
        assert_eq!(text.lines().count(), read(name).rows.len() + 2, "{name}: a line for each row");
    }
}

#[test]
fn a_table_is_made_between_its_lines() {
    let run = || -> Report {
        let row = |name, ratio| {
            serde_json::json!({ "name": name, "engine": name, "config": {}, "baseline": false,
                "peer": false, "ratio": ratio, "copied_share": 0.0 })
        };
        let machine = serde_json::json!({ "cpu": "a", "cores": 2, "kernel": "6.1", "virtualisation": "none" });
        let text = serde_json::json!({ "bench": "send", "version": "0", "date": "2026-01-01T00:00:00Z",
            "machine": machine, "emulated": false, "conditions": ["once", "on a"],
            "rows": [row("copy", 1.0), row("uring-zc", 2.0)] });
        serde_json::from_value(text).expect("a report")
    };
    let page = format!(
        "before\n{BEGIN}x.json{BEGIN_ENDS}old\n{END}\nbetween\n{BEGIN}x.json uring{BEGIN_ENDS}{END}\n"
    );
    let anew = with_tables(&page, |_| run());
    assert!(anew.starts_with("before\n") && anew.contains("\nbetween\n") && !anew.contains("old"));
    assert!(anew.contains("\n2026-01-01: once; on a.\n"), "{anew}");
    assert_eq!(anew.matches("| uring-zc |").count(), 2, "{anew}");
    assert_eq!(anew.matches("| copy |").count(), 1, "{anew}");
    assert_eq!(anew.matches(END).count(), 2, "{anew}");
    assert_eq!(with_tables(&anew, |_| run()), anew);
}
