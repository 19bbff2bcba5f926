//! `handoff bench block`: what it takes to serve a block device, by each engine.
//!
//! Contracts:
//!
//! 1. A row is a device of its own, served by threads of this process, and a load on it through
//!    O_DIRECT; its costs are those of the serving threads and the kernel's workers for them.
//! 2. The load is the same for all engines: random places, so many requests at a time.
//! 3. Where instructions are counted, speeds and ratios are of the server's instructions: those of
//!    the load are no engine's doing.

mod load;
mod served;

use std::{fmt::Write as _, fs, path::PathBuf, time::Duration, time::SystemTime};

use clap::Args;
use handoff_block::{Engine, Kind, Spec};
use handoff_lab::instructions;
use regex::Regex;

use self::served::Served;
use crate::{
    command::{BenchError, Context},
    machine::Machine,
    measure::{self, Plan, Subject},
    quantity::format_size,
    report::{Config, Report},
    table,
};

/// Bytes of each file where none are given.
const FILE: u64 = 256 << 20;

const EXAMPLES: &str = "\
Rows (the ratio is to copying, of the same target, size and depth):
  copy       the driver copies data into our memory and out of it
  batch      requests' memory is lent to the loop in user space, a command serves many requests
  user-auto  requests' memory is lent to the loop in user space, a command serves one
  bpf        and the loop is a BPF program in the kernel

Jobs: random writes and reads of 512 KiB at depth 16, random reads of 4 KiB at depth 1 and 16.

Examples:
  handoff bench block --quick
  handoff bench block --backing /dev/nvme1n1p3 --backing /dev/nvme1n1p4   (they are overwritten)

Counting instructions in the lab, on disks without memory (a file's own costs are the server's too):
  handoff lab run --icount -- sh -c 'modprobe ublk_drv; modprobe null_blk nr_devices=2 irqmode=0 gb=1;
      handoff bench block --quick --backing /dev/nullb0 --backing /dev/nullb1'

Needs root and the module ublk_drv.";

/// Options of `handoff bench block`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct BlockArgs {
    /// Block devices to serve from, two of them, which are overwritten [default: files]
    #[arg(long, value_name = "PATH")]
    pub backing: Vec<PathBuf>,

    /// Where to make files to serve from
    #[arg(long, value_name = "DIRECTORY", default_value = "/var/tmp")]
    pub directory: PathBuf,

    /// Only rows whose name matches, and those that ratios refer to
    #[arg(long, value_name = "REGEX")]
    pub only: Option<Regex>,

    /// Length of one slot in seconds [default: 0.3, counting instructions 0.05]
    #[arg(long, value_name = "SECONDS")]
    pub time: Option<f64>,

    /// How many slots each row gets [default: 7]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub rounds: Option<u32>,

    /// Ends in under 30 seconds, in the lab in 3 minutes, with wider spread
    #[arg(long, conflicts_with_all = ["time", "rounds"])]
    pub quick: bool,

    /// Also write the JSON to this file
    #[arg(long, value_name = "FILE")]
    pub json_file: Option<PathBuf>,
}

/// One kind of load.
#[derive(Clone, Copy, Debug)]
struct Job {
    writes: bool,
    bytes: u32,
    depth: u32,
}

const JOBS: [Job; 4] = [
    Job { writes: true, bytes: 512 << 10, depth: 16 },
    Job { writes: false, bytes: 512 << 10, depth: 16 },
    Job { writes: false, bytes: 4 << 10, depth: 1 },
    Job { writes: false, bytes: 4 << 10, depth: 16 },
];

/// Runs the bench.
///
/// # Errors
///
/// See [`BenchError`].
pub fn run(args: &BlockArgs, context: &mut Context<'_>) -> Result<(), BenchError> {
    let machine = Machine::this();
    handoff_block::Control::open().map_err(|error| BenchError::NotPossible(error.to_string()))?;
    let backings = Backings::new(args)?;
    let subjects = subjects(args, &backings.paths);
    let plan = plan(args);
    let date = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    let measured = measure::measure(&subjects, plan, context.stop, &|| Duration::ZERO)
        .ok_or(BenchError::Stopped)?;
    let mut report = Report {
        bench: "block".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        date,
        emulated: machine.is_emulated(),
        machine,
        rows: measured.rows,
    };
    for row in &mut report.rows {
        if instructions::counting() {
            row.count_instructions();
        } else if report.emulated {
            // Times under emulation mean nothing, and so do their ratios.
            (row.ratio, row.ratio_min, row.ratio_max) = (None, None, None);
        }
    }
    let json = serde_json::to_string_pretty(&report)
        .map_err(|error| BenchError::Failed(format!("the report cannot be written: {error}")))?;
    if let Some(path) = &args.json_file {
        fs::write(path, format!("{json}\n")).map_err(|error| {
            BenchError::Failed(format!("{} cannot be written: {error}", path.display()))
        })?;
    }
    let text = match context.json {
        true => json,
        false => {
            format!("{}\n{}", conditions(&report, plan, &backings), table::draw(&report, None))
        }
    };
    writeln!(context.out, "{text}").map_err(BenchError::Output)?;
    match measured.failed.is_empty() {
        true => Ok(()),
        false => {
            Err(BenchError::Failed(format!("failed while running: {}", measured.failed.join(", "))))
        }
    }
}

/// What devices are served from. Files vanish with this.
struct Backings {
    paths: Vec<PathBuf>,
    _directory: Option<tempfile::TempDir>,
}

impl Backings {
    fn new(args: &BlockArgs) -> Result<Self, BenchError> {
        match args.backing.len() {
            2 => return Ok(Self { paths: args.backing.clone(), _directory: None }),
            0 => {}
            given => {
                return Err(BenchError::Usage(format!(
                    "--backing is given twice, not {given} times"
                )));
            }
        }
        let failed = |error: std::io::Error| {
            BenchError::Failed(format!("no files in {}: {error}", args.directory.display()))
        };
        let directory = tempfile::tempdir_in(&args.directory).map_err(failed)?;
        let paths = ["one", "two"].map(|name| directory.path().join(name)).to_vec();
        for path in &paths {
            let file = fs::File::create(path).map_err(failed)?;
            // With all its blocks, so that the file system has nothing to look for.
            let zeroes = vec![0; 1 << 20];
            for at in 0..FILE >> 20 {
                std::os::unix::fs::FileExt::write_all_at(&file, &zeroes, at << 20)
                    .map_err(failed)?;
            }
            file.sync_all().map_err(failed)?;
        }
        Ok(Self { paths, _directory: Some(directory) })
    }
}

fn subjects<'a>(args: &'a BlockArgs, backings: &'a [PathBuf]) -> Vec<Subject<'a>> {
    let mut subjects = Vec::new();
    for job in JOBS {
        for (target, kind, files) in
            [("null", Kind::Null, 0), ("loop", Kind::Loop, 1), ("linear", Kind::Linear, 2)]
        {
            for engine in Engine::ALL.into_iter().rev() {
                let op = if job.writes { "write" } else { "read" };
                let size = format_size(job.bytes.into());
                let name = format!("{op} {size} depth={} {target} {engine}", job.depth);
                let baseline = engine == Engine::Copy;
                if !baseline && args.only.as_ref().is_some_and(|only| !only.is_match(&name)) {
                    continue;
                }
                let spec = Spec {
                    target: kind,
                    files: backings[..files].to_vec(),
                    direct: true,
                    depth: 32,
                    engine: Some(engine),
                    ..Spec::default()
                };
                subjects.push(Subject {
                    name,
                    engine: engine.to_string(),
                    config: Config {
                        bytes: Some(job.bytes.into()),
                        op: Some(op.to_owned()),
                        target: Some(target.to_owned()),
                        depth: Some(job.depth),
                        ..Config::default()
                    },
                    baseline,
                    peer: false,
                    make: Box::new(move || {
                        Served::new(&spec, job).map(|served| Box::new(served) as _)
                    }),
                });
            }
        }
    }
    // Copying that nothing is compared with.
    let wanted =
        |subject: &Subject<'_>| args.only.as_ref().is_none_or(|only| only.is_match(&subject.name));
    let compared: Vec<Config> =
        subjects.iter().filter(|it| wanted(it)).map(|it| it.config.clone()).collect();
    subjects.retain(|it| compared.iter().any(|config| config.same_work(&it.config)));
    subjects
}

fn plan(args: &BlockArgs) -> Plan {
    let (slot, rounds) = match (args.quick, instructions::counting()) {
        (true, false) => (0.1, 3),
        (false, false) => (0.3, 7),
        (true, true) => (0.02, 2),
        (false, true) => (0.05, 3),
    };
    let slot = Duration::from_secs_f64(args.time.unwrap_or(slot).clamp(0.001, 600.0));
    // A file or device serves one at a time.
    Plan { slot, peer_slot: slot, rounds: args.rounds.unwrap_or(rounds), keep_engines: false }
}

fn conditions(report: &Report, plan: Plan, backings: &Backings) -> String {
    let machine = &report.machine;
    let mut text = String::new();
    let counted = report.counts_instructions();
    let _ = writeln!(
        text,
        "block devices on {} with O_DIRECT, median of {} slots of {} {}",
        backings.paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", "),
        plan.rounds,
        plan.slot.as_millis(),
        if counted { "million instructions" } else { "ms" },
    );
    let _ = writeln!(
        text,
        "{machine}{}",
        match (report.emulated, counted) {
            (false, _) => "; CPU is the server's",
            (true, false) => ", emulated: times mean nothing",
            (true, true) => ", emulated: figures and ratios are of the server's instructions",
        },
    );
    text
}
