//! `handoff cp`: copies a file or pipe to another, here or on another machine.
//!
//! Contracts:
//! - a destination file appears whole or not at all, however the process ends; a power cut is another matter (--sync);
//!   what no new file can replace is written in place, and that is said;
//! - a sender succeeds only after the receiver has everything in place;
//! - the report says for each hop what the CPU copied, and the reason for every fallback.
//!
//! The way: the two addresses -> `origin` and `destination` (opened before anything else) ->
//! `greet` (the peer, and the hello of `wire`) -> `send`, `receive` or `local` (the bytes, by `carry`, or
//! `in_kernel`) -> `report`.
//!
//! Receiving: `queues` (of the NIC) -> `share` (a thread's connections) -> `connection` (and `gathering`) -> `sink`
//! (the thread's file). All threads have the `order`, the `intake` and the `ending`.

// `eprintln!` panics where nobody reads standard error any more; `handoff_sys::hangup::say` does not.
#![cfg_attr(not(test), deny(clippy::print_stderr))]

mod carry;
pub mod checksum;
mod connection;
pub mod coverage;
mod destination;
mod ending;
mod extents;
mod gathering;
mod greet;
mod in_kernel;
mod intake;
mod job;
mod kept;
mod lending;
mod local;
mod messages;
mod order;
mod origin;
mod queues;
mod ranged;
mod receive;
mod report;
mod send;
mod share;
mod sides;
mod sink;
mod staging;
mod stream;
mod tell;
mod turn;
pub mod wire;

use std::cell::Cell;
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::thread;
use std::time::Duration;

use handoff_command::allow_list;
use handoff_command::clock::Clock;
use handoff_command::failure::Failed;
use handoff_command::quantity::parse_bytes;
use handoff_command::{Context, Failure, output, quantity, standard};

use carry::{Inlet, Outlet};
use destination::Target;
use handoff::Socket;
use handoff_net::address::{self, Address, Endpoint};
use handoff_net::deadline::Deadline;
use handoff_net::nic::{self, Card};
use handoff_net::rds;
use handoff_net::reach::{self, Addresses, Listener};
use job::Job;
use lending::Lending;
use order::Order;
use origin::Origin;
use queues::Ways;
use ranged::Ranged;
use receive::Spread;
use report::{Report, Transferred};
use wire::Hello;

const EXAMPLES: &str = "\
Examples:
  handoff cp tcp-listen://:9000 copy.img         wait for a file
  handoff cp disk.img tcp://host:9000            send it from another host
  handoff cp --verify --streams 4 disk.img tcp://host:9000
  tar c dir | handoff cp - tcp://host:9000       what a command writes
  handoff cp tcp-listen://:9000 - | tar x        to what a command reads
  handoff cp --direct disk.img /mnt/disk.img     from file to file, past the page cache
  handoff cp --from 192.0.2.0/24 --max-size 20g tcp-listen://:9000 copy.img
  handoff cp --raw file tcp://host:9000          to another program (nc, socat)
  handoff cp rds://192.0.2.2:4000 copy.img       by reliable datagrams, at an address of this host
  handoff cp disk.img rds://192.0.2.2:4000       send it from another host
  handoff cp --nic eth0 tcp-listen://:9000 copy.img   receive without copies, if the NIC can
  handoff cp --nic eth0 --streams 4 tcp-listen://:9000 copy.img   the same, by several threads

SRC and DST are each a path, tcp://host:port (connects), tcp-listen://[addr]:port (waits for
the peer; port 0 takes a free one, and the command prints it), rds://host:port, or - for standard
input or output. At most one of the two is a connection. Either side may connect or listen. The
connecting side decides how many streams there are.

As SRC, rds://host:port is an address of this host, where the command waits for the sender's
messages; as DST it is the receiver's address. The checksum is always compared. Payload is lent
to the kernel, unless you give --engine copy.

Holes of a file stay holes in a copy that is a file, here and over a network (not with --raw).
On one machine the copy shares its blocks with the source where the file system can (reflink);
otherwise the kernel copies (copy_file_range). --verify, --direct, --lend and --engine take
another way. On one machine a new file gets the permission bits of its source, less the umask, as with cp(1).
--preserve keeps all of them, the modification time, the ACL and the extended attributes of users;
over a network only permission bits and time, if you give it to both sides. The owner of SRC is
never kept.

DST appears under its name when it is complete, or not at all, also if the command is killed. After a
power cut it may be there and empty or short: --sync writes it to the disk before it gets its name.
--force replaces a file in one step; the new file gets the old one's mode (without set-user-ID and
set-group-ID), owner, ACL and extended attributes. Other names of the old file (hard links) keep
the old bytes. cp(1) writes into the old file instead. Where no new file can take the name, this
command writes in place, too, and says so: a block device, a mounted file, a directory that takes
no new file, an owner that you cannot give. A copy that fails then leaves a part of SRC there.

Between two `handoff cp` the receiver confirms: the sender succeeds only when the file is there
under its name. With --raw nothing is confirmed: if the sender is killed, the copy looks complete.

With - or /dev/stdout as DST the report goes to standard error, otherwise to standard output.";

/// How long the peer's host may answer nothing, without --idle.
const MOST_SILENCE: Duration = Duration::from_secs(120);

/// Arguments of `handoff cp`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// Where the bytes come from: a path, tcp://host:port, tcp-listen://[addr]:port, rds://host:port, or -
    #[allow(rustdoc::broken_intra_doc_links, reason = "the brackets mean an optional address")]
    #[arg(value_name = "SRC")]
    pub source: OsString,

    /// Where the bytes go: as SRC
    #[arg(value_name = "DST")]
    pub destination: OsString,

    /// Number of connections to send over; the side that connects decides. Give it to a receiver that
    /// listens, too: its number of threads follows from it, and with --nic its memory
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=i64::from(wire::MAX_STREAMS)))]
    pub streams: u16,

    /// Compare a checksum (CRC-64/NVME) of all bytes on both sides; it is enough to give it to one side
    #[arg(long)]
    pub verify: bool,

    /// Engine to send with
    #[arg(long, value_enum, default_value_t = EngineName::Auto)]
    pub engine: EngineName,

    /// Engine of reliable datagrams, if SRC or DST is rds://
    #[arg(long, value_enum, value_name = "ENGINE", default_value_t = rds::EngineName::Auto)]
    pub rds: rds::EngineName,

    /// Send or receive bare bytes on one connection, for peers that are not `handoff cp`
    #[arg(long)]
    pub raw: bool,

    /// Replace an existing file, which keeps its content until the copy is complete; write over a block device
    #[arg(long, short)]
    pub force: bool,

    /// Bypass the page cache (O_DIRECT) where the file system can
    #[arg(long)]
    pub direct: bool,

    /// When to lend SRC, a file, from the page cache (get-buf) instead of reading it; auto lends if the
    /// module is loaded and you give neither --verify nor --direct
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = Lend::Auto)]
    pub lend: Lend,

    /// Keep the permission bits and the modification time of SRC, on one machine also its ACL and extended attributes;
    /// over a network give it to both sides
    #[arg(long, short)]
    pub preserve: bool,

    /// Write the file to the disk (fsync) before it gets its name, and the name, too: then it survives a power cut
    #[arg(long)]
    pub sync: bool,

    /// Bytes of a piece, 4k to 64m (k: KiB, m: MiB)
    #[arg(long, value_name = "SIZE", default_value = "512k", value_parser = size)]
    pub buffer: usize,

    /// Pieces under way at the same time, at least one for each stream. The copy takes about --depth times
    /// --buffer of memory; a zero-copy send has no more than that unacknowledged
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub depth: u16,

    /// Take the memory from the reserved huge pages
    #[arg(long)]
    pub huge: bool,

    /// Receive without copies on this interface. The command prepares it, and puts it back at the end (see
    /// `handoff nic`); needs root
    #[arg(long, value_name = "IFACE")]
    pub nic: Option<String>,

    /// Threads that receive, each with its own ring and some of the streams [default: --streams, but no more
    /// than there are processors, and no fewer than --queues]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=i64::from(wire::MAX_STREAMS)))]
    pub threads: Option<u16>,

    /// Number of rx queues to receive from, each with its own memory; if there are more threads, they share
    /// the queues
    #[arg(long, value_name = "N", requires = "nic", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=i64::from(wire::MAX_STREAMS)))]
    pub queues: u16,

    /// Seconds to find and reach the peer, and for all streams to connect [default: 10]. If you give it, a
    /// listener also waits no longer for its first connection
    #[arg(long, value_name = "SECONDS", value_parser = quantity::seconds_above_0)]
    pub connect_timeout: Option<Duration>,

    /// Fail after this many seconds in which no byte moved; 0: never [default: fail after 120 seconds in which the
    /// peer's host answered nothing; over TCP only]
    #[arg(long, value_name = "SECONDS", value_parser = quantity::seconds)]
    pub idle: Option<Duration>,

    /// Receive at most this many bytes (k, m, g, t). A sender that announces more is refused; one that sends
    /// more is cut off
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub max_size: Option<u64>,

    /// Who may connect, and by which addresses.
    #[command(flatten)]
    pub addresses: Addresses,
}

impl Args {
    /// Whether standard output is for the bytes, so that everything else goes to standard error.
    pub fn gives_bytes(&self) -> bool {
        sides::is_output(&self.destination)
    }

    /// Why a sender that announces so many bytes is refused.
    fn too_long(&self, announced: Option<u64>) -> Option<String> {
        let (length, most) = (announced?, self.max_size?);
        (length > most).then(|| format!("{length} bytes are more than {most} (--max-size)"))
    }

    /// For bytes to move, if there is an end to that.
    fn idle(&self) -> Option<Duration> {
        self.idle.filter(|idle| !idle.is_zero())
    }

    /// For the peer's host to answer, if there is an end to that.
    fn silence(&self) -> Option<Duration> {
        Some(self.idle.unwrap_or(MOST_SILENCE)).filter(|silence| !silence.is_zero())
    }

    /// For finding and reaching the peer.
    fn reach_timeout(&self) -> Duration {
        self.connect_timeout.unwrap_or(Duration::from_secs(10))
    }

    /// That receive.
    fn threads(&self) -> usize {
        let useful = || {
            let processors = thread::available_parallelism().map_or(1, usize::from);
            processors.min(self.streams.into()).max(self.queues.into())
        };
        self.threads.map_or_else(useful, usize::from)
    }
}

/// Engines, as they are called on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum EngineName {
    /// Measure on the connection, and take the cheapest
    Auto,
    /// io_uring zero-copy send
    UringZc,
    /// MSG_ZEROCOPY
    MsgZerocopy,
    /// Plain sendmsg
    Copy,
}

/// When the page cache lends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Lend {
    /// Lend where possible, if the bytes need not be read
    Auto,
    /// Lend, or fail
    Always,
    /// Read the file
    Never,
}

impl From<EngineName> for handoff::Engine {
    fn from(name: EngineName) -> Self {
        match name {
            EngineName::Auto => Self::Auto,
            EngineName::UringZc => Self::UringZc,
            EngineName::MsgZerocopy => Self::MsgZerocopy,
            EngineName::Copy => Self::Copy,
        }
    }
}

/// Bytes of a piece.
fn size(text: &str) -> Result<usize, String> {
    parse_bytes(text)
        .ok()
        .and_then(|bytes| usize::try_from(bytes).ok())
        .filter(|bytes| (4096..=64 << 20).contains(bytes))
        .ok_or_else(|| "a piece has 4k to 64m bytes".to_owned())
}

/// Random bits, for names that must not collide.
fn random() -> u128 {
    let mut bytes = [0; 16];
    // Before the kernel's generator is seeded nobody else is running.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::NONBLOCK);
    u128::from_ne_bytes(bytes)
}

/// Copies, and reports the result.
///
/// # Errors
///
/// See [`Failure`]: addresses that make no sense are usage, a requested engine that is missing is not
/// possible, everything else is a failed copy, which leaves nothing under the destination's name.
pub fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    let (source, destination) = sides::of(args)?;
    let prepare = |name| nic::prepare(name, args.queues.into(), Vec::new());
    let card = args.nic.as_deref().map(prepare).transpose()?;
    let ended = copy(args, context, source, destination, card.as_ref());
    match card {
        Some(card) => nic::put_back(card, ended),
        None => ended,
    }
}

/// Copies; all drivers have let go of everything afterwards.
fn copy(
    args: &Args,
    context: &Context,
    source: Address,
    destination: Address,
    card: Option<&Card>,
) -> Result<(), Failure> {
    let order = Order::new(args, context, source, destination);
    let report = carry_out(&order, card);
    order.progress.finish_and_clear();
    let report = report?;
    match (&order.destination, context.json) {
        (Address::Pipe, true) => {
            let text =
                serde_json::to_string_pretty(&report).failed("the result has no JSON form")?;
            output::print_aside(text);
            Ok(())
        }
        (Address::Pipe, false) => {
            output::print_aside(report.text().trim_end());
            Ok(())
        }
        (_, true) => output::json(&report),
        (_, false) => output::text(&report.text()),
    }
}

fn carry_out(order: &Order<'_>, card: Option<&Card>) -> Result<Report, Failure> {
    for side in [&order.source, &order.destination] {
        if let Address::File(path) = side
            && let Some(shown) = address::looks_like_endpoint(path)
            && !path.exists()
        {
            order.note(format!("{shown} is taken for a file: an address is tcp://{shown}"));
        }
    }
    match &order.source {
        Address::Connect(_) | Address::Listen(_) => {
            let (threads, queues) = (order.args.threads(), order.args.queues.into());
            let target = target(order)?;
            receive::receive(order, target, &Spread { threads, card, queues })
        }
        Address::Rds(endpoint) => {
            let target = target(order)?;
            let job = Job::new(order)?;
            messages::receive(&job, endpoint, target, |target| outlet(order, target))
        }
        _ => send_or_copy(&Job::new(order)?),
    }
}

/// Opens the source, then its sink.
fn send_or_copy(job: &Job<'_>) -> Result<Report, Failure> {
    let origin = match &job.order.source {
        Address::File(path) => Origin::open(job.order.stop, path)?,
        _ => Origin::stdin()?,
    };
    let (length, attributes) = (origin.len(), origin.attributes());
    job.order.set_length(length);
    job.source_kind.set(Some(origin.kind()));
    let preserved = if job.order.args.preserve { origin.preserved()? } else { None };
    match &job.order.destination {
        Address::Connect(endpoint) | Address::Listen(endpoint) => {
            let listens = matches!(job.order.destination, Address::Listen(_));
            let sparse = !job.order.args.raw && origin.extents()?.is_some_and(|it| it.is_sparse());
            let offer = Offer { sends: true, length, sparse };
            let (connections, peer) = reach(job, endpoint, listens, offer, None)?;
            let verify = job.order.args.verify || peer.is_some_and(|peer| peer.verifies);
            if verify && job.order.args.lend == Lend::Always {
                job.order.note(
                    "read in spite of --lend always: the receiver asks for the checksum".to_owned(),
                );
            }
            let inlet = inlet(job, origin, !verify, !job.order.args.raw)?;
            let attributes = attributes
                .filter(|_| job.order.args.preserve && peer.is_some_and(|it| it.preserves));
            if attributes.is_some() && preserved.is_some_and(|it| it.has_extended()) {
                job.order.note("the ACL and extended attributes of SRC are not sent".to_owned());
            }
            send::send(job, inlet, send::Sending { connections, verify, attributes })
        }
        Address::Rds(endpoint) => {
            messages::send(job, &inlet(job, origin, false, true)?, length, endpoint)
        }
        Address::File(path) => {
            match destination::open(path, job.order.args.force, origin.source())? {
                Target::File(destination) => {
                    let outlet = Outlet::File(ranged(job, &destination)?);
                    let clock = Clock::start();
                    // Bad input is refused, in any direction.
                    job.order.memory_for(1)?;
                    if let Some(why) = destination.in_place() {
                        job.order.note_in_place(why);
                        if let Some(len) = length {
                            destination.check_room(len)?;
                        }
                        destination.begin()?;
                    }
                    if in_kernel::is_enough(job)
                        && let Origin::File { file, len, .. } = &origin
                        && let Some(extents) = origin.extents()?
                        && let Some(copied) =
                            in_kernel::copy(job, file, *len, &extents, &destination)?
                    {
                        let (bytes, holes) = (*len, copied.holes);
                        destination.commit(bytes, preserved, job.order.args.sync)?;
                        let hops = vec![copied.hop];
                        let (checksum, verified) = (None, None);
                        let done =
                            Transferred { bytes, holes, streams: 0, checksum, verified, hops };
                        return Ok(Report::new(job.order, &clock, done));
                    }
                    let inlet =
                        inlet(job, origin, !job.order.args.verify, destination.has_holes())?;
                    local::copy(job, inlet, outlet, Some((destination, preserved)))
                }
                Target::Stream(path) => {
                    let outlet = stream_outlet(job, open_stream(job.order, &path)?)?;
                    local::copy(job, inlet(job, origin, false, false)?, outlet, None)
                }
            }
        }
        Address::Pipe => {
            let outlet = stream_outlet(job, standard::output()?)?;
            local::copy(job, inlet(job, origin, false, false)?, outlet, None)
        }
    }
}

/// The destination of received bytes, opened before anything is waited for; none if it is standard output.
fn target(order: &Order<'_>) -> Result<Option<Target>, Failure> {
    let target = match &order.destination {
        Address::File(path) => destination::open(path, order.args.force, None).map(Some)?,
        _ => None,
    };
    if let Some(Target::File(destination)) = &target
        && let Some(why) = destination.in_place()
    {
        order.note_in_place(why);
    }
    Ok(target)
}

fn outlet(order: &Order<'_>, target: Option<Target>) -> Result<sink::Outlet, Failure> {
    Ok(match target {
        Some(Target::File(destination)) => sink::Outlet::File(destination),
        Some(Target::Stream(path)) => sink::Outlet::Stream(open_stream(order, &path)?.into()),
        None => sink::Outlet::Stream(standard::output()?),
    })
}

fn open_stream(order: &Order<'_>, path: &Path) -> Result<std::fs::File, Failure> {
    let mut options = OpenOptions::new();
    options.write(true);
    stream::open(order.stop, path, options)
}

fn stream_outlet(job: &Job<'_>, file: impl Into<OwnedFd>) -> Result<Outlet, Failure> {
    let file = job.driver.file(file).failed("attaching a file")?;
    Ok(Outlet::Stream { file, name: order::name(&job.order.destination) })
}

/// The source; `lends` says whether its sink takes buffers of the kernel, with nobody looking at the bytes
/// before; `skips` whether holes may be left out.
fn inlet(job: &Job<'_>, origin: Origin, lends: bool, skips: bool) -> Result<Inlet, Failure> {
    let name = order::name(&job.order.source);
    let extents = if skips { origin.extents()? } else { None };
    match origin {
        Origin::Stream { fd, .. } => {
            let file = job.driver.file(fd).failed("attaching a file")?;
            Ok(Inlet::Stream { file, ended: Cell::new(false), name })
        }
        Origin::File { file, len, .. } => {
            let direct = match &job.order.source {
                Address::File(path) if job.order.args.direct => {
                    job.direct(origin::open_direct(path))
                }
                _ => None,
            };
            let lending = if lends { Lending::open(job, &file)? } else { None };
            let file = Ranged::new(&job.driver, file, direct, name)?;
            Ok(Inlet::File { file, len, lending, extents })
        }
    }
}

fn ranged(job: &Job<'_>, destination: &destination::Destination) -> Result<Ranged, Failure> {
    let file = destination.file().try_clone().failed("attaching a file")?;
    let direct = if job.order.args.direct { job.direct(destination.open_direct()) } else { None };
    Ranged::new(&job.driver, file, direct, job.order.destination.to_string())
}

/// Why two sides that both send, or both receive, cannot copy.
fn both(send: bool) -> String {
    let both = if send { "send" } else { "receive" };
    format!("both sides {both}: on one of them the connection is SRC, on the other DST")
}

/// This side's hello.
struct Offer {
    sends: bool,
    length: Option<u64>,
    sparse: bool,
}

/// Connects to the peer or waits for it, and greets it. The peer's hello is `None` with `--raw`. The NIC's
/// queues, if there are any, get the connections before anything but first words comes.
fn reach(
    job: &Job<'_>,
    endpoint: &Endpoint,
    listens: bool,
    offer: Offer,
    ways: Option<&Ways<'_>>,
) -> Result<(Vec<Socket>, Option<Hello>), Failure> {
    let args = job.order.args;
    let family = args.addresses.family();
    let Offer { sends, length, sparse } = offer;
    let (verifies, preserves) = (args.verify, args.preserve);
    let own = |streams, stream, transfer, hears_work| Hello {
        sends,
        verifies,
        streams,
        stream,
        transfer,
        length,
        sparse,
        preserves,
        hears_work,
    };
    let too_long = |peer: &Hello| if sends { None } else { args.too_long(peer.length) };
    let queue = ways.map(|ways| &ways.queue);
    let lead = |socket: &Socket, stream| ways.map_or(Ok(()), |ways| ways.lead(socket, stream));
    let deadline = Deadline::new(job.order.stop, Some(args.reach_timeout()));
    let (connections, peer) = if listens {
        let listener = Listener::bind(endpoint, family, args.addresses.from(), deadline)?;
        let address = listener.address()?;
        // Without words between us a peer sends as soon as it is connected, and bytes that come before the
        // rule exists are copied.
        if let Some(ways) = ways.filter(|_| args.raw) {
            ways.rules.lead_arriving(address)?;
        }
        output::say(format_args!("listening on tcp://{address}"));
        allow_list::warn(
            address,
            args.addresses.from(),
            if sends { "take the file" } else { "send" },
        );
        if args.raw {
            let deadline = Deadline::new(job.order.stop, args.connect_timeout);
            (vec![listener.accept_one(&job.driver, deadline)?], None)
        } else {
            let answer = |peer: &Hello, socket: &Socket| {
                let ours = own(peer.streams, peer.stream, peer.transfer, peer.hears_work);
                if peer.sends == sends {
                    let why = both(sends);
                    greet::refuse(socket, &ours, &why);
                    return Err(why);
                }
                if let Some(why) = too_long(peer) {
                    greet::refuse(socket, &ours, &why);
                    return Err(why);
                }
                let led = lead(socket, peer.stream);
                led.map_err(|failure| failure.line().unwrap_or_default())?;
                Ok(ours)
            };
            let deadline = Deadline::new(job.order.stop, None);
            let (sockets, peer) = deadline.block_on(&job.driver, async |_| {
                let (first, rest) = (args.connect_timeout, args.reach_timeout());
                greet::gather(&job.driver, queue, listener, answer, first, rest).await
            })??;
            (sockets, Some(peer))
        }
    } else {
        let sockets = reach::connect(&job.driver, endpoint, family, args.streams, deadline)?;
        if args.raw {
            sockets.iter().try_for_each(|socket| lead(socket, 0))?;
            (sockets, None)
        } else {
            let transfer = random();
            let hello = |number| own(args.streams, number, transfer, true);
            let peer = deadline.block_on(&job.driver, async |left| {
                greet::call(&job.driver, queue, &sockets, hello, lead, left).await
            })??;
            (sockets, peer)
        }
    };
    if peer.is_some_and(|peer| peer.sends == sends) {
        return Err(Failure::usage(both(sends)));
    }
    if let Some(why) = peer.as_ref().and_then(too_long) {
        return Err(Failure::failed(why));
    }
    if peer.is_some_and(|peer| peer.preserves != args.preserve) {
        job.order.note(
            "a copy keeps the bytes only: --preserve was said on one side, not on both".to_owned(),
        );
    }
    Ok((connections, peer))
}
