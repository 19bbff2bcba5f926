//! `handoff bench splice` measures the cost of passing one page from a source to a sink, through a pipe or lent
//! into a ring; of sending a file; and of relaying a stream.
//!
//! Contracts:
//!
//! 1. A request passes one page, which the source has ready, to `/dev/null`: by splice through a pipe; or by a
//!    lend into a slot of a ring, a write from there (`WRITE_FIXED`), and the return of the page as the slot is
//!    cleared. A row's figures contain all of it: the slots of the last requests are cleared before the clock
//!    stops.
//! 2. A row of depth N submits N requests together and waits for them before the next N.
//! 3. Neither source allocates, reads or copies: splice gets the kernel's page of zeros from a file that is one
//!    hole, and getbuf lends a page of zeros of its own.
//! 4. The module counts the lends of each slot, and the returns. If the counts are not as requested, the row has
//!    failed.
//! 5. For files and streams, costs are those of the sending or relaying thread and of its NICs' threads: no
//!    figure contains the receiver at the far end. The clock stops when all bytes have arrived.
//! 6. Rows of relay run the library, including its splice, and differ only in the route's engine or in the
//!    memory that it receives into; or they run other programs, whose costs are those of all their threads.

mod apart;
mod device;
mod file_send;
mod leased;
mod lent;
mod passed;
mod plain;
mod relay;
mod ring;
mod spliced;
mod streams;

use std::sync::atomic::AtomicBool;

use clap::Args;
use handoff_command::{Context, Failure};

use self::{
    lent::{Form, Lent},
    spliced::{OpSplice, Splice},
    streams::{Over, Streams},
};
use crate::{
    lab,
    measure::{Engine, Measured, Subject, Tally},
    network::{TIMEOUT, drain::Drain, sender::Sender},
    peer::ProgramOptions,
    processor::Pinned,
    report::{self, Config, PASS, Report},
    run::{Bench, RunOptions, Slots},
};

/// The operations of rows beside [`PASS`], as `config.op` names them.
const FILE_SEND: &str = "file-send";
const RELAY: &str = "relay";

/// Bytes of a request: one page.
const BYTES: u32 = 4_096;
/// Requests after which an engine looks at the clock, at any depth.
const LOOK: u32 = 32;
/// The depths of rows, in requests under way together. Each divides [`LOOK`].
const DEPTHS: [u16; 6] = [1, 2, 4, 8, 16, 32];

const EXAMPLES: &str = "\
Rows of passing a page on (the ratio is to splice, of the same depth):
  splice      splice(2) twice, into a pipe and out of it; it has no depth, and is run beside each
  op-splice   the same as two linked requests of io_uring, which the kernel leaves to its workers
  get         one GET clears N slots and lends a page into each; N WRITE_FIXED write them
  get-each    a GET for each write, which clears its slot and lends a page into it
  get-linked  the same, and each write is linked to its GET
  get-nop     as get-each, with a request that does nothing beside each
  get-put     GET into an empty slot, WRITE_FIXED, and PUT, which clears it
  get-kept    each slot is lent a page once, which is written again and again

A request is one page that the source has ready. It is passed to /dev/null and given back, but for
get-kept. At depth N, N requests are one submission, by one call. Only op-splice and get-linked
link them. The counts of the module getbuf are compared with the requests: lends are per request.

Rows of file-send, a file sent from the page cache in pieces of 64 KiB (the ratio is to sendfile):
  sendfile    sendfile(2)
  splice      splice(2) into a pipe and out of it
  copy        read into memory, and sent from there
  get         each piece is lent, sent zero-copy and given back by the library; 16 are under way
  get-kept    the file is lent once, and its parts are sent again and again

Rows of relay, one stream through one thread (the ratio is to splice): routes of the library by
the engines get-buf, splice and copy, and with zcrx out of memory where the receiving NIC puts it,
in chunks of 64 KiB and of 4. With sockets=4 in their names, of four streams at once. The row apart
receives a stream by zcrx and drops it, and sends as much registered memory without a copy: what a
relay by zcrx would take if lending spans on cost nothing.

A peer is another program that relays between the same networks. It must listen at {addr} and
{port}, and connect to {to_addr} and {to_port} as soon as somebody has connected; {cpu} is its
processor. Its costs are those of all its threads and of its NICs. Only the witness (--meter)
knows what it copied.

Files and streams go over pairs of software NICs in the lab. Elsewhere they go over veth, where
the kernel copies what SEND_ZC lends. Rows with virtio-net in their names go over virtio-net
devices of the lab's guest (--lab, or handoff lab run --virtio-net 2). Costs are those of the
sending or relaying thread and of its NICs' NAPI threads. Copied bytes count once for each hop.

Examples:
  handoff bench splice --quick --lab
  handoff bench splice --quick
  handoff bench splice --lab --only '^(file-send|relay) '
  handoff bench splice --only 'depth=32 ' --json-file before.json
  handoff bench splice --compare before.json
  handoff bench splice --quick --only relay \\
      --peer 'socat=socat TCP-LISTEN:{port},reuseaddr TCP:{to_addr}:{to_port}'

Rows of getbuf need its module and root. Rows of files and streams need root, or a kernel that lets
this user make namespaces. Others need Linux 6.6. With --lab, what the lab needs.";

/// Options of `handoff bench splice`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct SpliceArgs {
    /// Options of every bench.
    #[command(flatten)]
    pub run: RunOptions,

    /// Processor to work on [default: the last one]
    #[arg(long, value_name = "N", conflicts_with = "lab")]
    pub cpu: Option<usize>,

    /// The peers: other programs to compare with.
    #[command(flatten)]
    pub programs: ProgramOptions,
}

impl Bench for SpliceArgs {
    const NAME: &'static str = report::SPLICE;
    const VIRTIO_NET: u8 = streams::VIRTIO_NET;

    fn options(&self) -> &RunOptions {
        &self.run
    }

    fn programs(&self) -> Option<&ProgramOptions> {
        Some(&self.programs)
    }

    fn slots(&self) -> Slots {
        Slots {
            whole: (200, 15),
            quick: (50, 7),
            counted: (30, 5),
            quick_counted: (10, 3),
            quick_total: None,
        }
    }

    fn measure(&self, context: &Context) -> Result<(Measured, String), Failure> {
        lab::load_in_guest("getbuf")?;
        let pinned = Pinned::to(self.cpu).map_err(Failure::Usage)?;
        let streams = Over::ALL.map(|over| match streams_wanted(self, over) {
            true => Streams::new(over, pinned.others()),
            false => Err("not asked for".to_owned()),
        });
        let subjects = subjects(self, &streams, pinned.cpu(), context.stop.flag());
        // The plan makes each engine anew for each slot, because a thread can register at most 16 rings.
        let measured = self.measure_rows(&subjects, self.plan(subjects.len()), &context.stop)?;
        Ok((measured, format!("on processor {}\n", pinned.cpu())))
    }

    fn subject(&self, report: &Report) -> String {
        let told = |op: &str| report.rows.iter().any(|row| row.config.op.as_deref() == Some(op));
        let subjects = [
            (PASS, "pass one page on, to /dev/null"),
            (FILE_SEND, "send a file"),
            (RELAY, "relay a stream"),
        ];
        let subjects = subjects.into_iter().filter(|(op, _)| told(op)).map(|(_, text)| text);
        subjects.collect::<Vec<_>>().join("; ")
    }

    fn conditions(&self, _report: &Report) -> String {
        "what was lent for a request is given back within it, but for get-kept\n".to_owned()
    }
}

/// Whether `--only` wants a row that needs such networks.
fn streams_wanted(args: &SpliceArgs, over: Over) -> bool {
    let (none, stop) = (Err(String::new()), AtomicBool::new(false));
    streams::subjects(over, &none, &args.programs.peer, 0, &stop)
        .iter()
        .any(|subject| args.run.wants(&subject.name))
}

/// All rows that match `--only`, and their baselines, in the table's order.
fn subjects<'a>(
    args: &'a SpliceArgs,
    streams: &'a [Result<Streams, String>; 2],
    cpu: usize,
    stop: &'a AtomicBool,
) -> Vec<Subject<'a>> {
    let mut subjects: Vec<Subject<'a>> = DEPTHS
        .into_iter()
        .flat_map(|depth| {
            let splice = subject(depth, "splice", Splice::new);
            let requests = subject(depth, "op-splice", move || OpSplice::new(depth.into()));
            let lent =
                Form::ALL.map(|form| subject(depth, form.engine(), move || Lent::new(form, depth)));
            [splice.baseline(), requests].into_iter().chain(lent)
        })
        .chain(
            Over::ALL
                .into_iter()
                .zip(streams)
                .flat_map(|(over, it)| streams::subjects(over, it, &args.programs.peer, cpu, stop)),
        )
        .collect();
    args.run.keep_wanted(&mut subjects);
    subjects
}

fn subject<'a, E: Engine + 'a>(
    depth: u16,
    engine: &str,
    make: impl Fn() -> Result<E, String> + 'a,
) -> Subject<'a> {
    let config = Config {
        bytes: Some(BYTES.into()),
        op: Some(PASS.to_owned()),
        target: Some("null".to_owned()),
        depth: Some(depth.into()),
        ..Config::default()
    };
    Subject::new(format!("depth={depth} {engine}"), engine, config, make)
}

/// The tally of `operations` requests.
fn tally(operations: u64) -> Tally {
    Tally { bytes: operations * u64::from(BYTES), operations: Some(operations), ..Tally::default() }
}

#[cfg(test)]
mod tests;
