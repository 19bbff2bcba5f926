//! The options of a copy.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use handoff_command::certificates::CertArgs;
use handoff_command::quantity::{self, parse_bytes};
use handoff_net::rds;
use handoff_net::reach::Addresses;

use crate::wire;

const EXAMPLES: &str = "\
Examples:
  handoff cp tls-listen://:7070 copy.img         wait for a file; prints what to type there, and a KEY
  handoff cp disk.img tls://host:7070            send it from another host, which asks for the KEY
  handoff cp disk.img tls-listen://:7070         or have it fetched
  handoff cp --verify --streams 4 disk.img tcp://host:9000    in the clear, to tcp-listen://:9000
  tar c dir | handoff cp - tcp://host:9000       what a command writes
  handoff cp tcp-listen://:9000 - | tar x        to what a command reads
  handoff cp --direct disk.img /mnt/disk.img     from file to file, past the page cache
  handoff cp --from 192.0.2.0/24 --max-size 20g tcp-listen://:9000 copy.img
  handoff cp --raw file tcp://host:9000          to another program (nc, socat)
  handoff cp --raw --ca ca.pem file tls://host:9000    to another program (openssl, socat)
  handoff cp --raw --cert cert.pem --cert-key key.pem tls-listen://:9000 copy.img
  handoff cp rds://192.0.2.2:4000 copy.img       by reliable datagrams, at an address of this host
  handoff cp disk.img rds://192.0.2.2:4000       send it from another host
  handoff cp --nic eth0 tcp-listen://:9000 copy.img   receive without copies, if the NIC can
  handoff cp --nic eth0 --streams 4 tcp-listen://:9000 copy.img   the same, by several threads

SRC and DST are each a path, tls://host:port or tcp://host:port (connects), tls-listen://[addr]:port
or tcp-listen://[addr]:port (waits for the peer; port 0 takes a free one, and the command prints it),
rds://host:port, or - for standard input or output. At most one of the two is a connection. Either side may connect or listen. The
connecting side decides how many streams there are.

With tls the bytes are ciphered, and both ends prove that they have the same KEY before anything
is sent. The listener makes the KEY, and prints it; the other end asks for it on its terminal, or takes
it from the variable HANDOFF_KEY or from --key-file. It is never an argument, which other users
could see; the variable is as safe as you keep your environment. A KEY is good for one transfer: if
that is cut off, the listener waits for another try (files only), and when it is whole it ends. With tcp all
goes in the clear, and whoever reaches a listener may be its peer.

With --raw, tls is for other programs, and there is no KEY. The listener has a certificate (--cert,
--cert-key); the end that connects sends nothing before it trusts that certificate (--ca, or the
system's authorities) and finds it to be for the host of the address, or for --name. A listener does
not ask who connects: --from limits that.

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
    /// Where the bytes come from: a path, tls://host:port, tls-listen://[addr]:port, the same with tcp,
    /// rds://host:port, or -
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

    /// File with the KEY of tls://, which no other user may read; with tls-listen:// a new file that the KEY is
    /// written to instead of standard error, and that goes at the end
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,

    /// The certificate of tls-listen:// with --raw.
    #[command(flatten)]
    pub certificate: CertArgs,

    /// With --raw and tls://, trust who has a certificate of an authority in this PEM file, or a certificate in it,
    /// in place of the system's authorities
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,

    /// With --raw and tls://, the name that the listener's certificate must be for [default: the host of the address]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,

    /// Who may connect, and by which addresses.
    #[command(flatten)]
    pub addresses: Addresses,
}

impl Args {
    /// Whether standard output is for the bytes, so that everything else goes to standard error.
    pub fn gives_bytes(&self) -> bool {
        is_output(&self.destination)
    }

    /// Why a sender that announces so many bytes is refused.
    pub(crate) fn too_long(&self, announced: Option<u64>) -> Option<String> {
        let (length, most) = (announced?, self.max_size?);
        (length > most).then(|| format!("{length} bytes are more than {most} (--max-size)"))
    }

    /// For bytes to move, if there is an end to that.
    pub(crate) fn idle(&self) -> Option<Duration> {
        self.idle.filter(|idle| !idle.is_zero())
    }

    /// For the peer's host to answer, if there is an end to that.
    pub(crate) fn silence(&self) -> Option<Duration> {
        Some(self.idle.unwrap_or(MOST_SILENCE)).filter(|silence| !silence.is_zero())
    }

    /// For finding and reaching the peer.
    pub(crate) fn reach_timeout(&self) -> Duration {
        self.connect_timeout.unwrap_or(Duration::from_secs(10))
    }

    /// That receive.
    pub(crate) fn threads(&self) -> usize {
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

/// Whether this destination is standard output, which then is for the bytes only.
pub(crate) fn is_output(destination: &OsStr) -> bool {
    ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"].iter().any(|name| destination == *name)
}

/// Bytes of a piece.
fn size(text: &str) -> Result<usize, String> {
    parse_bytes(text)
        .ok()
        .and_then(|bytes| usize::try_from(bytes).ok())
        .filter(|bytes| (4096..=64 << 20).contains(bytes))
        .ok_or_else(|| "a piece has 4k to 64m bytes".to_owned())
}
