//! `handoff blk add` and `recover`: they start a supervisor; its first line is the answer.

use std::fmt::Debug;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{self, Path, PathBuf};
use std::str::FromStr;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use handoff_block::state::{Directory, Record};
use handoff_block::{Control, Engine, Kind, SEGMENTS_KEPT, Spec};
use handoff_command::quantity::{format_size, parse_size};
use handoff_command::{Context, Failure, output, service};

use super::failure::{device, failure};
use super::pressure;
use super::supervise::{self, Task};

const EXAMPLES: &str = "\
Examples:
  handoff blk add linear half-1.img half-2.img
  handoff blk add loop /dev/vdb --engine bpf --queues 4 --depth 128
  handoff blk add stripe --chunk 256k a b c --block-size 4096
  handoff blk add policy a b --policy shard.bpf.o --size 64g
  handoff blk add loop disk.img --buffered --read-only --json";

/// The choices, then the examples.
fn after_help() -> String {
    let mut text = "Targets:\n".to_owned();
    for kind in Kind::ALL {
        text.push_str(&format!("  {:6}  {}\n", kind.name(), kind.about()));
    }
    text.push_str(
        "\nEngines, best first; the best possible one is taken, and `blk show` says why not a better one:\n",
    );
    for engine in Engine::ALL {
        text.push_str(&format!("  {:10}  {}\n", engine.name(), engine.about()));
    }
    format!("{text}\n{EXAMPLES}")
}

/// One of a few names.
fn one_of<T: FromStr + Clone + Send + Sync + 'static>(
    names: impl IntoIterator<Item = &'static str>,
) -> impl TypedValueParser<Value = T>
where
    T::Err: Debug,
{
    PossibleValuesParser::new(names).map(|name| name.parse().expect("one of the names"))
}

/// Arguments of `handoff blk add`.
#[derive(Debug, clap::Args)]
#[command(after_help = after_help())]
pub struct AddArgs {
    /// How the bytes of the device lie in its files
    #[arg(value_parser = one_of::<Kind>(Kind::ALL.map(Kind::name)))]
    pub target: Kind,
    /// Files or block devices
    pub files: Vec<PathBuf>,
    /// Number of the device [default: the driver chooses a free one]
    #[arg(long, value_name = "N")]
    pub id: Option<u32>,
    /// Bytes (k, m, g, t) of a null device [default: 1g], or of a device with a policy [default: its files
    /// together]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub size: Option<u64>,
    /// BPF object with the mapping, for the target policy
    #[arg(long, value_name = "OBJECT")]
    pub policy: Option<PathBuf>,
    /// Number of places that a device with a policy writes to
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub copies: u32,
    /// Logical block size in bytes: 512 or 4096
    #[arg(long, value_name = "BYTES", default_value_t = 512)]
    pub block_size: u32,
    /// Bytes of a stripe's chunk [default: 64k], or of what a mirror reads from one leg [default: 1m]: a power of
    /// two, at least 4k (k, m)
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub chunk: Option<u64>,
    /// Use the page cache, which copies, instead of O_DIRECT
    #[arg(long)]
    pub buffered: bool,
    /// Refuse writes
    #[arg(long)]
    pub read_only: bool,
    /// Number of queues, each with its own thread
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub queues: u16,
    /// Most requests under way in each queue
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub depth: u16,
    /// Bytes of the largest request (k, m)
    #[arg(long, value_name = "SIZE", default_value = "512k", value_parser = parse_size)]
    pub max_request: u64,
    /// Pieces of memory in a lent request. More than 32 cost less where memory is scattered, but then the
    /// server takes memory for each such request, and may wait for itself when memory is short
    #[arg(long, value_name = "N", default_value_t = SEGMENTS_KEPT, value_parser = clap::value_parser!(u16).range(1..))]
    pub max_segments: u16,
    /// Engine to use, or fail [default: the best possible]
    #[arg(long, value_parser = one_of::<Engine>(Engine::ALL.map(Engine::name)))]
    pub engine: Option<Engine>,
    /// Compare the files of a mirror first, and refuse files that differ
    #[arg(long)]
    pub check: bool,
    /// Stay in the foreground, as the supervisor, until the device is removed
    #[arg(long)]
    pub foreground: bool,
}

const RECOVER_EXAMPLES: &str = "\
The new server also serves the requests that the last one held.

Examples:
  handoff blk recover 0";

/// Arguments of `handoff blk recover`.
#[derive(Debug, clap::Args)]
#[command(after_help = RECOVER_EXAMPLES)]
pub struct RecoverArgs {
    /// Number of the device
    pub id: u32,
    /// Stay in the foreground, as the supervisor, until the device is removed
    #[arg(long)]
    pub foreground: bool,
}

pub(super) fn add(args: &AddArgs, context: &Context) -> Result<(), Failure> {
    let files = args.files.iter().map(path::absolute).collect::<Result<Vec<_>, _>>();
    let policy = args.policy.as_ref().map(path::absolute).transpose();
    let spec = Spec {
        target: args.target,
        files: files.map_err(|error| Failure::usage(format!("a path is wrong: {error}")))?,
        size: args.size,
        policy: policy.map_err(|error| Failure::usage(format!("a path is wrong: {error}")))?,
        copies: args.copies,
        id: args.id,
        block_size: args.block_size,
        chunk: args.chunk.unwrap_or(args.target.chunk()),
        direct: !args.buffered,
        read_only: args.read_only,
        queues: args.queues,
        depth: args.depth,
        max_request: u32::try_from(args.max_request).unwrap_or(u32::MAX),
        max_segments: args.max_segments,
        engine: args.engine,
    };
    if args.check {
        if spec.target != Kind::Mirror {
            return Err(Failure::usage(
                "--check compares the files of a mirror: other targets have none",
            ));
        }
        compare(&spec.files, context)?;
    }
    start(&Task::new(spec, None), args.foreground, context)
}

pub(super) fn recover(args: &RecoverArgs, context: &Context) -> Result<(), Failure> {
    let id = args.id;
    device(&mut Control::open().map_err(failure)?, id)?;
    let record = Directory::of(id).read().map_err(|error| {
        let by =
            if error.kind() == io::ErrorKind::NotFound { "; another program made it" } else { "" };
        Failure::usage(format!("what device {id} was made of is not known here: {error}{by}"))
    })?;
    start(&Task::new(record.spec, Some(id)), args.foreground, context)
}

/// Bytes compared at a time.
const STEP: usize = 1 << 20;

/// Compares files up to the length of the shortest.
fn compare(paths: &[PathBuf], context: &Context) -> Result<(), Failure> {
    let mut files = Vec::new();
    for path in paths {
        let failed = |error| Failure::usage(format!("{}: {error}", path.display()));
        files.push((path, File::open(path).map_err(failed)?));
    }
    let Some(((first, file), others)) = files.split_first_mut() else { return Ok(()) };
    let (mut one, mut other) = (Vec::new(), Vec::new());
    let mut position = 0u64;
    loop {
        context.stop.check()?;
        read(first, file, &mut one)?;
        let mut least = one.len();
        for (path, file) in &mut *others {
            read(path, file, &mut other)?;
            if let Some(at) = one.iter().zip(&other).position(|(one, other)| one != other) {
                return Err(Failure::failed(format!(
                    "{} and {} differ from byte {} on: copy the good one over the other",
                    first.display(),
                    path.display(),
                    position + at as u64
                )));
            }
            least = least.min(other.len());
        }
        if least < STEP {
            return Ok(());
        }
        position += STEP as u64;
    }
}

/// As much as the file has, but no more than a step.
fn read(path: &Path, file: &mut File, bytes: &mut Vec<u8>) -> Result<(), Failure> {
    bytes.clear();
    let read = file.take(STEP as u64).read_to_end(bytes).map(drop);
    read.map_err(|error| Failure::failed(format!("{}: {error}", path.display())))
}

fn start(task: &Task, foreground: bool, context: &Context) -> Result<(), Failure> {
    load_driver();
    // Whatever prevents everything is reported at once.
    Control::open().map_err(failure)?;
    if foreground {
        return supervise::watch(task, context, |id, record| {
            task.heard(tell(id, record, context))?;
            service::ready(&format!("/dev/ublkb{id}"));
            Ok(())
        });
    }
    let id = supervise::detach(task)?;
    let record = Directory::of(id)
        .read()
        .map_err(|error| Failure::failed(format!("device {id} has no state: {error}")))?;
    tell(id, &record, context)
}

/// Loads the driver if it is a module and this user may. If it is missing afterwards, opening it says what to
/// do.
fn load_driver() {
    if Path::new(handoff_block::CONTROL).exists() {
        return;
    }
    match handoff_sys::kernel_module::load("ublk_drv", &[]) {
        Ok(()) => tracing::info!("loaded ublk_drv"),
        Err(reason) => tracing::debug!(reason, "ublk_drv is not loaded"),
    }
}

/// Prints the new device.
fn tell(id: u32, record: &Record, context: &Context) -> Result<(), Failure> {
    if context.json {
        return output::json(&serde_json::json!({
            "id": id,
            "device": format!("/dev/ublkb{id}"),
            "engine": record.engine,
            "passed_over": record.passed_over,
            "size": record.size,
            "unused": record.unused().map(|(_, bytes)| bytes).sum::<u64>(),
            "no_swap": pressure::no_swap(record),
        }));
    }
    let mut text = format!(
        "/dev/ublkb{id}: {} bytes ({}), engine {}\n",
        record.size,
        format_size(record.size),
        record.engine
    );
    for (file, bytes) in record.unused() {
        text.push_str(&format!("of {} the last {bytes} bytes are not used\n", file.display()));
    }
    for better in &record.passed_over {
        text.push_str(&format!("not {}: {}\n", better.engine, better.reason));
    }
    if let Some(reason) = pressure::no_swap(record) {
        text.push_str(&format!("put no swap on it: {reason}\n"));
    }
    output::text(&text)
}
