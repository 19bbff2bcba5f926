//! `handoff bench recv` measures how each engine receives one connection from one sender.
//!
//! Contracts:
//!
//! 1. Each row has a connection of its own: over the network of its load, or over a NIC of this host as it is.
//!    A thread sends without copying, and another thread receives. All rows hand received bytes to the same
//!    function, which compares them with what was sent, or only counts them.
//! 2. A row's costs are the receiver's: those of its thread, and of its NIC's threads if there are any. No
//!    engine is charged for the sender.
//! 3. Another program has a row for each network, without comparing bytes. Its costs are those of all its
//!    threads, and of the NIC's threads.
//! 4. With a NIC of this host the sender runs on another host, and the table also shows how busy all processors
//!    were. The NIC is put back however the bench ends.
//! 5. The engine of a software NIC simulates DMA. The bytes that it moves are shown by themselves, and in no
//!    other figure.

mod crowd;
mod epoll;
mod handoff_rows;
mod reception;
mod rows;
pub(crate) mod send_to;
mod served;
mod several;

use std::{fmt::Write as _, slice, sync::Arc, time::Duration};

use clap::Args;
use handoff_command::allow_list::AllowArgs;
use handoff_command::quantity::{parse_count, parse_size};
use handoff_command::{Context, Failure, Stop};

use self::rows::{LOADS, own_queues, subjects};
use crate::{
    measure::{Measured, Plan, Subject},
    network::{
        card::{Card, DEFAULT_PORT},
        pattern::Pattern,
        placement::Placement,
        testbed::{Joint, Testbed},
    },
    peer::ProgramOptions,
    processor::Pinned,
    report::{self, Report},
    run::{self, Bench, Found, RunOptions, Slots},
    statistics::Spread,
    user_share,
};

const EXAMPLES: &str = "\
Rows (the ratio is to epoll, of the same wire and check):
  epoll                 epoll_wait, and recv into one buffer that is used again
  multishot             one request of io_uring into a pool of buffers
  tcp-zerocopy-receive  pages are mapped into a window, what does not fill them is copied
  zcrx-nodev            io_uring's zero-copy receive without a NIC, where the kernel copies
  zcrx                  the same with a NIC, which puts payload into chunks of our memory; a
                        visitor looks at each span, or owns it where the row says so

  sockets=4             four connections: by epoll, and by one queue of the NIC, from which one
                        ring receives (rings=1), or two, each in its own thread (rings=2);
                        --connections has other numbers

Wires: MTU 1500; MTU 4148, whose packets carry 4096 bytes; and MTU 1500 whose frames arrive whole,
as the sender passed them on (gro=yes: hardware GRO in the lab, segmentation offload of veth
elsewhere). With check=yes the receiver compares each byte with what was sent.

In the lab the wire is a pair of software NICs. Costs are instructions of the receiving thread
and of its NIC's NAPI threads. Elsewhere it is a pair of veth devices, over which packets arrive
in the sender's thread: the speed is that of the slower thread, the CPU time the receiver's.

A peer is another program that listens and receives one connection, or as many as --connections
says. It has a row for each wire, with check=no. In its command {addr} and {port} are where it must
listen, {iface} and {queue} the NIC and the queue that {port} is steered to and nobody else uses,
{cpu} its processor. Its costs are those of all its threads and of its NIC. Only the witness
(--meter) knows what it copied.

With --nic the wire is a NIC of this host, with its MTU and its hardware GRO unchanged, and the
sender is another host, where you run --send-to. Queues are set aside as by `handoff nic prepare`,
and put back at the end; after kill -9 by `handoff nic restore`. What the NIC cannot do is a row
with the reason. The columns busy and softirq count all processors of this host, in % of one.
Slots last a second, with --quick a quarter.

With --placement each row is there once for each place of the receiving thread: on the processor
where its queue's interrupt arrives (softirq=same in its name), on another one of the same core,
on another core. No interrupt is moved. If the interrupt may come to several processors, the row
is skipped.

With --sockets the rows are others: this many TCP connections over loopback take turns with messages
of 1 KiB. One thread receives them, by epoll or by one driver into one pool. Each message is one
wait, so a higher cost with many connections is due to their number.

Examples:
  handoff bench recv --quick --lab
  handoff bench recv --quick --lab --sockets 1,10,100,1k,10k
  handoff bench recv --quick
  handoff bench recv --lab --chunks 4k,8k,16k,32k,64k --only 'gro=yes.*zcrx chunk'
  handoff bench recv --only check=no --json-file before.json
  handoff bench recv --compare before.json
  handoff bench recv --nic eth1                    # on the receiving host, which says what to run
  handoff bench recv --send-to 10.0.0.2            # on the sending one
  handoff bench recv --nic eth1 --from 10.0.0.3    # nobody else may send
  handoff bench recv --nic eth1 --placement same,other --only check=yes
  handoff bench recv --nic eth1 --connections 1,2,4,8 --meter --only 'check=no .*(zcrx|liburing)' \\
      --peer 'liburing=exec ./zcrx -p {port} -i {iface} -q {queue}'
  handoff bench recv --quick --lab --program ./zcrx \\
      --peer 'liburing=zcrx -p {port} -i {iface} -q {queue}'

Needs root, or a kernel that lets every user make user namespaces; with --lab, what the lab
needs.";

/// Options of `handoff bench recv`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct RecvArgs {
    /// Options of every bench.
    #[command(flatten)]
    pub run: RunOptions,

    /// Bytes of the chunks that zcrx receives into where frames arrive whole; several sizes show what
    /// large chunks save
    #[arg(long, value_name = "SIZES", value_delimiter = ',', value_parser = parse_chunk,
          default_values_t = [SMALLEST_CHUNK, 64 << 10])]
    pub chunks: Vec<u64>,

    /// Begin with little memory for the NIC, and give it more when chunks run short (Linux 7.3); the JSON has
    /// the steps
    #[arg(long, conflicts_with = "sockets")]
    pub grow: bool,

    /// Processor to receive on [default: the last one]
    #[arg(long, value_name = "N", conflicts_with = "lab")]
    pub cpu: Option<usize>,

    /// Receive on this NIC, from another host
    #[arg(long, value_name = "IFACE")]
    pub nic: Option<String>,

    /// The port where that host connects, with --nic; its data comes to the ports behind it
    #[arg(long, value_name = "PORT", requires = "nic", default_value_t = DEFAULT_PORT,
          value_parser = clap::value_parser!(u16).range(1..))]
    pub port: u16,

    /// Who may connect there, with --nic.
    #[command(flatten)]
    pub allowed: AllowArgs,

    /// Where the receiving thread runs, seen from the processor where a row's packets arrive: a row for
    /// each place, with --nic
    #[arg(long, value_name = "PLACES", value_delimiter = ',', conflicts_with = "cpu")]
    pub placement: Vec<Placement>,

    /// Also receive this many connections by one queue, on every wire; may be a list [default: 4, on one
    /// wire]
    #[arg(long, value_name = "COUNTS", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=64),
          conflicts_with = "sockets")]
    pub connections: Vec<u32>,

    /// Receive messages from this many connections that take turns, over loopback; may be a list
    #[arg(long, value_name = "COUNTS", value_delimiter = ',', value_parser = parse_count,
          conflicts_with_all = ["nic", "placement", "peer"])]
    pub sockets: Vec<u32>,

    /// Send to a host on which this bench runs with --nic, until its table is complete
    #[arg(long, value_name = "ADDRESS[:PORT]", conflicts_with_all = ["nic", "port", "from", "only", "time",
          "rounds", "quick", "meter", "lab", "json_file", "compare", "chunks", "cpu", "placement", "peer",
          "connections", "grow", "sockets"])]
    pub send_to: Option<String>,

    /// The peers: other programs to compare with.
    #[command(flatten)]
    pub programs: ProgramOptions,
}

/// Bytes of the smallest chunk: the kernel's own choice, which a packet of the MTU 4148 fills.
const SMALLEST_CHUNK: u64 = 4 << 10;
/// Bytes of the largest chunk that the software NIC takes.
const LARGEST_CHUNK: u64 = 2 << 20;

fn parse_chunk(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text)?;
    if bytes.is_power_of_two() && (SMALLEST_CHUNK..=LARGEST_CHUNK).contains(&bytes) {
        Ok(bytes)
    } else {
        Err("a chunk is a power of two from 4k to 2m".into())
    }
}

/// Runs the bench.
///
/// # Errors
///
/// See [`Failure`].
pub fn run(args: &RecvArgs, context: &Context) -> Result<Found, Failure> {
    if args.nic.is_none() && !args.placement.is_empty() {
        let cause = "--placement is by the interrupts of a NIC of this host: give --nic IFACE, too";
        return Err(Failure::Usage(cause.to_owned()));
    }
    if args.nic.is_none() && !args.allowed.from.is_empty() {
        let cause = "--from says which hosts may send to a NIC of this host: give --nic IFACE, too";
        return Err(Failure::Usage(cause.to_owned()));
    }
    if args.nic.is_some() && args.run.lab {
        let cause = "--nic is a NIC of this host, and the lab's guest has its own: leave --nic or --lab out";
        return Err(Failure::Usage(cause.to_owned()));
    }
    run::run(args, context)
}

impl Bench for RecvArgs {
    const NAME: &'static str = report::RECV;

    fn options(&self) -> &RunOptions {
        &self.run
    }

    fn arguments(&self) -> Vec<String> {
        let grow = self.grow.then(|| "--grow".to_owned());
        let counts = run::list("connections", &self.connections)
            .into_iter()
            .chain(run::list("sockets", &self.sockets));
        run::list("chunks", &self.chunks).into_iter().chain(grow).chain(counts).collect()
    }

    fn programs(&self) -> Option<&ProgramOptions> {
        Some(&self.programs)
    }

    fn slots(&self) -> Slots {
        // The kernel counts how busy all processors are in ticks of 10 ms, so a slot with a NIC is longer.
        let of_card = self.nic.is_some();
        Slots {
            whole: if of_card { (1_000, 9) } else { (200, 15) },
            quick: (if of_card { 250 } else { 100 }, 7),
            counted: (100, 5),
            quick_counted: (50, 3),
            quick_total: Some(Duration::from_secs(20)),
        }
    }

    fn measure(&self, context: &Context) -> Result<(Measured, String), Failure> {
        let pattern = Pattern::new();
        let (measured, mut remarks) = match &self.nic {
            Some(device) => self.over_card(device, &pattern, context)?,
            None if !self.sockets.is_empty() => self.of_crowds(context)?,
            None => self.over_beds(&pattern, context)?,
        };
        let busy = measured.busy("one of the two processors", "figures are low and spread wide");
        remarks.push_str(&busy);
        Ok((measured, remarks))
    }

    fn subject(&self, report: &Report) -> String {
        let target = report.rows.first().and_then(|row| row.config.target.clone());
        let target = target.unwrap_or_default();
        if !self.sockets.is_empty() {
            return format!("receive messages of many TCP connections over {target}");
        }
        match &self.nic {
            Some(device) => format!("receive one TCP connection on {device} ({target})"),
            None => format!("receive one TCP connection over {target}"),
        }
    }

    fn conditions(&self, report: &Report) -> String {
        if self.nic.is_some() {
            return "CPU is that of the receiving thread; busy and softirq are of all processors of this \
                    host, in % of one\n"
                .to_owned();
        }
        let over = |joint: Joint| {
            report.rows.iter().any(|row| row.config.target.as_deref() == Some(joint.name()))
        };
        let whose = match over(Joint::Wire) {
            true => "CPU and instructions are those of the receiving thread and its NIC's NAPI",
            false => {
                "CPU is that of the receiving thread; packets arrive in the sender's, where the kernel \
                 copies what it lends before anybody receives it, which is in no figure"
            }
        };
        format!("{whose}\n")
    }

    fn verdict(&self, report: &Report) -> String {
        let shares = report.rows.iter().filter_map(|row| row.simulated_dma_share);
        Spread::of(shares).map_or_else(String::new, |shares| {
            format!(
                "\nsimulated DMA: {:.2} bytes for each byte received, moved by the engine of the \
                 software NIC in place of hardware, and in no figure above",
                shares.median,
            )
        })
    }
}

impl RecvArgs {
    /// Measures over software NICs, or veth, for each load. Returns the rows and remarks.
    fn over_beds(
        &self,
        pattern: &Arc<Pattern>,
        context: &Context,
    ) -> Result<(Measured, String), Failure> {
        let pinned = self.pinned()?;
        let cpu = pinned.cpu();
        let testbed = |load| Testbed::new(load, pattern, pinned.others());
        let testbeds = LOADS.into_iter().map(testbed).collect::<Result<Vec<_>, _>>()?;
        let measured =
            self.over(&subjects(self, &testbeds, cpu, context.stop.flag()), &context.stop)?;
        Ok((measured, format!("received on processor {cpu}\n")))
    }

    /// Measures the rows of many connections. Returns the rows and remarks.
    fn of_crowds(&self, context: &Context) -> Result<(Measured, String), Failure> {
        let pinned = self.pinned()?;
        let subjects = crowd::subjects(self, pinned.others());
        let measured = self.over(&subjects, &context.stop)?;
        Ok((measured, format!("received on processor {}\n", pinned.cpu())))
    }

    fn pinned(&self) -> Result<Pinned, Failure> {
        Pinned::to(self.cpu).map_err(Failure::Usage)
    }

    /// Measures on a NIC of this host. Returns the rows and remarks.
    fn over_card(
        &self,
        device: &str,
        pattern: &Arc<Pattern>,
        context: &Context,
    ) -> Result<(Measured, String), Failure> {
        // Each placed row finds its processor itself.
        let pinned = self.placement.is_empty().then(|| self.pinned()).transpose()?;
        let cpu = pinned.as_ref().map_or(0, Pinned::cpu);
        let own = |load| own_queues(self, load);
        let card = Card::new(device, self.port, &self.allowed.from, own, pattern, &context.stop)?;
        let subjects = subjects(self, slice::from_ref(&card), cpu, context.stop.flag());
        let mut measured = self.over(&subjects, &context.stop);
        drop(subjects);
        if let (Ok(measured), Some(lost)) = (&mut measured, card.lost()) {
            // A row that had no connection yet was only skipped; it has failed, because the sending host was lost.
            let Measured { rows, failed, .. } = measured;
            let names = rows.iter().filter(|row| row.skipped.as_ref() == Some(&lost));
            failed.extend(names.map(|row| row.name.clone()));
            failed.sort_unstable();
            failed.dedup();
        }
        let on = pinned.map_or_else(
            || "where each row is placed".to_owned(),
            |pinned| format!("on processor {}", pinned.cpu()),
        );
        let mut remarks = format!("received {on}, sent from {}\n", card.sent_from());
        let put_back = card.put_back();
        let measured = measured?;
        for left in put_back? {
            let _ = writeln!(remarks, "{device}: left as it is: {left}");
        }
        Ok((measured, remarks))
    }

    fn over(&self, subjects: &[Subject<'_>], stop: &Stop) -> Result<Measured, Failure> {
        let plan = Plan { keep_engines: true, ..self.plan(subjects.len()) };
        let mut measured = self.measure_rows(subjects, plan, stop)?;
        user_share::attest(subjects, &mut measured.rows, stop.flag());
        Ok(measured)
    }
}

#[cfg(test)]
mod tests;
