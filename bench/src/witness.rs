//! The costs of each row besides time, seen by others than its engine: the bytes that the kernel's CPU copied
//! while the engine worked, by the copy meter, and system calls.
//!
//! Contracts:
//!
//! 1. The witness works apart from the timed rows, since counting costs, and on engines of its own. The meter
//!    is attached only while no clock runs.
//! 2. The meter counts for this process and all that it starts, and whatever the kernel's own threads copy
//!    meanwhile: those threads work for rows, and for other programs, too.
//! 3. A row that cannot be counted has no such figure, and the reason is given. A program that tells its own
//!    bytes has no such figure either.

use std::{sync::atomic::AtomicBool, thread::sleep, time::Duration};

use handoff_command::{Failure, Stop};
use handoff_meter::{Meter, Options, Scope, Totals, Unavailable};
use handoff_sys::hangup;

use crate::{
    measure::{Engine, Slot, Subject, Tally},
    report::{CopiedAt, Disagreement, Row, disagree},
};

/// The length of a slot: long enough for some megabytes, beside which the few bytes for reading the meter do
/// not show.
const SLOT: Duration = Duration::from_millis(10);
/// Counting ends when the two smallest counts are this close. Kernel threads copy for other programs, too: that
/// only adds to a count, and never the same twice.
const CLOSE: f64 = 0.01;
/// The most counts if they never are that close. Each comes a pause later than the one before.
const RUNS: usize = 8;
const PAUSE: Duration = Duration::from_millis(20);

/// Whether a witness is possible: attaches the meter and detaches it.
///
/// # Errors
///
/// [`Failure::NotPossible`] with the meter's own reason.
pub fn try_out() -> Result<(), Failure> {
    attach().map(drop)
}

fn attach() -> Result<Meter, Failure> {
    let scope = Scope::Tree(std::process::id());
    Meter::attach_with(Options { scope, paths: true, libc: false }).map_err(|error: Unavailable| {
        Failure::NotPossible(format!("{error}; without --meter there is no such column"))
    })
}

/// Fills in the rows of `subjects`, in order, and says on stderr what could not be counted. It counts copied
/// bytes only with the `meter`.
///
/// # Errors
///
/// [`Failure::NotPossible`] if the meter is not available, [`Failure::Stopped`].
pub fn attest(
    subjects: &[Subject<'_>],
    rows: &mut [Row],
    meter: bool,
    stop: &Stop,
) -> Result<(), Failure> {
    let meter = if meter { Some(attach()?) } else { None };
    for (subject, row) in subjects.iter().zip(rows).filter(|(_, row)| row.skipped.is_none()) {
        let attested = attest_row(subject, row, meter.as_ref(), stop.flag());
        stop.check()?;
        if let Err(reason) = attested {
            hangup::say(format_args!(
                "handoff: no witness beside the row {}: {reason}",
                subject.name
            ));
        }
    }
    Ok(())
}

fn attest_row(
    subject: &Subject<'_>,
    row: &mut Row,
    meter: Option<&Meter>,
    stop: &AtomicBool,
) -> Result<(), String> {
    let mut engine = (subject.make)()?;
    if !engine.counts_bytes() {
        return Ok(());
    }
    // The first slot does not count: the first touch of memory makes it slow, and queues long.
    engine.run(&Slot::new(SLOT, stop))?;
    engine.begin_witness()?;
    let mut shares = Vec::with_capacity(RUNS);
    while !settled(&mut shares) {
        if shares.len() > 1 {
            sleep(PAUSE * (shares.len() - 1) as u32);
        }
        let totals = || meter.map(Meter::totals).transpose().map_err(|error| error.to_string());
        let before = totals()?;
        let tally = work(&mut *engine, stop)?;
        let after = totals()?;
        count_calls(row, &tally);
        let (Some(before), Some(after)) = (before, after) else { return Ok(()) };
        shares.push(copied(after.since(before)) as f64 / tally.bytes as f64);
    }
    row.copied_share_witness = shares.first().copied();
    if let (Some(meter), Some(reported), Some(&witness)) = (meter, row.copied_share, shares.first())
    {
        let implied = engine.implied(reported);
        if disagree(implied, witness, row.config.bytes) {
            row.disagreement = Some(Disagreement {
                row: row.name.clone(),
                bytes: row.config.bytes,
                reported,
                implied,
                witness,
                places: places(&mut *engine, meter, stop)?,
            });
        }
    }
    Ok(())
}

fn work(engine: &mut dyn Engine, stop: &AtomicBool) -> Result<Tally, String> {
    // On a busy machine a slot may be over before its first message begins, so each slot is twice as long as
    // the one before.
    for doubled in 0..RUNS as u32 {
        let tally = engine.run(&Slot::new(SLOT * (1 << doubled), stop))?;
        if tally.bytes > 0 {
            return Ok(tally);
        }
    }
    Err("nothing was moved in its slots".to_owned())
}

fn count_calls(row: &mut Row, tally: &Tally) {
    if let (Some(enters), Some(operations)) = (tally.enters, tally.operations) {
        let now = enters as f64 / operations as f64;
        row.enters_per_op = Some(row.enters_per_op.map_or(now, |before| before.min(now)));
    }
}

/// The bytes copied by this process, by those that it has started, and by kernel threads.
fn copied(totals: Totals) -> u64 {
    totals.copied_bytes + totals.unattributed_bytes
}

/// Where an engine's bytes are copied, in one more slot.
fn places(
    engine: &mut dyn Engine,
    meter: &Meter,
    stop: &AtomicBool,
) -> Result<Vec<CopiedAt>, String> {
    let read = || meter.read().map_err(|error| error.to_string());
    let before = read()?;
    let tally = work(engine, stop)?;
    Ok(CopiedAt::of(&read()?.since(&before), tally.bytes))
}

/// Sorts the counts, smallest first. Returns whether the smallest count stands.
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
