//! `handoff blk add` and `recover`: they start a supervisor; its first line is the answer.

use std::fmt::Debug;
use std::io;
use std::path::{self, Path, PathBuf};
use std::str::FromStr;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use handoff_block::state::{Directory, Record};
use handoff_block::{Control, Engine, Kind, MirrorStart, SEGMENTS_KEPT, Spec};
use handoff_command::quantity::{format_size, parse_size};
use handoff_command::{Context, Failure, output, service};

use super::failure::{device, failure};
use super::pressure;
use super::starting;
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
    /// Make a mirror: write a record of it at the end of each leg, which takes some room there. The legs must have the
    /// same bytes, as new disks do
    #[arg(long, conflicts_with_all = ["degraded", "trust", "no_record", "read_only"])]
    pub create: bool,
    /// With --create: if the legs differ, copy the first one to the others, whose data is lost
    #[arg(long, requires = "create")]
    pub keep_first: bool,
    /// Start a mirror without a leg that may have newer data. What only that leg has is lost
    #[arg(long, conflicts_with_all = ["trust", "no_record"])]
    pub degraded: bool,
    /// Start a mirror with the data of this leg, one of those named, whatever the records of the others say
    #[arg(long, value_name = "LEG", conflicts_with = "no_record")]
    pub trust: Option<PathBuf>,
    /// Make a mirror of legs without records: after the device's end, nothing knows which leg is right
    #[arg(long)]
    pub no_record: bool,
    /// Compare the legs of a mirror first, and refuse legs that differ
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
        record: record(args)?,
        check: args.check,
    };
    start(&Task::new(spec, None), args.foreground, context)
}

/// How a mirror starts.
fn record(args: &AddArgs) -> Result<Option<MirrorStart>, Failure> {
    let trust = args.trust.as_ref().map(path::absolute).transpose();
    let trust = trust.map_err(|error| Failure::usage(format!("a path is wrong: {error}")))?;
    let asked = match (args.create, args.degraded, trust) {
        (true, ..) => Some(MirrorStart::Create { keep_first: args.keep_first }),
        (_, true, _) => Some(MirrorStart::Degraded),
        (.., Some(leg)) => Some(MirrorStart::Trust(leg)),
        _ => None,
    };
    match args.target {
        Kind::Mirror if args.no_record => Ok(None),
        Kind::Mirror => Ok(Some(asked.unwrap_or_default())),
        _ if asked.is_some() || args.no_record => Err(Failure::usage(
            "--create, --degraded, --trust and --no-record go with a mirror: other targets have no records",
        )),
        _ => Ok(None),
    }
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

fn start(task: &Task, foreground: bool, context: &Context) -> Result<(), Failure> {
    load_driver();
    // Whatever prevents everything is reported at once.
    Control::open().map_err(failure)?;
    if foreground {
        let mut bar = starting::bar(context);
        let starting = |done, all| {
            bar(done, all);
            true
        };
        return supervise::watch(task, context, starting, |id, record| {
            task.heard(tell(id, record, context))?;
            service::ready(&format!("/dev/ublkb{id}"));
            Ok(())
        });
    }
    let id = supervise::detach(task, context)?;
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
            "mirror": record.mirror,
        }));
    }
    let mut text = format!(
        "/dev/ublkb{id}: {} bytes ({}), engine {}\n",
        record.size,
        format_size(record.size),
        record.engine
    );
    match &record.mirror {
        Some(mirror) => mirror.notes.iter().for_each(|note| text.push_str(&format!("{note}\n"))),
        None if record.spec.target == Kind::Mirror => text.push_str(
            "no records: after the device's end, nothing knows which leg is right (--create writes them)\n",
        ),
        None => {}
    }
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
