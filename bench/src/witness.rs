//! The copy meter beside the kernel's own reports: what it saw copied while each row worked.
//!
//! Contracts:
//!
//! 1. It runs apart from the timed rows, since counting costs, and on engines of its own.
//! 2. It counts the whole machine, so it is for guests, where nothing else runs.
//! 3. Where the kernel refuses tracing, rows have no such figure and the reason is told.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use handoff_meter::{Meter, Options, Scope};

use crate::{
    measure::{Slot, Subject},
    report::Row,
};

/// Long enough for some megabytes, beside which the few bytes that the meter's own reading costs do
/// not show.
const SLOT: Duration = Duration::from_millis(10);
/// The lesser of two counts: now and then the kernel moves pages about on its own account.
const RUNS: u32 = 2;

/// Whether this is a guest of the lab.
pub fn is_at_hand() -> bool {
    std::env::var_os("HANDOFF_GUEST").is_some()
}

/// Fills in the rows of `subjects`, in their order. A stop leaves the rest without.
///
/// # Errors
///
/// Why nothing can be counted, in one line.
pub fn attest(subjects: &[Subject<'_>], rows: &mut [Row], stop: &AtomicBool) -> Result<(), String> {
    let options = Options { scope: Scope::Machine, paths: false };
    let meter = Meter::attach_with(options).map_err(|unavailable| unavailable.to_string())?;
    for (subject, row) in subjects.iter().zip(rows) {
        if subject.peer || row.skipped.is_some() {
            continue;
        }
        let mut engine = (subject.make)()?;
        for _ in 0..RUNS {
            let before = meter.totals().map_err(|error| error.to_string())?;
            let tally = engine.run(&Slot::new(SLOT, stop))?;
            let spent = meter.totals().map_err(|error| error.to_string())?.since(before);
            if stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            let share = spent.copied_bytes as f64 / tally.bytes as f64;
            row.copied_share_witness =
                Some(row.copied_share_witness.map_or(share, |before| before.min(share)));
        }
    }
    Ok(())
}
