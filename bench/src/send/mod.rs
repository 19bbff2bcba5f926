//! `handoff bench send` measures how payload goes from user memory to a socket, copied and lent.
//!
//! Over UDP the datagrams go to a device that ends them untouched, so only the sending side is measured.
//! Over TCP a receiver must acknowledge, on the same host, and the kernel copies lent memory on its way
//! into that host: zero copy gains nothing there, and the table says so.

mod bulk_rows;
mod copy;
mod fan_out;
mod handoff_rows;
mod msg_zerocopy;
mod payload;
mod rows;
mod segments;
mod testbed;

use std::{collections::BTreeSet, fmt::Write as _, time::Duration};

use clap::{Args, ValueEnum};
use handoff_command::quantity::{format_size, parse_count, parse_size};
use handoff_command::{Context, Failure};

use self::testbed::Testbed;
use crate::{
    failure::of_testbed,
    measure::{self, Measured, Plan},
    peer::{Figure, FigureOptions, ProgramOptions},
    processor::Pinned,
    report::{self, Report},
    run::{self, Bench, Found, RunOptions, Slots},
    user_share, witness,
};

/// Payload bytes of the largest datagram that the kernel's selftest msg_zerocopy sends.
const DEFAULT_BYTES: u64 = 65_435;
/// Bytes of one such message: the selftest sends the same memory over and over.
const DEFAULT_WORKING_SET: u64 = 64 << 10;
/// Payload bytes of the largest datagram: 65,535 less the headers of IPv4 and UDP.
const UDP_MAX: u64 = 65_507;
const TCP_MAX: u64 = 16 << 20;
/// If the working set has more bytes, engines are made one at a time.
const KEPT_MEMORY: u64 = 16 << 20;

const EXAMPLES: &str = "\
Rows (the ratio is to msg-zerocopy-seed of the same round):
  copy                plain send
  msg-zerocopy-seed   the loop of the kernel's selftest msg_zerocopy
  msg-zerocopy-tuned  MSG_ZEROCOPY with as few system calls as it takes
  uring-zc[-fixed]    io_uring zero copy, from plain or from registered memory;
                      batch: requests per system call;
                      flush=yes: each send is returned by itself; flush=no: 32 share one return;
                      bulk: through a lane of the socket, each returned by itself;
                      lends up to 64 messages at a time, each its own memory

With --fan-out, each message goes to N connected sockets (the ratio is to copy of the same round):
  copy                sendmsg of one buffer to each
  uring-zc[-fixed]    one frozen buffer lent to all

With --segment, each message goes as datagrams of this many bytes (the ratio is to copy gso):
  copy sendmmsg       one entry of sendmmsg for each datagram
  copy gso            sendmsg with UDP_SEGMENT
  uring-zc[-fixed]    one lent buffer, by SENDMSG_ZC with UDP_SEGMENT

A peer is another program that sends. In its command {addr}, {port}, {bytes}, {seconds} and {cpu}
are replaced.

Examples:
  handoff bench send --quick
  handoff bench send --quick --lab
  handoff bench send --sizes 1k,4k,16k,64k --only '^copy|tuned$|batch=8$'
  handoff bench send --sockets 1,10,100,1k,10k --only 'fixed.*batch=1( |$)'
  handoff bench send --fan-out 1,8,64
  handoff bench send --segment 1200 --sizes 16k,60000
  handoff bench send --json-file before.json
  handoff bench send --compare before.json
  handoff bench send --peer 'liburing=send-zerocopy -4 -D {addr} -s {bytes} -t {seconds} -C {cpu} \\
      -n 8 -d udp' --peer-regex 'liburing=MB/s=(\\d+)' --peer-unit liburing=MiB/s
  handoff bench send --peer 'selftest=msg_zerocopy -4 -z -D {addr} -s {bytes} -t {seconds} \\
      -C {cpu} udp' --peer-regex 'selftest=\\((\\d+) MB\\)' --peer-unit selftest=MiB
  handoff bench send --quick --lab --only 'batch=32' --program ./send-zc \\
      --peer 'lib32=send-zc -4 -D {addr} -p {port} -s {bytes} -t {seconds} -C {cpu} \\
      -n 32 -b 1 -d udp'

Needs root, or a kernel that lets every user make user namespaces.";

/// A transport protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Protocol {
    /// Datagrams to a device that ends them
    Udp,
    /// A stream to a receiver over veth, where the kernel copies
    Tcp,
}

impl Protocol {
    fn name(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Tcp => "tcp",
        }
    }
}

/// Options of `handoff bench send`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct SendArgs {
    /// Payload bytes per message; several sizes show where zero copy begins to pay. Over UDP 64k means
    /// 65435, which fits into a datagram
    #[arg(long, value_name = "SIZES", value_delimiter = ',', value_parser = parse_size,
          default_values_t = [DEFAULT_BYTES])]
    pub sizes: Vec<u64>,

    /// Transport protocol
    #[arg(long, value_enum, default_value_t = Protocol::Udp)]
    pub proto: Protocol,

    /// Send each message to N connected sockets, and compare with copying to them
    #[arg(long, value_name = "N", value_delimiter = ',', conflicts_with = "segment",
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub fan_out: Vec<u32>,

    /// Send each message as datagrams of this many bytes, and compare with copying
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(1..=65_507))]
    pub segment: Option<u16>,

    /// Memory that the messages are taken from in turns; if it fits into the caches, copying looks cheap
    #[arg(long, value_name = "SIZE", value_parser = parse_size,
          default_value_t = DEFAULT_WORKING_SET)]
    pub working_set: u64,

    /// Sockets that take turns, on one driver; several counts show what more sockets cost
    #[arg(long, value_name = "COUNTS", value_delimiter = ',', value_parser = parse_count,
          default_values_t = [1])]
    pub sockets: Vec<u32>,

    /// Options of every bench.
    #[command(flatten)]
    pub run: RunOptions,

    /// Processor to send from [default: the last one]
    #[arg(long, value_name = "N", conflicts_with = "lab")]
    pub cpu: Option<usize>,

    /// The peers: other programs to compare with.
    #[command(flatten)]
    pub programs: ProgramOptions,

    /// How the peers' figures are read.
    #[command(flatten)]
    pub figures: FigureOptions,
}

/// Runs the bench.
///
/// # Errors
///
/// See [`Failure`].
pub fn run(args: &SendArgs, context: &Context) -> Result<Found, Failure> {
    let bench = Send { args, sizes: sizes(args)?, figures: args.figures.of(&args.programs)? };
    run::run(&bench, context)
}

/// The bench with its parsed arguments.
struct Send<'a> {
    args: &'a SendArgs,
    sizes: Vec<u64>,
    /// How the figure of each of `args.programs.peer` is read, in the same order.
    figures: Vec<Figure>,
}

impl Bench for Send<'_> {
    const NAME: &'static str = report::SEND;

    fn options(&self) -> &RunOptions {
        &self.args.run
    }

    fn arguments(&self) -> Vec<String> {
        let args = self.args;
        [format!("--proto={}", args.proto.name()), format!("--working-set={}", args.working_set)]
            .into_iter()
            .chain(run::list("sizes", &args.sizes))
            .chain(run::list("sockets", &args.sockets))
            .chain(run::list("fan-out", &args.fan_out))
            .chain(args.segment.map(|bytes| format!("--segment={bytes}")))
            .chain(args.figures.arguments())
            .collect()
    }

    fn programs(&self) -> Option<&ProgramOptions> {
        Some(&self.args.programs)
    }

    fn slots(&self) -> Slots {
        Slots {
            whole: (200, 15),
            quick: (120, 7),
            counted: (100, 5),
            quick_counted: (20, 3),
            quick_total: Some(Duration::from_secs(20)),
        }
    }

    fn measure(&self, context: &Context) -> Result<(Measured, String), Failure> {
        let args = self.args;
        let testbed = Testbed::new(args.proto).map_err(of_testbed)?;
        // The thread is pinned only now, so that the far end's threads may run on any processor.
        let pinned = Pinned::to(args.cpu).map_err(Failure::Usage)?;
        let stock = rows::Stock::new(args.working_set);
        let mut subjects = rows::subjects(args, &self.sizes, &testbed, &stock);
        let ours = subjects.len();
        subjects.extend(rows::peers(args, &self.sizes, &testbed, &self.figures, pinned.cpu()));
        let plan = self.plan(ours);
        let plan = Plan {
            peer_slot: plan.slot.max(Duration::from_secs(1)),
            keep_engines: args.working_set <= KEPT_MEMORY,
            ..plan
        };
        let mut measured =
            measure::measure(&subjects, plan, context.stop.flag(), &|| testbed.far_end_cpu())
                .ok_or_else(|| context.stop.failure())?;
        if args.run.meter {
            witness::attest(&subjects, &mut measured.rows, true, &context.stop)?;
        }
        user_share::attest(&subjects, &mut measured.rows, context.stop.flag());
        let busy = measured.busy("the processor", "figures are low and spread wide");
        let remarks = format!("on processor {}\n{busy}", pinned.cpu());
        Ok((measured, remarks))
    }

    fn subject(&self, report: &Report) -> String {
        let config = report.rows.first().map(|row| row.config.clone()).unwrap_or_default();
        format!(
            "send over {} to the device {} (MTU {}), working set {}",
            self.args.proto.name(),
            config.target.unwrap_or_default(),
            config.mtu.unwrap_or_default(),
            format_size(self.args.working_set),
        )
    }

    fn conditions(&self, report: &Report) -> String {
        let mut text = String::new();
        let sizes: BTreeSet<_> = report.rows.iter().map(|row| row.config.bytes).collect();
        if let (1, Some(&Some(bytes))) = (sizes.len(), sizes.first()) {
            let _ = writeln!(text, "{bytes} payload bytes per message");
        }
        if self.args.proto == Protocol::Tcp {
            text.push_str(
                "the receiver is on this host, so the kernel copies what was lent when it arrives \
                 there\n",
            );
        }
        text
    }

    /// Compares the best of our rows with both kinds of MSG_ZEROCOPY and with peers.
    fn verdict(&self, report: &Report) -> String {
        let mut text = String::new();
        let sizes: BTreeSet<_> = report.rows.iter().map(|row| row.config.bytes).collect();
        for bytes in sizes {
            let rows = || report.rows.iter().filter(|row| row.config.bytes == bytes);
            let ours = rows().filter(|row| row.engine.starts_with("uring-"));
            let Some((best, speed)) = ours
                .filter_map(|row| Some((row, row.ratio?)))
                .max_by(|(_, one), (_, other)| one.total_cmp(other))
            else {
                continue;
            };
            let _ = write!(text, "\nbest at {} bytes: {}", bytes.unwrap_or(0), best.name);
            for other in rows().filter(|row| row.engine.starts_with("msg-zerocopy") || row.peer) {
                if let Some(theirs) = other.ratio.filter(|&ratio| ratio > 0.0) {
                    let _ = write!(text, ", {:.2} x {}", speed / theirs, other.name);
                }
            }
        }
        text
    }
}

fn sizes(args: &SendArgs) -> Result<Vec<u64>, Failure> {
    if let Some(segment) = args.segment {
        if args.proto != Protocol::Udp {
            return Err(Failure::Usage("--segment: only UDP has datagrams".into()));
        }
        let most = segments::MOST * u64::from(segment);
        if let Some(bytes) = args.sizes.iter().find(|bytes| **bytes > most) {
            return Err(Failure::Usage(format!(
                "--sizes: {bytes} bytes are more than {} datagrams of {segment}, which is what the kernel \
                 makes of one message",
                segments::MOST
            )));
        }
    }
    let (limit, why) = match args.proto {
        Protocol::Udp => (UDP_MAX, "the largest UDP payload over IPv4"),
        Protocol::Tcp => (TCP_MAX, "the largest message of this bench"),
    };
    let fitting = |&bytes: &u64| match (args.proto, bytes) {
        (Protocol::Udp, 65_536) => Ok(DEFAULT_BYTES),
        (_, bytes) if bytes > limit => {
            Err(Failure::Usage(format!("--sizes: {bytes} bytes is more than {limit}, {why}")))
        }
        (_, bytes) => Ok(bytes),
    };
    args.sizes.iter().map(fitting).collect()
}

#[cfg(test)]
mod tests;
