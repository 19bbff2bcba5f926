//! What each row costs besides time, seen by others than its engine: bytes that the kernel's CPU
//! copied while it worked, by the copy meter, and system calls.
//!
//! Contracts:
//!
//! 1. It runs apart from the timed rows, since counting costs, and on engines of its own.
//! 2. The meter counts the whole machine, so it is for guests, where nothing else runs.
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

/// Fills in the rows of `subjects`, in their order, and tells on stderr what could not be counted.
/// A stop leaves the rest without.
pub fn attest(subjects: &[Subject<'_>], rows: &mut [Row], stop: &AtomicBool) {
    let options = Options { scope: Scope::Machine, paths: false };
    let meter = is_at_hand().then(|| Meter::attach_with(options));
    let meter = meter.and_then(|attached| {
        let tell = |reason| eprintln!("handoff: no copy witness beside these rows: {reason}");
        attached.map_err(tell).ok()
    });
    for (subject, row) in subjects.iter().zip(rows).filter(|(_, row)| row.skipped.is_none()) {
        if let Err(reason) = attest_row(subject, row, meter.as_ref(), stop) {
            eprintln!("handoff: no witness beside the row {}: {reason}", subject.name);
        }
        if stop.load(Ordering::Relaxed) {
            return;
        }
    }
}

fn attest_row(
    subject: &Subject<'_>,
    row: &mut Row,
    meter: Option<&Meter>,
    stop: &AtomicBool,
) -> Result<(), String> {
    let mut engine = (subject.make)()?;
    // Memory that is touched for the first time makes it slow, and queues long.
    engine.run(&Slot::new(SLOT, stop))?;
    engine.begin_witness()?;
    let least = |before: Option<f64>, now: f64| Some(before.map_or(now, |before| before.min(now)));
    for _ in 0..RUNS {
        let totals = || meter.map(Meter::totals).transpose().map_err(|error| error.to_string());
        let before = totals()?;
        let tally = engine.run(&Slot::new(SLOT, stop))?;
        let after = totals()?;
        if stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        if let (Some(before), Some(after)) = (before, after) {
            let share = after.since(before).copied_bytes as f64 / tally.bytes as f64;
            row.copied_share_witness = least(row.copied_share_witness, share);
        }
        if let (Some(enters), Some(operations)) = (tally.enters, tally.operations) {
            row.enters_per_op = least(row.enters_per_op, enters as f64 / operations as f64);
        }
    }
    Ok(())
}
