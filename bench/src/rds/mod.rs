//! `handoff bench rds`: messages to another host and back, by the kernel's RDS and by our own engine,
//! beside framing over TCP.
//!
//! Contracts:
//!
//! 1. All rows of a load send the same messages between the same two namespaces. Their far ends do the same
//!    work: they take each message into its own memory, and send one of the same length back if asked.
//! 2. A slot of a stream ends when all has arrived and every lent buffer is back.
//! 3. Costs are those of the sending thread and its NIC's NAPI threads; for the kernel's engine, also those
//!    of the kernel's workers, which serve both ends. The other end's costs are only in the answers' times.
//! 4. Our own engine cannot answer where the kernel's RDS listens, in any namespace. So rows of the
//!    kernel's engine come after all others, and the rows of TCP take turns with them once more: a ratio
//!    always refers to rows of the same rounds.

mod exchange;
mod far;
mod framed;
mod job;
mod kernel;
mod own;
mod patience;
mod verdict;

use std::fs;

use clap::Args;
use handoff::Engine as Sending;
use handoff_rds::kernel::Mode;

use self::{
    exchange::{Exchange, Way},
    far::Far,
    framed::Tcp,
    job::{JOBS, Job, UNDER_WAY},
    kernel::Kernel,
    own::Own,
};
use crate::{
    context::{BenchError, Context},
    lab,
    measure::{Measured, Subject},
    network::{
        bed::{Bed, Joint, Load},
        pattern::Pattern,
    },
    processor::Pinned,
    report::{self, Report, Row},
    run::{Bench, RunOptions, Slots},
    tasks,
};

/// Frames arrive as they were sent.
const LOAD: Load = Load { mtu: 1_500, gro: true };

const TCP: &str = "tcp";
const OWN: &str = "rds-own";
const KERNEL: &str = "rds-kernel";

const EXAMPLES: &str = "\
Rows (the ratio is to tcp, of the same load):
  tcp          a length and the message over TCP, in one write
  rds-own      our own engine, in user space over TCP; lent messages are sent with io_uring
  rds-kernel   the kernel's RDS sockets
each of them with messages lent and with copy.

Loads: ask sends a message and waits for an answer of the same length. stream sends as many as it
can, with as many under way as depth says, but at most 16 MiB. Messages have 64 bytes to 1 MiB;
those of 1 MiB are sent by one socket and by eight.

The times of ask run from before a message is sent until its answer is in memory. In the lab they
contain what the software NIC's engine takes; the lines below the table show it and subtract it.
User is the sender's time outside the kernel, for each message. Reap is what it costs to take a
completion: calls that do nothing else; for our engine, those that ask TCP what it acknowledged.

Between veth devices nothing goes without a copy: the kernel copies on delivery what our engine
lends (copied), and the receiver shares what the kernel's engine lends until it has read it
(shares pages).

Examples:
  handoff bench rds --quick --lab
  handoff bench rds --quick
  handoff bench rds --only '^stream 64 ' --time 1 --json-file before.json
  handoff bench rds --compare before.json

Rows of our engine need a kernel without RDS loaded. Rows of the kernel's engine need its module
rds_tcp and a send buffer of more than 1 MiB (net.core.wmem_max). All need root, or a kernel that
lets every user make user namespaces. With --lab, what the lab needs.";

/// Options of `handoff bench rds`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct RdsArgs {
    /// Options of every bench.
    #[command(flatten)]
    pub run: RunOptions,

    /// Processor to send on [default: the last one]
    #[arg(long, value_name = "N", conflicts_with = "lab")]
    pub cpu: Option<usize>,
}

impl Bench for RdsArgs {
    const NAME: &'static str = report::RDS;

    fn options(&self) -> &RunOptions {
        &self.run
    }

    fn slots(&self) -> Slots {
        Slots {
            whole: (300, 9),
            quick: (100, 5),
            counted: (40, 4),
            quick_counted: (15, 2),
            quick_total: None,
        }
    }

    fn measure(&self, context: &Context<'_>) -> Result<(Measured, String), BenchError> {
        let pinned = Pinned::to(self.cpu).map_err(BenchError::Usage)?;
        let mut bed = Bed::new(LOAD, &Pattern::new(), pinned.others())?;
        bed.receive_at_both_ends()?;
        // An address has room for one engine.
        let run = |subjects: &[Subject<'_>]| {
            self.measure_rows(subjects, self.plan(subjects.len()), context.stop)
        };
        let of_kernel = |subject: &Subject<'_>| subject.engine.starts_with(KERNEL);
        let mut first = subjects(self, &bed);
        let mut second = subjects(self, &bed);
        first.retain(|subject| !of_kernel(subject));
        second.retain(|subject| of_kernel(subject) || subject.baseline);
        let mut measured = run(&first)?;
        if second.iter().any(of_kernel) {
            if lab::is_guest() {
                prepare_guest()?;
            }
            let theirs = run(&second)?;
            let rows = theirs.rows.into_iter().filter(|row| row.engine.starts_with(KERNEL));
            measured.rows.extend(rows);
            measured.failed.extend(theirs.failed);
            measured.kept_waiting = measured.kept_waiting.max(theirs.kept_waiting);
            measured.rows.sort_by_key(place);
        }
        let busy = measured.busy("a processor", "times of answers are long and spread wide");
        let remarks = format!("sent on processor {}\n{busy}", pinned.cpu());
        Ok((measured, remarks))
    }

    fn subject(&self, report: &Report) -> String {
        let target = report.rows.first().and_then(|row| row.config.target.clone());
        format!("messages over {}", target.unwrap_or_default())
    }

    fn conditions(&self, _report: &Report) -> String {
        "CPU is that of the sending thread and its NIC's NAPI, for rds-kernel with the kernel's workers\n"
            .to_owned()
    }

    fn verdict(&self, report: &Report) -> String {
        verdict::verdict(report)
    }
}

/// Loads the kernel's RDS, and makes it accept messages of 1 MiB.
fn prepare_guest() -> Result<(), BenchError> {
    lab::load_in_guest("rds_tcp")?;
    for name in ["wmem_max", "rmem_max"] {
        let path = format!("/proc/sys/net/core/{name}");
        fs::write(&path, UNDER_WAY.to_string())
            .map_err(|error| BenchError::Failed(format!("{path}: {error}")))?;
    }
    Ok(())
}

/// A row's position in the table.
fn place(row: &Row) -> (usize, bool) {
    let job = |job: &Job| row.name.starts_with(&job.name(""));
    (JOBS.iter().position(job).unwrap_or(JOBS.len()), row.engine.starts_with(KERNEL))
}

/// All rows that match `--only`, and those that they compare with.
fn subjects<'a>(args: &RdsArgs, bed: &'a Bed) -> Vec<Subject<'a>> {
    let mut subjects: Vec<Subject<'a>> = JOBS
        .into_iter()
        .flat_map(|job| {
            let tcp = subject(bed, job, TCP, "", move || Tcp::new(bed, job));
            let lent = |engine: &str, veth: &str| match bed.joint() {
                Joint::Wire => format!("{engine} lent"),
                Joint::Veth | Joint::VirtioNet => format!("{engine} lent, {veth}"),
            };
            let own = |sending| move || Own::new(bed, job, sending);
            let kernel = |mode| move || Kernel::new(bed, job, mode);
            [
                tcp.baseline(),
                subject(bed, job, OWN, &lent(OWN, "copied"), own(Sending::UringZc)),
                subject(bed, job, OWN, &format!("{OWN} copy"), own(Sending::Copy)),
                subject(bed, job, KERNEL, &lent(KERNEL, "shares pages"), kernel(Mode::Lend)),
                subject(bed, job, KERNEL, &format!("{KERNEL} copy"), kernel(Mode::Copy)),
            ]
        })
        .collect();
    args.run.keep_wanted(&mut subjects);
    subjects
}

fn subject<'a, W: Way + 'a>(
    bed: &'a Bed,
    job: Job,
    engine: &str,
    way: &str,
    make: impl Fn() -> Result<(W, Far), String> + 'a,
) -> Subject<'a> {
    let of_kernel = engine == KERNEL;
    let name = job.name(if way.is_empty() { engine } else { way });
    Subject::new(name, engine, job.config(bed), move || {
        let made = make()?;
        let workers = if of_kernel { tasks::workers() } else { Vec::new() };
        Ok(Exchange::new(bed, job, made, workers))
    })
}

#[cfg(test)]
mod tests;
