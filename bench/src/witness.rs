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
/// The kernel also moves pages about on its own account, now and then megabytes of them. That only
/// adds, and not twice the same: counting ends when the two least counts are this close.
const CLOSE: f64 = 0.01;
/// How often to count when they never are.
const RUNS: usize = 8;

/// Whether this is a guest of the lab.
pub fn is_at_hand() -> bool {
    std::env::var_os("HANDOFF_GUEST").is_some()
}

/// Fills in the rows of `subjects`, in their order, and tells on stderr what could not be counted.
/// A stop leaves the rest without.
pub fn attest(subjects: &[Subject<'_>], rows: &mut [Row], stop: &AtomicBool) {
    let options = Options { scope: Scope::Machine, paths: false, libc: false };
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
    let mut shares = Vec::with_capacity(RUNS);
    while !settled(&mut shares) {
        let totals = || meter.map(Meter::totals).transpose().map_err(|error| error.to_string());
        let before = totals()?;
        let tally = engine.run(&Slot::new(SLOT, stop))?;
        let after = totals()?;
        if stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        if let (Some(enters), Some(operations)) = (tally.enters, tally.operations) {
            let now = enters as f64 / operations as f64;
            row.enters_per_op = Some(row.enters_per_op.map_or(now, |before| before.min(now)));
        }
        let (Some(before), Some(after)) = (before, after) else { return Ok(()) };
        shares.push(after.since(before).copied_bytes as f64 / tally.bytes as f64);
    }
    row.copied_share_witness = shares.first().copied();
    Ok(())
}

/// Sorts the counts, the least first, and says whether that one stands.
fn settled(shares: &mut [f64]) -> bool {
    shares.sort_by(f64::total_cmp);
    let close = matches!(shares, [least, next, ..] if *next - *least <= CLOSE);
    close || shares.len() == RUNS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_count_stands_once_another_agrees() {
        let mut shares = vec![1.27, 1.0];
        assert!(!settled(&mut shares), "one of two is wrong, and nobody knows which");
        shares.push(1.004);
        assert!(settled(&mut shares));
        assert_eq!(shares[0], 1.0);
        let mut never: Vec<f64> = (0..RUNS).map(|run| run as f64).collect();
        assert!(!settled(&mut never[..RUNS - 1]));
        assert!(settled(&mut never));
    }
}
