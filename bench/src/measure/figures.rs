//! The figures of one slot.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use super::engine::{Cpu, Engine, Reaped, Slot, Time};
use crate::{processor::kept_waiting, report::Row};

/// The length from which a slot is not tried again if it moved nothing.
const LONG: Duration = Duration::from_secs(1);

/// Runs an engine for one slot. Returns its time, and its figures as a row has them; `None` if it moved
/// nothing. On a busy machine a short slot may be over before its first operation begins, so the next try is
/// twice as long.
///
/// # Errors
///
/// The errors of [`Engine::run`].
pub(super) fn timed(
    engine: &mut dyn Engine,
    mut length: Duration,
    stop: &AtomicBool,
    far_end_cpu: &dyn Fn() -> Duration,
) -> Result<Option<(Time, Row)>, String> {
    loop {
        let figures = once(engine, length, stop, far_end_cpu)?;
        if figures.is_some() || length >= LONG || stop.load(Ordering::Relaxed) {
            return Ok(figures);
        }
        length *= 2;
    }
}

fn once(
    engine: &mut dyn Engine,
    length: Duration,
    stop: &AtomicBool,
    far_end_cpu: &dyn Fn() -> Duration,
) -> Result<Option<(Time, Row)>, String> {
    let cpu_before = process_cpu().saturating_sub(far_end_cpu());
    let (begin, waited) = (Instant::now(), kept_waiting());
    let tally = engine.run(&Slot::new(length, stop))?;
    let time = tally.time.unwrap_or_else(|| Time {
        elapsed: begin.elapsed(),
        kept_waiting: kept_waiting().saturating_sub(waited),
    });
    let elapsed = time.counted();
    let cpu = process_cpu().saturating_sub(far_end_cpu()).saturating_sub(cpu_before);
    if tally.bytes == 0 || elapsed.is_zero() {
        return Ok(None);
    }
    let bytes = tally.bytes as f64;
    let operations = tally.operations.filter(|&count| count > 0).map(|count| count as f64);
    let cpu_ns = match tally.cpu {
        Cpu::ThisProcess => Some(cpu.as_nanos() as f64),
        Cpu::Unknown => None,
        Cpu::Known(time) => Some(time.as_nanos() as f64),
    };
    let per_operation = |sum: Option<f64>| sum.zip(operations).map(|(sum, count)| sum / count);
    let reaped = tally.reaped.filter(|reaped| reaped.completions > 0);
    let per_completion =
        |sum: fn(&Reaped) -> f64| reaped.map(|it| sum(&it) / it.completions as f64);
    let figures = Row {
        bytes_per_s: Some(bytes / elapsed.as_secs_f64()),
        ops_per_s: operations.map(|count| count / elapsed.as_secs_f64()),
        cpu_ns_per_byte: cpu_ns.map(|ns| ns / bytes),
        cpu_ns_per_op: per_operation(cpu_ns),
        cpu_ns_per_op_all: per_operation(tally.cpu_with_load.map(|time| time.as_nanos() as f64)),
        cpu_share: tally.cpu_share,
        lends_per_op: per_operation(tally.lends.map(|count| count as f64)),
        switches_per_op: per_operation(tally.switches.map(|count| count as f64)),
        copied_share: tally.copied.map(|copied| copied as f64 / bytes),
        ciphered_share: tally.ciphered.map(|ciphered| ciphered as f64 / bytes),
        simulated_dma_share: tally.simulated_dma.map(|moved| moved as f64 / bytes),
        busy_share: tally.busy.map(|it| it.busy),
        softirq_share: tally.busy.map(|it| it.softirq),
        latency_us: tally.latency,
        user_ns_per_op: per_operation(tally.user.map(|time| time.as_nanos() as f64)),
        reap_calls: per_completion(|reaped| reaped.calls as f64),
        reap_ns: per_completion(|reaped| reaped.time.as_nanos() as f64),
        ..Row::default()
    };
    Ok(Some((time, figures)))
}

fn process_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}
