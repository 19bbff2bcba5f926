//! `handoff bench block` measures the cost of serving a block device, by each engine.
//!
//! Contracts:
//!
//! 1. Each row has a device of its own, and a load on it through O_DIRECT. Threads of this process serve the
//!    device, or the kernel or another program does. Costs are those of the serving threads and of the kernel's
//!    workers for them.
//! 2. The load is the same for all rows: random places, and a given number of requests at a time.
//! 3. Where instructions are counted, speeds and ratios are those of the server's instructions: no engine is
//!    charged for the load.

mod kernel_loop;
mod load;
mod ours;
mod program;
mod served;
mod testbed;

use std::{cell::Cell, path::PathBuf, rc::Rc, sync::atomic::AtomicBool, time::Duration};

use clap::Args;
use handoff_block::{Engine, Kind, MirrorStart, Spec};
use handoff_command::quantity::format_size;
use handoff_command::{Context, Failure};
use handoff_testbed::instructions;

use self::{
    kernel_loop::KernelLoop,
    ours::Ours,
    program::Program,
    served::{Device, Served},
    testbed::Testbed,
};
use crate::{
    lab,
    measure::{self, Measured, Subject},
    peer::{Placeholders, ProgramOptions},
    report::{self, Config, Report},
    run::{Bench, RunOptions, Slots},
    witness,
};

/// The name of the kernel's loop driver among the engines.
const KERNEL_LOOP: &str = "kernel-loop";
/// The requests that a device takes at a time: more than any load has, so none waits for a tag.
const DEPTH: u16 = 32;

const EXAMPLES: &str = "\
Rows (the ratio is to copying, of the same target and load):
  user-copy    the driver copies data into our memory and out of it
  batch-auto   requests' memory is lent to the loop in user space, a command serves many requests
  user-auto    requests' memory is lent to the loop in user space, a command serves one
  bpf          the same, but the loop is a BPF program in the kernel
  kernel-loop  the kernel's own loop driver with direct I/O, which works partly in the thread that
               asks: its cost shows only together with the load's

Loads: random writes and reads of 512 KiB at depth 16, random reads of 4 KiB at depth 1 and 16,
and the first of them limited to 745 MiB/s, where the server's share of a processor compares.
Mirrors of two legs get random writes of 4 KiB at depth 1 and 16: with a record and all bits of its
bitmap set, and as --no-record makes them. They have legs of their own, and none beside --backing.

Enters are calls of io_uring_enter, switches are context switches of the server's threads, both
per request. The witness is the copy meter (--meter). Minsn/s is the server's share of an emulated
processor, whose second is 1,000 million instructions.

A peer is another program that serves a ublk device. In its command {target} (null or loop),
{files} (empty for null) and {depth} are replaced.

Examples:
  handoff bench block --quick --lab
  handoff bench block --quick
  handoff bench block --backing /dev/nvme1n1p3 --backing /dev/nvme1n1p4   (they are overwritten)
  handoff bench block --only loop --peer 'kublk-copy=kublk add -t {target} -q 1 -d {depth} {files}'
  handoff bench block --quick --lab --program ./kublk \\
      --peer 'kublk-auto=kublk add -t {target} -q 1 -d {depth} --auto_zc {files}'

Needs root and the module ublk_drv; with --lab, what the lab needs.";

/// Options of `handoff bench block`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct BlockArgs {
    /// Options of every bench.
    #[command(flatten)]
    pub run: RunOptions,

    /// A block device to serve from; it is overwritten. Give it twice [default: files; where instructions are
    /// counted, disks without memory]
    #[arg(long, value_name = "PATH", conflicts_with = "lab")]
    pub backing: Vec<PathBuf>,

    /// Directory for the files to serve from
    #[arg(long, value_name = "DIRECTORY", default_value = "/var/tmp", conflicts_with = "lab")]
    pub directory: PathBuf,

    /// The peers: other programs to compare with.
    #[command(flatten)]
    pub programs: ProgramOptions,
}

/// One kind of load.
#[derive(Clone, Copy, Debug)]
struct Job {
    writes: bool,
    bytes: u32,
    depth: u32,
    /// The most bytes per second; `None` without a limit.
    rate: Option<u64>,
}

const MIB: u64 = 1 << 20;

const LIMITED: Job = Job { writes: true, bytes: 512 << 10, depth: 16, rate: Some(745 * MIB) };
const JOBS: [Job; 5] = [
    Job { rate: None, ..LIMITED },
    Job { writes: false, rate: None, ..LIMITED },
    Job { writes: false, bytes: 4 << 10, depth: 1, rate: None },
    Job { writes: false, bytes: 4 << 10, depth: 16, rate: None },
    LIMITED,
];

/// What mirrors are measured with: what a record costs shows most at small writes.
const MIRROR_JOBS: [Job; 2] = [
    Job { writes: true, bytes: 4 << 10, depth: 1, rate: None },
    Job { writes: true, bytes: 4 << 10, depth: 16, rate: None },
];

/// The name, the mapping and the number of files of each target but mirrors.
const TARGETS: [(&str, Kind, usize); 3] =
    [("null", Kind::Null, 0), ("loop", Kind::Loop, 1), ("linear", Kind::Linear, 2)];

impl Job {
    fn op(&self) -> &'static str {
        if self.writes { "write" } else { "read" }
    }

    /// When a request is due that `before` others precede, counted from the first request on.
    fn due(&self, before: u64) -> Duration {
        let bytes = before * u64::from(self.bytes);
        self.rate.map_or(Duration::ZERO, |rate| {
            Duration::from_nanos((u128::from(bytes) * 1_000_000_000 / u128::from(rate)) as u64)
        })
    }

    /// A row's name.
    fn name(&self, target: &str, engine: &str) -> String {
        let (op, size, depth) = (self.op(), format_size(self.bytes.into()), self.depth);
        let rate = self.rate.map_or_else(String::new, |rate| format!("{}MiB/s ", rate / MIB));
        format!("{op} {size} depth={depth} {rate}{target} {engine}")
    }

    fn config(&self, target: &str) -> Config {
        Config {
            bytes: Some(self.bytes.into()),
            op: Some(self.op().to_owned()),
            target: Some(target.to_owned()),
            depth: Some(self.depth),
            rate: self.rate,
            ..Config::default()
        }
    }
}

impl Bench for BlockArgs {
    const NAME: &'static str = report::BLOCK;

    fn options(&self) -> &RunOptions {
        &self.run
    }

    fn programs(&self) -> Option<&ProgramOptions> {
        Some(&self.programs)
    }

    fn slots(&self) -> Slots {
        Slots {
            whole: (300, 7),
            quick: (100, 3),
            counted: (50, 3),
            quick_counted: (20, 2),
            quick_total: None,
        }
    }

    fn measure(&self, context: &Context) -> Result<(Measured, String), Failure> {
        lab::load_in_guest("ublk_drv")?;
        let not_possible = |error: handoff_block::Error| Failure::NotPossible(error.to_string());
        handoff_block::Control::open().map_err(not_possible)?;
        let testbed = Testbed::new(self)?;
        let subjects = subjects(self, &testbed, context.stop.flag());
        let counted = instructions::counting();
        // The plan makes each engine anew for each slot: a file or device is served by one at a time.
        let plan = self.plan(subjects.len());
        let mut measured =
            measure::measure(&subjects, plan, context.stop.flag(), &|| Duration::ZERO)
                .ok_or_else(|| context.stop.failure())?;
        for row in &mut measured.rows {
            // A ratio says nothing where all rows have the same speed, or where no server executes instructions.
            let limited = row.config.rate.is_some() && !counted;
            if limited || row.engine == KERNEL_LOOP && counted {
                (row.ratio, row.ratio_min, row.ratio_max) = (None, None, None);
            }
            if row.engine == KERNEL_LOOP && counted {
                (row.bytes_per_s, row.ops_per_s) = (None, None);
            }
        }
        witness::attest(&subjects, &mut measured.rows, self.run.meter, &context.stop)?;
        Ok((measured, format!("served from {}\n", testbed.kind)))
    }

    fn subject(&self, _report: &Report) -> String {
        "block devices with O_DIRECT".to_owned()
    }

    fn conditions(&self, _report: &Report) -> String {
        "CPU and instructions are the server's, with the kernel's workers for it\n".to_owned()
    }
}

/// All rows that match `--only`, and their baselines, in the table's order.
fn subjects<'a>(
    args: &'a BlockArgs,
    testbed: &'a Testbed,
    stop: &'a AtomicBool,
) -> Vec<Subject<'a>> {
    let limited_to_loop = |job: &Job, target: &str| job.rate.is_none() || target == "loop";
    let mut subjects = Vec::new();
    for job in JOBS {
        for (target, kind, files) in TARGETS.into_iter().filter(|it| limited_to_loop(&job, it.0)) {
            let files = &testbed.paths[..files];
            let spec = Spec { target: kind, files: files.to_vec(), ..Spec::default() };
            subjects.extend(by_each_engine(job, target, move || spec.clone()));
            if kind == Kind::Loop {
                let make = move || KernelLoop::new(&files[0]);
                subjects.push(subject(job, target, KERNEL_LOOP, make));
            }
            // What other programs mean by linear is unknown.
            for (name, command) in args.programs.peer.iter().filter(|_| kind != Kind::Linear) {
                let paths: Vec<String> =
                    files.iter().map(|path| path.display().to_string()).collect();
                let placeholders = Placeholders(vec![
                    ("target", target.to_owned()),
                    ("files", paths.join(" ")),
                    ("depth", DEPTH.to_string()),
                ]);
                let make = move || Program::start(command, &placeholders, stop);
                subjects.push(Subject { peer: true, ..subject(job, target, name, make) });
            }
        }
    }
    if let Some([recorded, unrecorded]) = &testbed.legs {
        // The first one that is made writes the records.
        let made = Rc::new(Cell::new(false));
        for job in MIRROR_JOBS {
            let (made, mirror) = (made.clone(), |legs: &[PathBuf; 2], record| Spec {
                target: Kind::Mirror,
                files: legs.to_vec(),
                record,
                ..Spec::default()
            });
            subjects.extend(by_each_engine(job, "mirror", move || {
                let start = match made.replace(true) {
                    false => MirrorStart::Create { keep_first: true },
                    true => MirrorStart::AsRecorded,
                };
                mirror(recorded, Some(start))
            }));
            let without = move || mirror(unrecorded, None);
            subjects.extend(by_each_engine(job, "mirror --no-record", without));
        }
    }
    args.run.keep_wanted(&mut subjects);
    subjects
}

/// The rows of a target of ours. `spec` makes what differs from target to target.
fn by_each_engine<'a>(
    job: Job,
    target: &str,
    spec: impl Fn() -> Spec + Clone + 'a,
) -> impl Iterator<Item = Subject<'a>> {
    // The best engine comes last: the others are compared with the first.
    Engine::ALL.into_iter().rev().map(move |engine| {
        let spec = spec.clone();
        let make =
            move || Ours::new(&Spec { direct: true, depth: DEPTH, engine: Some(engine), ..spec() });
        Subject {
            baseline: engine == Engine::UserCopy,
            ..subject(job, target, &engine.to_string(), make)
        }
    })
}

fn subject<'a, D: Device + 'a>(
    job: Job,
    target: &str,
    engine: &str,
    device: impl Fn() -> Result<D, String> + 'a,
) -> Subject<'a> {
    let make = move || Served::new(device()?, job);
    Subject::new(job.name(target, engine), engine, job.config(target), make)
}

#[cfg(test)]
mod tests;
