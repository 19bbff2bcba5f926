//! `handoff blk list` and `show`.

use std::fmt::Write as _;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use handoff_block::state::{Bucket, Counters, DIRECTORY, Directory, Record};
use handoff_block::{Control, DeviceState, Found, Kind};
use handoff_command::quantity::format_size;
use handoff_command::{Context, Failure, output};
use handoff_meter::{Meter, Options, Scope, Totals};
use serde_json::{Value, json};

use super::failure::{device, failure};
use super::pressure;

const LIST_EXAMPLES: &str = "\
Examples:
  handoff blk list
  handoff blk list --json";

/// Arguments of `handoff blk list`.
#[derive(Debug, clap::Args)]
#[command(after_help = LIST_EXAMPLES)]
pub struct ListArgs {}

const SHOW_EXAMPLES: &str = "\
Times are from a request's arrival at the engine to the first result of a file, and to the answer.
What was copied is what the copy meter sees of the server while --witness counts; without, it is
unknown. The exit code is 1 if a mirror lacks a leg.

Examples:
  handoff blk show 0
  handoff blk show 0 --witness 5s
  handoff blk show 0 --json";

/// Arguments of `handoff blk show`.
#[derive(Debug, clap::Args)]
#[command(after_help = SHOW_EXAMPLES)]
pub struct ShowArgs {
    /// Number of the device
    pub id: u32,
    /// Count what the kernel copies for the server, for this time, such as 5s
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub witness: Option<Duration>,
}

/// Numbers of the devices with a state.
pub(super) fn ours() -> Vec<u32> {
    let entries = fs::read_dir(DIRECTORY).into_iter().flatten();
    let mut ids: Vec<u32> =
        entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    ids.sort_unstable();
    ids
}

/// Mirrors that are there: the device, and which legs it lacks, if any.
pub(crate) fn mirrors() -> Vec<(u32, Option<String>)> {
    let mirror = |id: u32| {
        let directory = Directory::of(id);
        let record = directory.read().ok().filter(|it| it.spec.target == Kind::Mirror)?;
        let counters = directory.counters(record.spec.queues, record.spec.depth).ok()?;
        Some((id, lacks(&counters)))
    };
    ours().into_iter().filter_map(mirror).collect()
}

/// The legs that a mirror lacks.
fn lacks(counters: &Counters) -> Option<String> {
    let legs: Vec<_> = counters.failed_legs.iter().map(u32::to_string).collect();
    let word = if legs.len() == 1 { "leg" } else { "legs" };
    (!legs.is_empty()).then(|| format!("{word} {}", legs.join(", ")))
}

fn state(found: Option<Found>) -> &'static str {
    match found.map(|found| found.state) {
        Some(DeviceState::Live) => "live",
        Some(DeviceState::Quiesced) => "waits for a server",
        Some(DeviceState::FailIo) => "fails without a server",
        Some(DeviceState::Dead) => "dead",
        None => "gone",
    }
}

pub(super) fn list(_args: &ListArgs, context: &Context) -> Result<(), Failure> {
    let mut control = Control::open().map_err(failure)?;
    let mut rows = Vec::new();
    let mut text = String::new();
    for id in ours() {
        let Ok(record) = Directory::of(id).read() else { continue };
        let found = control.find(id).map_err(failure)?;
        let target = record.spec.target;
        let _ = writeln!(
            text,
            "/dev/ublkb{id}  {}  {}  engine {}  {}",
            target,
            format_size(record.size),
            record.engine,
            state(found),
        );
        rows.push(json!({
            "id": id,
            "device": format!("/dev/ublkb{id}"),
            "target": target,
            "size": record.size,
            "engine": record.engine,
            "state": found.map(|found| found.state),
            "server": found.and_then(|found| found.server),
        }));
    }
    if context.json { output::json(&rows) } else { output::text(&text) }
}

pub(super) fn show(args: &ShowArgs, context: &Context) -> Result<(), Failure> {
    let id = args.id;
    let mut control = Control::open().map_err(failure)?;
    let found = device(&mut control, id)?;
    let directory = Directory::of(id);
    let record = directory.read().map_err(|error| {
        Failure::usage(format!("device {id} was not made by this command: {error}"))
    })?;
    let counters = directory
        .counters(found.queues, found.depth)
        .map_err(|error| Failure::failed(format!("the state of device {id}: {error}")))?;
    let witnessed = args.witness.map(|time| witness(&found, time, context)).transpose()?;
    if context.json {
        output::json(&as_json(&found, &record, &counters, witnessed))?;
    } else {
        output::text(&as_text(&found, &record, &counters, witnessed))?;
    }
    match counters.failed_legs.is_empty() {
        true => Ok(()),
        false => Err(Failure::Ended(1)),
    }
}

/// What the kernel copies for the server, and what its files move.
fn witness(found: &Found, time: Duration, context: &Context) -> Result<Totals, Failure> {
    let server = found
        .server
        .ok_or_else(|| Failure::failed(format!("device {} has no server to watch", found.id)))?;
    let options = Options { scope: Scope::Tree(server), paths: false, libc: false };
    let meter = Meter::attach_with(options).map_err(Failure::not_possible)?;
    let before = meter.totals().map_err(Failure::failed)?;
    let end = Instant::now() + time;
    while Instant::now() < end {
        context.stop.check()?;
        thread::sleep(Duration::from_millis(20).min(time));
    }
    Ok(meter.totals().map_err(Failure::failed)?.since(before))
}

fn as_json(
    found: &Found,
    record: &Record,
    counters: &Counters,
    witnessed: Option<Totals>,
) -> Value {
    json!({
        "id": found.id,
        "device": format!("/dev/ublkb{}", found.id),
        "state": found.state,
        "server": found.server,
        "target": record.spec.target,
        "files": record.spec.files,
        "policy": record.spec.policy,
        "size": record.size,
        "block_size": record.spec.block_size,
        "chunk": record.spec.chunk,
        "direct": record.spec.direct,
        "read_only": record.spec.read_only,
        "engine": record.engine,
        "passed_over": record.passed_over,
        "queues": found.queues,
        "depth": found.depth,
        "max_request": found.max_request,
        "memory": record.memory,
        "no_swap": pressure::no_swap(record),
        "mirror": record.mirror,
        "failed_legs": counters.failed_legs,
        "failures": counters.failures,
        "counters": counters.queues,
        "copied_bytes": witnessed.map(|totals| totals.copied_bytes),
        "moved_bytes": witnessed.map(|totals| totals.moved_bytes),
    })
}

fn as_text(
    found: &Found,
    record: &Record,
    counters: &Counters,
    witnessed: Option<Totals>,
) -> String {
    let spec = &record.spec;
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "{name:12} {value}");
    };
    line("device", format!("/dev/ublkb{}", found.id));
    line("state", state(Some(*found)).to_owned());
    line("server", found.server.map_or("none".to_owned(), |pid| format!("process {pid}")));
    line("target", spec.target.to_string());
    if let Some(policy) = &spec.policy {
        line("policy", policy.display().to_string());
    }
    for (leg, file) in spec.files.iter().enumerate() {
        let failed = counters.failed_legs.iter().any(|failed| *failed as usize == leg);
        let by = counters.failures.iter().find(|failure| failure.leg as usize == leg);
        let note = match (failed, by) {
            // That it is out says its record.
            (true, Some(by)) if record.mirror.is_some() && by.operation == "recover" => {
                "  (is out)".to_owned()
            }
            (true, Some(by)) => format!("  (is out since a {by})"),
            (true, None) => "  (is out)".to_owned(),
            (false, _) => String::new(),
        };
        let name = match file.as_os_str().is_empty() {
            true => format!("leg {leg}, which was not there at the start"),
            false => file.display().to_string(),
        };
        line("file", format!("{name}{note}"));
    }
    if spec.target == Kind::Mirror {
        let none = || "none: after the device's end, nothing knows which leg is right".to_owned();
        line(
            "records",
            record.mirror.as_ref().map_or_else(none, |it| format!("mirror {}", it.uuid)),
        );
        if let Some(legs) = lacks(counters) {
            line("degraded", format!("without {legs}: docs/block.md says what to type"));
        }
    }
    for note in record.mirror.iter().flat_map(|mirror| &mirror.notes) {
        line("at the start", note.clone());
    }
    line("size", format!("{} bytes ({})", record.size, format_size(record.size)));
    line("blocks", format!("{} bytes", spec.block_size));
    line("I/O", if spec.direct { "O_DIRECT" } else { "through the page cache" }.to_owned());
    line("engine", record.engine.to_string());
    for better in &record.passed_over {
        line("not", format!("{}: {}", better.engine, better.reason));
    }
    line(
        "queues",
        format!(
            "{} of depth {}, requests of at most {}",
            found.queues,
            found.depth,
            format_size(found.max_request.into())
        ),
    );
    line("memory", format!("{} bytes at most, beside the program", record.memory));
    if let Some(reason) = pressure::no_swap(record) {
        line("no swap", reason);
    }
    line(
        "copied",
        match witnessed {
            None => "unknown (--witness counts)".to_owned(),
            Some(totals) => format!(
                "{} bytes of {} moved, while the witness counted",
                totals.copied_bytes, totals.moved_bytes
            ),
        },
    );
    for (number, queue) in counters.queues.iter().enumerate() {
        let _ = writeln!(
            text,
            "queue {number}: {} pieces, {} went on after a short result, {} errors, {} turns",
            queue.pieces, queue.continued, queue.errors, queue.turns
        );
        for operation in &queue.operations {
            let _ = writeln!(
                text,
                "  {:12} {} requests, {} bytes",
                operation.name, operation.requests, operation.bytes
            );
            histogram(&mut text, "to the first result", &operation.first_result);
            histogram(&mut text, "to the answer", &operation.answer);
        }
    }
    text
}

fn histogram(text: &mut String, title: &str, buckets: &[Bucket]) {
    let Some(most) = buckets.iter().map(|bucket| bucket.requests).max() else { return };
    let _ = writeln!(text, "    {title}");
    for bucket in buckets {
        let from = Duration::from_nanos(bucket.from_ns);
        let width = (u64::from(bucket.requests) * 40).div_ceil(u64::from(most)) as usize;
        let _ = writeln!(
            text,
            "      from {from:>12.1?} {:>9}  {}",
            bucket.requests,
            "#".repeat(width)
        );
    }
}
