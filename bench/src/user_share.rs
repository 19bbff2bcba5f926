//! The share of a row's work outside the kernel, by samples of where the measuring thread is. A NIC's threads
//! that count for the row belong to the kernel.
//!
use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use handoff_sys::hangup;

use crate::{
    measure::{Cpu, Engine, Slot, Subject},
    report::Row,
    samples::{PERIOD, Samples, Whose},
};

const SLOT: Duration = Duration::from_millis(200);

/// Fills in the rows of `subjects`, in order, and says on stderr why some have no such figure.
pub fn attest(subjects: &[Subject<'_>], rows: &mut [Row], stop: &AtomicBool) {
    for (subject, row) in subjects.iter().zip(rows) {
        // There are samples of only one thread.
        let threads = subject.config.rings.unwrap_or(1);
        if row.skipped.is_some() || subject.peer || threads > 1 || stop.load(Ordering::Relaxed) {
            continue;
        }
        match (subject.make)().and_then(|mut engine| of(&mut *engine, stop)) {
            Ok(share) => row.user_share = share,
            Err(reason) => {
                hangup::say(format_args!(
                    "handoff: no user share beside the row {}: {reason}",
                    row.name
                ));
            }
        }
    }
}

/// The share in one slot; `None` without a sample.
fn of(engine: &mut dyn Engine, stop: &AtomicBool) -> Result<Option<f64>, String> {
    engine.run(&Slot::new(SLOT / 20, stop))?;
    let samples = Samples::begin(Whose::CallingThread);
    let samples = samples.map_err(|error| format!("perf_event_open: {error}"))?;
    let tally = engine.run(&Slot::new(SLOT, stop))?;
    let samples = samples.taken();
    let user = samples.iter().filter(|sample| sample.user).count() as u64;
    let all = samples.len() as u64;
    // Other threads that count have no samples, so their CPU time makes up for them.
    let all = match tally.cpu {
        Cpu::Known(cpu) => all.max(cpu.as_nanos() as u64 / PERIOD),
        Cpu::ThisProcess | Cpu::Unknown => all,
    };
    Ok((all > 0).then(|| user as f64 / all as f64))
}

#[cfg(test)]
mod tests {
    use std::{fs::File, io};

    use super::*;
    use crate::measure::Tally;

    /// An engine that works outside the kernel, or inside.
    struct Work {
        inside: bool,
    }

    impl Engine for Work {
        fn run(&mut self, slot: &Slot<'_>) -> Result<Tally, String> {
            let mut space = vec![0; 1 << 20];
            let mut zero = File::open("/dev/zero").map_err(|error| error.to_string())?;
            while !slot.is_over() {
                if self.inside {
                    io::Read::read_exact(&mut zero, &mut space)
                        .map_err(|error| error.to_string())?;
                } else {
                    std::hint::black_box(
                        (0..10_000u64).fold(0, |a, b| std::hint::black_box(a ^ b)),
                    );
                }
            }
            Ok(Tally::default())
        }
    }

    #[test]
    fn needs_root_work_is_told_apart_by_where_it_is_done() {
        let stop = AtomicBool::new(false);
        for inside in [false, true] {
            match of(&mut Work { inside }, &stop) {
                Ok(share) => {
                    let share = share.unwrap();
                    assert!((share < 0.5) == inside, "inside {inside}: {share}");
                }
                Err(reason) => return println!("HANDOFF-SKIP user_share: {reason}"),
            }
        }
    }
}
