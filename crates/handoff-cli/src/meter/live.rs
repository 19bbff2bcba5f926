//! Output while the meter counts: lines, or a view on the terminal that is redrawn in place.
//!
//! Contracts:
//! - the view clears and redraws its lines in place and switches no mode of the terminal, so there is
//!   nothing to put back, however it ends;
//! - it fits the terminal, whatever size that has at the time;
//! - where standard error is no terminal, or one that cannot move its cursor, there are lines instead.

use std::io::{self, Write as _};
use std::time::{Duration, Instant};

use handoff_meter::{COPIED_BY, FOR, Meter, Place, ReadError, Report, Totals, draw, near};
use indicatif::{DecimalBytes, HumanDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};
use rustix::termios::tcgetwinsize;

/// How often, by default.
const EVERY: Duration = Duration::from_secs(1);
/// Rows and columns of a terminal that does not tell.
const USUAL: (usize, usize) = (24, 80);

/// Prints the counts when it is time.
pub(super) struct Live<'a> {
    meter: &'a Meter,
    every: Duration,
    since: Instant,
    /// When it last printed.
    last: Instant,
    show: Show,
}

/// The current counts, and the previous ones.
enum Show {
    Nothing,
    Lines(Totals),
    View(ProgressBar, Report),
}

impl<'a> Live<'a> {
    /// A `view` or lines, `every` so often.
    pub(super) fn new(meter: &'a Meter, view: bool, every: Option<Duration>) -> Self {
        let target = ProgressDrawTarget::stderr();
        let show = match (view, every) {
            (true, _) if !target.is_hidden() => {
                let bar = ProgressBar::with_draw_target(None, target);
                let style = ProgressStyle::with_template("{msg}");
                Show::View(bar.with_style(style.expect("a template")), Report::default())
            }
            (true, _) | (false, Some(_)) => Show::Lines(Totals::default()),
            (false, None) => Show::Nothing,
        };
        let now = Instant::now();
        Self { meter, every: every.unwrap_or(EVERY), since: now, last: now, show }
    }

    /// Checks whether it is time.
    ///
    /// # Errors
    ///
    /// As [`Meter::read`].
    pub(super) fn tell(&mut self) -> Result<(), ReadError> {
        let lately = self.last.elapsed();
        if lately < self.every {
            return Ok(());
        }
        match &mut self.show {
            Show::Nothing => return Ok(()),
            Show::Lines(last) => {
                let totals = self.meter.totals()?;
                // Where nobody reads it, the report still follows.
                let _ = writeln!(io::stderr(), "{}", line(totals, totals.since(*last), lately));
                *last = totals;
            }
            Show::View(bar, last) => {
                let report = self.meter.read()?;
                let (rows, columns) = size();
                let spent = report.since(last);
                bar.set_message(view(&report, &spent, lately, self.since.elapsed(), rows, columns));
                *last = report;
            }
        }
        self.last = Instant::now();
        Ok(())
    }

    /// Clears the view: the next output takes its place.
    pub(super) fn end(self) {
        if let Show::View(bar, _) = self.show {
            bar.finish_and_clear();
        }
    }
}

/// Rows and columns of the terminal.
fn size() -> (usize, usize) {
    let size = tcgetwinsize(io::stderr()).ok();
    let known = size.filter(|size| size.ws_row > 0 && size.ws_col > 0);
    known.map_or(USUAL, |size| (size.ws_row.into(), size.ws_col.into()))
}

/// The counts in all, and lately.
fn line(totals: Totals, lately: Totals, time: Duration) -> String {
    let share = lately.share().map_or_else(|| "-".to_owned(), |share| format!("{share:.4}"));
    format!(
        "copied {} bytes, moved {}; {} copied, {} moved, share {share}",
        totals.copied_bytes,
        totals.moved_bytes,
        rate(lately.copied_bytes, time),
        rate(lately.moved_bytes, time),
    )
}

fn rate(bytes: u64, time: Duration) -> String {
    format!("{:.1} MB/s", bytes as f64 / 1e6 / time.as_secs_f64())
}

/// A screen of so many rows and columns: the counts of all of `time`, and of the last `lately` of it.
fn view(
    all: &Report,
    spent: &Report,
    lately: Duration,
    time: Duration,
    rows: usize,
    columns: usize,
) -> String {
    let seconds = Duration::from_secs(time.as_secs());
    let mut lines = vec![format!("counting for {}; Ctrl-C ends it", HumanDuration(seconds))];
    let mut sum = |what: &str, all: u64, now: u64, more: &str| {
        let (now, all) = (rate(now, lately), DecimalBytes(all).to_string());
        lines.push(format!("{what:<14} {now:>13}  {all:>10}{more}"));
    };
    let share = |report: &Report| {
        report.share.map_or_else(|| "-".to_owned(), |share| format!("{share:.4}"))
    };
    let shares = format!("  share {}, in all {}", share(spent), share(all));
    sum("moved", all.totals.moved_bytes, spent.totals.moved_bytes, "");
    sum("copied", all.totals.copied_bytes, spent.totals.copied_bytes, &shares);
    if all.totals.unattributed_bytes > 0 {
        let (all, now) = (all.totals.unattributed_bytes, spent.totals.unattributed_bytes);
        sum("not attributed", all, now, "");
    }
    if let (Some(all), Some(now)) = (all.totals.libc_bytes, spent.totals.libc_bytes) {
        sum("in user space", all, now, "  by the C library");
    }
    // Below are the titles, and the cursor's own line.
    let room = rows.saturating_sub(lines.len() + 2);
    if room > 0 && !all.places.is_empty() {
        let spent = near(&spent.places);
        let row = |place: &Place| {
            let same = |one: &&Place| one.function == place.function && one.path == place.path;
            let now = spent.iter().find(same).map_or(0, |place| place.bytes);
            let all = DecimalBytes(place.bytes).to_string();
            [rate(now, lately), all, place.function.clone(), place.callers()]
        };
        let places = near(&all.places).iter().take(room).map(row).collect();
        let table = draw(["lately", "in all", COPIED_BY, FOR], places);
        lines.extend(table.lines().map(str::to_owned));
    }
    let cut = |line: &String| line.chars().take(columns).collect::<String>();
    lines.iter().take(rows).map(cut).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(copied_bytes: u64, moved_bytes: u64) -> Totals {
        Totals { copied_bytes, moved_bytes, ..Totals::default() }
    }

    fn report(copied: u64, places: &[(&str, u64)]) -> Report {
        let totals = totals(copied, 2 * copied);
        let place = |&(function, bytes): &(&str, u64)| Place {
            function: function.into(),
            path: ["vfs_read", "ksys_read"].map(str::to_owned).to_vec(),
            bytes,
            calls: 1,
        };
        Report {
            totals,
            share: totals.share(),
            places: places.iter().map(place).collect(),
            ..Report::default()
        }
    }

    #[test]
    fn a_line_has_what_it_is_in_all_and_lately() {
        let (all, lately) = (totals(3_000_000, 9_000_000), totals(1_000_000, 4_000_000));
        let line = line(all, lately, Duration::from_millis(500));
        assert_eq!(
            line,
            "copied 3000000 bytes, moved 9000000; 2.0 MB/s copied, 8.0 MB/s moved, share 0.2500"
        );
        assert!(super::line(all, totals(0, 0), Duration::from_secs(1)).ends_with("share -"));
    }

    #[test]
    fn a_view_has_rates_totals_shares_and_places() {
        let all = report(30_000_000, &[("_copy_to_iter", 20_000_000), ("copy", 10_000_000)]);
        let spent = report(6_000_000, &[("copy", 6_000_000)]);
        let time = Duration::from_secs(2);
        let text = view(&all, &spent, time, Duration::from_secs(75), 24, 200);
        let words = |line: usize| -> Vec<&str> {
            text.lines().nth(line).unwrap_or_default().split_whitespace().collect()
        };
        assert_eq!(words(1), ["moved", "6.0", "MB/s", "60.00", "MB"], "{text}");
        assert!(words(2).starts_with(&["copied", "3.0", "MB/s", "30.00", "MB"]), "{text}");
        assert!(text.contains("share 0.5000, in all 0.5000"), "{text}");
        let row = ["0.0", "MB/s", "20.00", "MB", "_copy_to_iter", "vfs_read", "<", "ksys_read"];
        assert_eq!(words(4), row, "{text}");
        assert!(words(5).starts_with(&["3.0", "MB/s", "10.00", "MB", "copy"]), "{text}");
    }

    #[test]
    fn a_view_fits_the_terminal() {
        let places: Vec<_> = (0..40).map(|_| ("a_function_of_some_length", 1 << 20)).collect();
        let all = report(40 << 20, &places);
        for (rows, columns) in [(24, 80), (6, 20), (2, 5), (1, 1)] {
            let second = Duration::from_secs(1);
            let text = view(&all, &all, second, second, rows, columns);
            assert!(text.lines().count() <= rows, "{rows} rows: {text}");
            assert!(text.lines().all(|line| line.chars().count() <= columns), "{text}");
        }
    }
}
