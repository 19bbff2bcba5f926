//! `handoff bench send`: payload from user memory to a socket, copied and lent.
//!
//! Over UDP the datagrams go to a device that ends them untouched, so that the sending side alone
//! is measured. Over TCP a receiver has to acknowledge, on the same host, and the kernel copies
//! lent memory on its way into that host: there zero copy has nothing to win, and the table says so.

mod bed;
mod copy;
mod handoff_rows;
mod msg_zerocopy;
mod payload;
mod rows;

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    fs,
    path::PathBuf,
    time::{Duration, SystemTime},
};

use clap::{Args, ValueEnum};
use handoff_lab::instructions;
use regex::Regex;

use self::bed::Bed;
use crate::{
    command::{BenchError, Context},
    lab,
    machine::Machine,
    measure::{self, Plan},
    peer::{Figure, parse_named},
    processor::Pinned,
    quantity::{format_size, parse_size},
    report::{Report, Row},
    table, witness,
};

/// The largest datagram that the kernel's selftest msg_zerocopy sends.
const DEFAULT_BYTES: u64 = 65_435;
/// One message of that size, as the selftest sends it over and over.
const DEFAULT_WORKING_SET: u64 = 64 << 10;
/// 65,535 less the headers of IPv4 and UDP.
const UDP_MAX: u64 = 65_507;
const TCP_MAX: u64 = 16 << 20;
/// Engines with more than this are made one at a time.
const KEPT_MEMORY: u64 = 16 << 20;

/// Share of the time that others may hold the processor for before the table speaks of it.
const BUSY: f64 = 0.02;

const QUICK_TOTAL: Duration = Duration::from_secs(20);
const QUICK_SLOT: Duration = Duration::from_millis(120);
const QUICK_ROUNDS_MAX: u32 = 7;
const FULL: (Duration, u32) = (Duration::from_millis(200), 15);
/// Where instructions are counted, slots differ by little more than a timer interrupt.
const COUNTED: (Duration, u32) = (Duration::from_millis(100), 5);
const QUICK_COUNTED: (Duration, u32) = (Duration::from_millis(20), 3);

const EXAMPLES: &str = "\
Rows (the ratio is to msg-zerocopy-seed of the same round):
  copy                plain send
  msg-zerocopy-seed   the loop of the kernel's selftest msg_zerocopy
  msg-zerocopy-tuned  MSG_ZEROCOPY with as few system calls as it takes
  uring-zc[-fixed]    io_uring zero copy, from plain or from registered memory;
                      batch: requests per system call;
                      flush=yes: each send is returned by itself; flush=no: 32 share one return;
                      lends up to 64 messages at a time, each its own memory

Examples:
  handoff bench send --quick
  handoff bench send --quick --lab
  handoff bench send --sizes 1k,4k,16k,64k --only '^copy|tuned$|batch=8$'
  handoff bench send --json-file before.json
  handoff bench send --compare before.json
  handoff bench send --peer 'liburing=send-zerocopy -4 -D {addr} -s {bytes} -t {seconds} -C {cpu} \\
      -n 8 -d udp' --peer-regex 'liburing=MB/s=(\\d+)' --peer-unit liburing=MiB/s
  handoff bench send --peer 'selftest=msg_zerocopy -4 -z -D {addr} -s {bytes} -t {seconds} \\
      -C {cpu} udp' --peer-regex 'selftest=\\((\\d+) MB\\)' --peer-unit selftest=MiB

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
    /// Payload bytes per message; several draw the curve where zero copy begins to pay. 64k over
    /// UDP means 65435, so that it fits into a datagram
    #[arg(long, value_name = "SIZES", value_delimiter = ',', value_parser = parse_size,
          default_values_t = [DEFAULT_BYTES])]
    pub sizes: Vec<u64>,

    /// Transport protocol
    #[arg(long, value_enum, default_value_t = Protocol::Udp)]
    pub proto: Protocol,

    /// Memory that the messages are taken from in turns; small enough for the caches, it makes
    /// copying look cheap
    #[arg(long, value_name = "SIZE", value_parser = parse_size,
          default_value_t = DEFAULT_WORKING_SET)]
    pub working_set: u64,

    /// Only rows whose name matches, and the row that ratios refer to
    #[arg(long, value_name = "REGEX")]
    pub only: Option<Regex>,

    /// Length of one slot in seconds [default: 0.2, in the lab 0.1]
    #[arg(long, value_name = "SECONDS", value_parser = parse_slot)]
    pub time: Option<f64>,

    /// How many slots each row gets [default: 15, in the lab 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub rounds: Option<u32>,

    /// Ends in under 30 seconds (and the time of the peers), in the lab in 3 minutes, with wider
    /// spread
    #[arg(long, conflicts_with_all = ["time", "rounds"])]
    pub quick: bool,

    /// Run in the lab's guest: instructions are counted instead of time, on a stock kernel, and the
    /// copy meter stands beside. A --time of one second is 10^9 instructions
    #[arg(long, conflicts_with_all = ["cpu", "peer"])]
    pub lab: bool,

    /// The processor to send from [default: the last one]
    #[arg(long, value_name = "N")]
    pub cpu: Option<usize>,

    /// Another program to run in turns with the rows; {addr}, {port}, {bytes}, {seconds} and
    /// {cpu} in the command are replaced
    #[arg(long, value_name = "NAME=COMMAND", value_parser = parse_named)]
    pub peer: Vec<(String, String)>,

    /// Finds a peer's figure in what it prints: a group for the number, and one for its unit
    /// [default: the last rate]
    #[arg(long, value_name = "NAME=REGEX", value_parser = parse_named)]
    pub peer_regex: Vec<(String, String)>,

    /// What a peer's figure is counted in, if not in what it prints: MB/s, MiB/s, Gbits/s; without
    /// /s it is a total
    #[arg(long, value_name = "NAME=UNIT", value_parser = parse_named)]
    pub peer_unit: Vec<(String, String)>,

    /// Also write the JSON to this file
    #[arg(long, value_name = "FILE")]
    pub json_file: Option<PathBuf>,

    /// Show each ratio beside that in the JSON of an earlier run
    #[arg(long, value_name = "FILE")]
    pub compare: Option<PathBuf>,
}

fn parse_slot(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("'{text}' is not a number"))?;
    if (0.01..=600.0).contains(&seconds) {
        Ok(seconds)
    } else {
        Err("a slot is 0.01 to 600 seconds long".into())
    }
}

/// Runs the bench.
///
/// # Errors
///
/// See [`BenchError`].
pub fn run(args: &SendArgs, context: &mut Context<'_>) -> Result<(), BenchError> {
    let sizes = sizes(args)?;
    let figures = peer_figures(args)?;
    let earlier = args.compare.as_deref().map(read_report).transpose()?;
    if args.lab {
        let (report, failed) = lab::run(&arguments_in_guest(args), context)?;
        show(args, &report, earlier.as_ref(), "", context)?;
        return match failed {
            None => Ok(()),
            Some(code) => Err(BenchError::Failed(format!(
                "the bench in the guest ended with exit code {code}"
            ))),
        };
    }

    let machine = Machine::this();
    let bed = Bed::new(args.proto).map_err(|error| match error.is_unavailable() {
        true => BenchError::NotPossible(error.to_string()),
        false => BenchError::Failed(error.to_string()),
    })?;
    // Only now: the threads of the far end stay free to run elsewhere.
    let pinned = Pinned::to(args.cpu).map_err(BenchError::Usage)?;
    let stock = rows::Stock::new(args.working_set);
    let mut subjects = rows::subjects(args, &sizes, &bed, &stock);
    subjects.extend(rows::peers(args, &sizes, &bed, &figures, pinned.cpu()));
    let rows = subjects.iter().filter(|subject| !subject.peer).count();
    let plan = plan(args, rows, instructions::counting());
    let date = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    let mut measured = measure::measure(&subjects, plan, context.stop, &|| bed.far_end_cpu())
        .ok_or(BenchError::Stopped)?;
    if witness::is_at_hand()
        && let Err(reason) = witness::attest(&subjects, &mut measured.rows, context.stop)
    {
        eprintln!("handoff: no copy witness beside these rows: {reason}");
    }
    let (failed, kept_waiting) = (measured.failed, measured.kept_waiting);
    let report = report(date, machine, measured.rows);

    let mut remarks = format!("on processor {}\n", pinned.cpu());
    if kept_waiting > BUSY {
        let percent = kept_waiting * 100.0;
        let _ = writeln!(
            remarks,
            "busy machine: other programs held the processor for {percent:.0} % of the time, \
             which does not count, but figures are low and spread wide",
        );
    }
    show(args, &report, earlier.as_ref(), &remarks, context)?;
    if failed.is_empty() {
        Ok(())
    } else {
        Err(BenchError::Failed(format!("failed while running: {}", failed.join(", "))))
    }
}

/// What the guest's bench is to do: the same, in JSON and without the user's files.
fn arguments_in_guest(args: &SendArgs) -> Vec<String> {
    let sizes: Vec<String> = args.sizes.iter().map(u64::to_string).collect();
    let mut arguments = vec!["bench".to_owned(), "send".to_owned(), "--json".to_owned()];
    let mut add = |name: &str, value: String| arguments.push(format!("--{name}={value}"));
    add("sizes", sizes.join(","));
    add("proto", args.proto.name().to_owned());
    add("working-set", args.working_set.to_string());
    if let Some(only) = &args.only {
        add("only", only.to_string());
    }
    if let Some(time) = args.time {
        add("time", time.to_string());
    }
    if let Some(rounds) = args.rounds {
        add("rounds", rounds.to_string());
    }
    if args.quick {
        arguments.push("--quick".to_owned());
    }
    arguments
}

/// Writes the table, or the JSON, to where it is wanted.
fn show(
    args: &SendArgs,
    report: &Report,
    earlier: Option<&Report>,
    remarks: &str,
    context: &mut Context<'_>,
) -> Result<(), BenchError> {
    let json = serde_json::to_string_pretty(report)
        .map_err(|error| BenchError::Failed(format!("the report cannot be written: {error}")))?;
    if let Some(path) = &args.json_file {
        fs::write(path, format!("{json}\n")).map_err(|error| {
            BenchError::Failed(format!("{} cannot be written: {error}", path.display()))
        })?;
    }
    let text = if context.json {
        json
    } else {
        let conditions = conditions(args, report);
        let table = table::draw(report, earlier);
        format!("{conditions}{remarks}\n{table}{}", best(report))
    };
    writeln!(context.out, "{text}").map_err(BenchError::Output)
}

fn report(date: String, machine: Machine, mut rows: Vec<Row>) -> Report {
    let emulated = machine.is_emulated();
    for row in &mut rows {
        if instructions::counting() {
            row.count_instructions();
        } else if emulated {
            // Times under emulation mean nothing, and so do their ratios.
            (row.ratio, row.ratio_min, row.ratio_max) = (None, None, None);
        }
    }
    let version = env!("CARGO_PKG_VERSION").to_owned();
    Report { bench: "send".into(), version, date, machine, emulated, rows }
}

fn sizes(args: &SendArgs) -> Result<Vec<u64>, BenchError> {
    let (limit, why) = match args.proto {
        Protocol::Udp => (UDP_MAX, "the largest UDP payload over IPv4"),
        Protocol::Tcp => (TCP_MAX, "the largest message of this bench"),
    };
    let fitting = |&bytes: &u64| match (args.proto, bytes) {
        (Protocol::Udp, 65_536) => Ok(DEFAULT_BYTES),
        (_, bytes) if bytes > limit => {
            Err(BenchError::Usage(format!("--sizes: {bytes} bytes is more than {limit}, {why}")))
        }
        (_, bytes) => Ok(bytes),
    };
    args.sizes.iter().map(fitting).collect()
}

fn peer_figures(args: &SendArgs) -> Result<Vec<Figure>, BenchError> {
    for (option, list) in [("--peer-regex", &args.peer_regex), ("--peer-unit", &args.peer_unit)] {
        if let Some((name, _)) =
            list.iter().find(|(name, _)| !args.peer.iter().any(|(peer, _)| peer == name))
        {
            return Err(BenchError::Usage(format!("{option}: no peer is called '{name}'")));
        }
    }
    let given = |list: &'_ [(String, String)], name: &str| {
        list.iter().find(|(of, _)| of == name).map(|(_, value)| value.clone())
    };
    args.peer
        .iter()
        .map(|(name, _)| {
            let (pattern, unit) = (given(&args.peer_regex, name), given(&args.peer_unit, name));
            Figure::new(pattern.as_deref(), unit.as_deref())
                .map_err(|error| BenchError::Usage(format!("peer {name}: {error}")))
        })
        .collect()
}

fn read_report(path: &std::path::Path) -> Result<Report, BenchError> {
    let usage = |error: String| BenchError::Usage(format!("{}: {error}", path.display()));
    let text = fs::read_to_string(path).map_err(|error| usage(error.to_string()))?;
    serde_json::from_str(&text)
        .map_err(|error| usage(format!("not the JSON of a bench of this version: {error}")))
}

/// For so many `rows`, peers apart; `counted`: where instructions are, not time.
fn plan(args: &SendArgs, rows: usize, counted: bool) -> Plan {
    let keep_engines = args.working_set <= KEPT_MEMORY;
    let (slot, rounds) = match (args.quick, counted) {
        (false, false) => FULL,
        (false, true) => COUNTED,
        (true, true) => QUICK_COUNTED,
        (true, false) => {
            let rounds = QUICK_TOTAL.as_millis() / (QUICK_SLOT.as_millis() * rows.max(1) as u128);
            (QUICK_SLOT, (rounds as u32).clamp(1, QUICK_ROUNDS_MAX))
        }
    };
    let slot = args.time.map_or(slot, Duration::from_secs_f64);
    let peer_slot = slot.max(Duration::from_secs(1));
    Plan { slot, peer_slot, rounds: args.rounds.unwrap_or(rounds), keep_engines }
}

/// What the figures were measured under, above the table.
fn conditions(args: &SendArgs, report: &Report) -> String {
    let machine = &report.machine;
    let counted = report.counts_instructions();
    let rows: Vec<&Row> = report.rows.iter().filter(|row| !row.peer).collect();
    let plan = plan(args, rows.len(), counted);
    let config = rows.first().map(|row| row.config.clone()).unwrap_or_default();
    let mut text = format!(
        "send over {} to the device {} (MTU {}), working set {}, median of {} slots of {} {}\n",
        args.proto.name(),
        config.target.unwrap_or_default(),
        config.mtu.unwrap_or_default(),
        format_size(args.working_set),
        plan.rounds,
        plan.slot.as_millis(),
        if counted { "million instructions" } else { "ms" },
    );
    let sizes: BTreeSet<_> = rows.iter().map(|row| row.config.bytes).collect();
    if let (1, Some(&Some(bytes))) = (sizes.len(), sizes.first()) {
        let _ = writeln!(text, "{bytes} payload bytes per message");
    }
    let _ = writeln!(
        text,
        "{machine}{}",
        match (report.emulated, counted) {
            (false, _) => "",
            (true, false) => ", emulated: times mean nothing",
            (true, true) => ", emulated: figures and ratios are of instructions, not of time",
        },
    );
    if args.proto == Protocol::Tcp {
        text.push_str(
            "the receiver is on this host, so the kernel copies what was lent when it arrives there\n",
        );
    }
    text
}

/// The best of our rows against both kinds of MSG_ZEROCOPY.
fn best(report: &Report) -> String {
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

#[cfg(test)]
mod tests;
