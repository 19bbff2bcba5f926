//! `handoff bench rds` measures messages to another host and back, by the kernel's RDS and by our own engine,
//! beside framing over TCP.
//!
//! Contracts:
//!
//! 1. All rows of a load send the same messages between the same two namespaces. Their far ends do the same
//!    work: they take each message into their own memory, and send one of the same length back if asked.
//! 2. A slot of a stream ends when all messages have arrived and every lent buffer is back.
//! 3. Costs are those of the sending thread and its NIC's NAPI threads; for the kernel's engine, also those of
//!    the kernel's workers, which serve both ends. The other end's costs show only in the times of answers.
//!    Another program's costs are those of its processes, and of the same threads as for the kernel's engine,
//!    which the program may use.
//! 4. Our own engine cannot answer where the kernel's RDS listens, in any namespace. So the rows of the
//!    kernel's engine and of other programs come after all others, and the rows of TCP take turns with them
//!    once more: a ratio always refers to rows of the same rounds.

mod exchange;
mod far;
mod framed;
mod job;
mod kernel;
mod own;
mod program;
mod timeout;
mod verdict;

use std::{fs, time::Duration};

use clap::Args;
use handoff::Engine as Sends;
use handoff_command::named::parse_named;
use handoff_command::{Context, Failure};
use handoff_rds::kernel::Mode;

use self::{
    exchange::{Exchange, Way},
    far::Far,
    framed::Tcp,
    job::{JOBS, Job, Op, UNDER_WAY},
    kernel::Kernel,
    own::Own,
    program::{Program, Sending},
};
use crate::{
    lab,
    measure::{Engine, Measured, Plan, Subject},
    network::{
        pattern::Pattern,
        testbed::{Joint, Load, Testbed},
    },
    peer::{self, Figure, FigureOptions, ProgramOptions},
    processor::Pinned,
    report::{self, Report, Row},
    run::{self, Bench, Found, RunOptions, Slots},
    tasks,
};

/// The load of the network: frames arrive as they were sent.
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

A peer is another program that sends, and has a row for each load of stream. In its command {addr}
and {port} are where it sends to, {from_addr} is its own address, {bytes} the length of a message,
{depth} the number of messages under way for each of {sockets} sockets, {seconds} how long it must
send, {cpu} its processor. Its receiver has the same but {seconds}, and lives as long as a slot. Its
messages are by its own figure: its rate, for {seconds} if it is given them. Its costs are those of
its processes from start to end, of its NIC and of the kernel's workers, but not of its receiver. So
a program that works before or after it sends had better print a total. It takes turns with the rows
of the kernel's engine; in the lab the kernel's RDS is loaded then, and listens at port 16385 of TCP.

Between veth devices nothing goes without a copy: the kernel copies on delivery what our engine
lends (copied), and the receiver shares what the kernel's engine lends until it has read it
(shares pages).

Examples:
  handoff bench rds --quick --lab
  handoff bench rds --quick
  handoff bench rds --only '^stream 64 ' --time 1 --json-file before.json
  handoff bench rds --compare before.json
  handoff bench rds --quick --only '^stream 64k .*(tcp|iperf3)' \\
      --peer 'iperf3=exec iperf3 -c {addr} -p {port} -l {bytes} -t {seconds}' \\
      --peer-receiver 'iperf3=exec iperf3 -s -p {port}'

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

    /// The peers: other programs to compare with.
    #[command(flatten)]
    pub programs: ProgramOptions,

    /// Run a command that receives at the other end as long as this peer sends
    #[arg(long, value_name = "NAME=COMMAND", value_parser = parse_named)]
    pub peer_receiver: Vec<(String, String)>,

    /// How the peers' figures are read.
    #[command(flatten)]
    pub figures: FigureOptions,
}

/// Runs the bench.
///
/// # Errors
///
/// See [`Failure`].
pub fn run(args: &RdsArgs, context: &Context) -> Result<Found, Failure> {
    run::run(&Rds::new(args)?, context)
}

/// The bench with its parsed arguments.
struct Rds<'a> {
    args: &'a RdsArgs,
    /// How the figure of each of `args.programs.peer` is read, in the same order.
    figures: Vec<Figure>,
}

impl<'a> Rds<'a> {
    fn new(args: &'a RdsArgs) -> Result<Self, Failure> {
        args.programs.must_have("--peer-receiver", &args.peer_receiver)?;
        Ok(Self { args, figures: args.figures.of(&args.programs)? })
    }
}

impl Bench for Rds<'_> {
    const NAME: &'static str = report::RDS;

    fn options(&self) -> &RunOptions {
        &self.args.run
    }

    fn arguments(&self) -> Vec<String> {
        let args = self.args;
        let receivers = peer::named("peer-receiver", &args.peer_receiver);
        receivers.chain(args.figures.arguments()).collect()
    }

    fn programs(&self) -> Option<&ProgramOptions> {
        Some(&self.args.programs)
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

    fn measure(&self, context: &Context) -> Result<(Measured, String), Failure> {
        let pinned = Pinned::to(self.args.cpu).map_err(Failure::Usage)?;
        let mut testbed = Testbed::new(LOAD, &Pattern::new(), pinned.others())?;
        testbed.receive_at_both_ends()?;
        // Only one of the engines can use an address, so the rows are measured in two parts.
        let run = |subjects: &[Subject<'_>]| {
            let plan = self.plan(subjects.len());
            let plan = Plan { peer_slot: plan.slot.max(Duration::from_secs(1)), ..plan };
            self.measure_rows(subjects, plan, &context.stop)
        };
        let is_last = |subject: &Subject<'_>| comes_last(&subject.engine, subject.peer);
        let mut first = self.subjects(&testbed, pinned.cpu());
        let mut second = self.subjects(&testbed, pinned.cpu());
        first.retain(|subject| !is_last(subject));
        second.retain(|subject| is_last(subject) || subject.baseline);
        let mut measured = run(&first)?;
        if second.iter().any(is_last) {
            if lab::is_guest() {
                prepare_guest()?;
            }
            let theirs = run(&second)?;
            let rows = theirs.rows.into_iter().filter(|row| comes_last(&row.engine, row.peer));
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

    fn conditions(&self, report: &Report) -> String {
        let peers = match report.rows.iter().any(|row| row.peer) {
            true => ", of other programs that of all their processes, with the same",
            false => "",
        };
        format!(
            "CPU is that of the sending thread and its NIC's NAPI, for rds-kernel with the kernel's workers{peers}\n"
        )
    }

    fn verdict(&self, report: &Report) -> String {
        verdict::verdict(report)
    }
}

/// Loads the kernel's RDS, and makes it accept messages of 1 MiB.
fn prepare_guest() -> Result<(), Failure> {
    lab::load_in_guest("rds_tcp")?;
    for name in ["wmem_max", "rmem_max"] {
        let path = format!("/proc/sys/net/core/{name}");
        fs::write(&path, UNDER_WAY.to_string())
            .map_err(|error| Failure::Failed(format!("{path}: {error}")))?;
    }
    Ok(())
}

/// Whether a row is measured in the second part.
fn comes_last(engine: &str, peer: bool) -> bool {
    peer || engine.starts_with(KERNEL)
}

/// A row's position in the table, as a key to sort by.
fn place(row: &Row) -> (usize, bool) {
    let job = |job: &Job| row.name.starts_with(&job.name(""));
    (JOBS.iter().position(job).unwrap_or(JOBS.len()), comes_last(&row.engine, row.peer))
}

impl Rds<'_> {
    /// All rows that match `--only`, and their baselines.
    fn subjects<'a>(&'a self, testbed: &'a Testbed, cpu: usize) -> Vec<Subject<'a>> {
        let all = JOBS
            .into_iter()
            .flat_map(|job| ours(testbed, job).into_iter().chain(self.peers(testbed, job, cpu)));
        let mut subjects = all.collect();
        self.args.run.keep_wanted(&mut subjects);
        subjects
    }

    /// The rows of other programs, for a load that they can have.
    fn peers<'a>(
        &'a self,
        testbed: &'a Testbed,
        job: Job,
        cpu: usize,
    ) -> impl Iterator<Item = Subject<'a>> {
        let RdsArgs { programs, peer_receiver, .. } = self.args;
        let peers = programs.peer.iter().zip(&self.figures).filter(move |_| job.op == Op::Stream);
        peers.map(move |((name, command), figure)| {
            let receiver = peer::value_of(name, peer_receiver);
            let sending = Sending { command, figure, receiver, cpu };
            let make = move || Program::new(testbed, job, sending);
            Subject { peer: true, ..subject(testbed, job, name, name, make) }
        })
    }
}

/// The rows of a load that need no other program.
fn ours(testbed: &Testbed, job: Job) -> [Subject<'_>; 5] {
    let lent = |engine: &str, veth: &str| match testbed.joint() {
        Joint::Wire => format!("{engine} lent"),
        Joint::Veth | Joint::VirtioNet => format!("{engine} lent, {veth}"),
    };
    let own = |sending| move || Own::new(testbed, job, sending);
    let kernel = |mode| move || Kernel::new(testbed, job, mode);
    [
        way(testbed, job, TCP, TCP, move || Tcp::new(testbed, job)).baseline(),
        way(testbed, job, OWN, &lent(OWN, "copied"), own(Sends::UringZc)),
        way(testbed, job, OWN, &format!("{OWN} copy"), own(Sends::Copy)),
        way(testbed, job, KERNEL, &lent(KERNEL, "shares pages"), kernel(Mode::Lend)),
        way(testbed, job, KERNEL, &format!("{KERNEL} copy"), kernel(Mode::Copy)),
    ]
}

fn way<'a, W: Way + 'a>(
    testbed: &'a Testbed,
    job: Job,
    engine: &str,
    name: &str,
    make: impl Fn() -> Result<(W, Far), String> + 'a,
) -> Subject<'a> {
    let of_kernel = engine == KERNEL;
    subject(testbed, job, engine, name, move || {
        let made = make()?;
        let workers = if of_kernel { tasks::workers() } else { Vec::new() };
        Ok(Exchange::new(testbed, job, made, workers))
    })
}

fn subject<'a, E: Engine + 'a>(
    testbed: &'a Testbed,
    job: Job,
    engine: &str,
    name: &str,
    make: impl Fn() -> Result<E, String> + 'a,
) -> Subject<'a> {
    Subject::new(job.name(name), engine, job.config(testbed), make)
}

#[cfg(test)]
mod tests;
