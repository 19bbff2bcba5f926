//! Adds the results of long runs to the figures, as the last rows of the last table in the file.

use std::fs::OpenOptions;
use std::io::Write;
use std::process::Command;
use std::thread;
use std::time::{Duration, SystemTime};

pub(super) const FIGURES: &str = "docs/figures/long-runs.md";

/// Adds one row: date, commit, machine, time it took, result.
pub(super) fn soak(result: &str, took: Duration) -> Result<(), String> {
    let row = row(
        &humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        &commit(),
        &format!(
            "{} processors, Linux {}",
            thread::available_parallelism().map_or(1, usize::from),
            rustix::system::uname().release().to_string_lossy(),
        ),
        took,
        result,
    );
    OpenOptions::new()
        .append(true)
        .open(FIGURES)
        .and_then(|mut file| file.write_all(row.as_bytes()))
        .map_err(|error| format!("{FIGURES}: {error}"))
}

fn row(date: &str, commit: &str, machine: &str, took: Duration, result: &str) -> String {
    let minutes = took.as_secs().div_ceil(60);
    format!("| {date} | {commit} | {machine} | {minutes} min | {result} |\n")
}

/// The commit of the tree, as far as it is known.
fn commit() -> String {
    let described = Command::new("git").args(["describe", "--always", "--dirty"]).output();
    match described {
        Ok(output) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).trim().to_owned()
        }
        _ => "unknown".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_columns_of_the_table() {
        let figures = include_str!("../../../docs/figures/long-runs.md");
        let header = figures.lines().rfind(|line| line.starts_with("| date")).expect("a table");
        let row = row("now", "abc", "a machine", Duration::from_secs(61), "1 passed");
        assert_eq!(row.matches('|').count(), header.matches('|').count());
        assert!(row.contains("| 2 min |") && row.ends_with("|\n"));
        // An addition at the end of the file belongs to the table.
        let last = figures.lines().next_back().expect("a line");
        assert!(last.starts_with('|') && figures.ends_with('\n'));
    }
}
