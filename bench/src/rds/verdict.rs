//! What the rows show about lending instead of copying, and about small messages.

use std::fmt::Write as _;

use super::{KERNEL, OWN, TCP};
use crate::{
    network::testbed::Joint,
    report::{Report, Row},
};

const MIB: u64 = 1 << 20;
const SMALL: u64 = 64;

/// The lines below the table.
pub(super) fn verdict(report: &Report) -> String {
    let mut text = String::new();
    for engine in [OWN, KERNEL] {
        let pair = |op: &str| {
            Some((row(report, op, MIB, engine, "lent")?, row(report, op, MIB, engine, "copy")?))
        };
        // Veth devices always copy.
        let on_wire = |row: &Row| row.config.target.as_deref() == Some(Joint::Wire.name());
        if let Some((lent, copied)) = pair("ask").filter(|(lent, _)| on_wire(lent)) {
            let time = |row: &Row| Some(latency(row)?.without_simulated_dma());
            let whole = |row: &Row| Some(latency(row)?.p50);
            if let (Some(ratio), Some(all)) = (of(lent, copied, time), of(lent, copied, whole)) {
                let _ = writeln!(
                    text,
                    "{engine}, 1 MiB and back: lent takes {ratio:.2} of copy's time, {all:.2} with \
                     the NIC's engine; to reach: 0.6, goal 0.45",
                );
            }
        }
        if let Some((lent, copied)) = pair("stream").filter(|(lent, _)| on_wire(lent))
            && let Some(ratio) = of(lent, copied, |row| row.cpu_ns_per_byte.or(row.minsn_per_gib))
        {
            let _ = writeln!(
                text,
                "{engine}, 1 MiB: lent takes {ratio:.2} of copy's CPU at the sender; to reach: 0.6",
            );
        }
    }
    let small = |engine, way| row(report, "stream", SMALL, engine, way);
    if let (Some(own), Some(tcp)) = (small(OWN, "copy"), small(TCP, "tcp"))
        && let (Some(user), Some(ratio)) = (own.user_ns_per_op, of(own, tcp, |row| row.ops_per_s))
        && !report.emulated
    {
        let _ = writeln!(
            text,
            "{OWN}, 64 bytes: {:.2} us outside the kernel, to reach: 1.5; {ratio:.2} of TCP's messages a \
             second, to reach: 1",
            user / 1e3
        );
    }
    if text.is_empty() { text } else { format!("\n{}", text.trim_end()) }
}

fn latency(row: &Row) -> Option<crate::report::Latency> {
    row.latency_us.or(row.latency_kinsn)
}

/// The quotient of two rows' figures.
fn of(one: &Row, other: &Row, figure: impl Fn(&Row) -> Option<f64>) -> Option<f64> {
    Some(figure(one)? / figure(other)?)
}

/// The row with one socket.
fn row<'a>(report: &'a Report, op: &str, bytes: u64, engine: &str, way: &str) -> Option<&'a Row> {
    report.rows.iter().find(|row| {
        let config = &row.config;
        (config.op.as_deref(), config.bytes, config.sockets) == (Some(op), Some(bytes), Some(1))
            && row.engine == engine
            && row.name.contains(way)
    })
}
