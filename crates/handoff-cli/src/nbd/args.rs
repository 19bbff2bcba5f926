//! The arguments of `handoff nbd serve`.

use std::ffi::OsString;
use std::time::Duration;

use handoff_command::quantity::{self, parse_size};
use handoff_nbd_server::Io;
use handoff_net::reach::Addresses;

const EXAMPLES: &str = "\
Examples:
  handoff nbd serve disk.img                           nbd://127.0.0.1/, for this machine
  handoff nbd serve --listen unix:/run/nbd.sock root=root.img data=/dev/vdb
  handoff nbd serve --read-only --listen :10809 --from 192.0.2.0/24 golden.img
  handoff nbd serve --temporary golden.img             writes go to a copy that goes with the server
  qemu-system-x86_64 -drive file=nbd://127.0.0.1/,format=raw,if=virtio
  nbdcopy disk.img nbd://127.0.0.1/                    and any other client

The first EXPORT without a NAME, else the first, is what clients get that name none. What is written is
received into registered memory and written from there past the page cache; reads are read past it,
and sent from registered memory without copies. A read-only export has the page cache's own pages
sent where the module getbuf is. One file goes one way only (--io). A flush is answered when all that
was answered before, on all connections, is on the disk. After SIGINT, SIGTERM or SIGHUP the command
takes no new connections and no new requests, gives those under way --grace seconds, and prints its
report. There is neither TLS nor a password: let only those in whom you trust (--from, unix:).";

/// Arguments of `handoff nbd serve`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct ServeArgs {
    /// A file or block device, with the name of its export before a =, such as root=disk.img. A path that has a =
    /// itself needs one before it
    #[arg(value_name = "[NAME=]FILE", required = true)]
    pub exports: Vec<OsString>,

    /// Where to wait for connections: addr:port, or :port for all addresses (port 0 takes a free one, and the
    /// command prints it), unix:/path or unix:@name (an abstract name); may be repeated. Sockets that systemd
    /// passes are used instead
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:10809")]
    pub listen: Vec<OsString>,

    /// Let nobody write
    #[arg(long, short = 'r')]
    pub read_only: bool,

    /// Keep what clients write in a copy that goes with the server. It lies in TMPDIR, else in /var/tmp
    #[arg(long, conflicts_with = "read_only")]
    pub temporary: bool,

    /// Which way the bytes of files go
    #[arg(long, value_enum, default_value_t = IoName::Auto)]
    pub io: IoName,

    /// The smallest block that clients may read and write (k): a power of 2, at most 64k. Parts of the disk's
    /// blocks are slow to write, since their blocks are read first
    #[arg(long, value_name = "SIZE", default_value = "1", value_parser = block)]
    pub min_block: u32,

    /// The most bytes of a request (k, m): at least 64k, at most 1g
    #[arg(long, value_name = "SIZE", default_value = "32m", value_parser = maximum)]
    pub max_request: u32,

    /// Threads that serve, each with its own ring; the kernel spreads connections over them
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: u16,

    /// Most connections at the same time, divided evenly among the threads, at least one each; more wait to be
    /// accepted. Fewer if the limit on open files does not carry them
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=16_384))]
    pub max_connections: u32,

    /// Most connections of one client address at the same time, for each thread; more are closed at once
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_per_client: Option<u32>,

    /// Most requests of a connection that are carried out at the same time; more wait to be received
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub requests: u16,

    /// Most memory that the requests of a connection have at the same time (k, m, g); a larger one goes alone
    #[arg(long, value_name = "SIZE", default_value = "8m", value_parser = parse_size)]
    pub memory_per_client: u64,

    /// Memory for requests, which all threads share and register with the kernel (m, g). When all is in use, each
    /// connection has 64 KiB of its own
    #[arg(long, value_name = "SIZE", default_value = "64m", value_parser = parse_size)]
    pub memory: u64,

    /// Close a connection whose client takes this many seconds to negotiate, sends nothing of what it has promised,
    /// or takes nothing of what is sent. A client without requests stays
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = quantity::seconds_above_0)]
    pub stall: Duration,

    /// Do not tell clients which exports there are
    #[arg(long)]
    pub no_list: bool,

    /// Seconds that requests under way have to end after SIGINT, SIGTERM or SIGHUP
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = quantity::seconds)]
    pub grace: Duration,

    /// Who may connect, and by which addresses.
    #[command(flatten)]
    pub addresses: Addresses,
}

/// Ways, as they are called on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum IoName {
    /// Direct for what can be written, where the file allows it; the page cache for the rest where it lends
    Auto,
    /// Past the page cache (`O_DIRECT`)
    Direct,
    /// By the page cache: reads are lent where the module getbuf is, writes are copied
    Cache,
}

impl From<IoName> for Io {
    fn from(name: IoName) -> Self {
        match name {
            IoName::Auto => Self::Auto,
            IoName::Direct => Self::Direct,
            IoName::Cache => Self::Cache,
        }
    }
}

fn block(text: &str) -> Result<u32, String> {
    let size = parse_size(text)?;
    let size = u32::try_from(size).ok().filter(|size| size.is_power_of_two() && *size <= 64 << 10);
    size.ok_or_else(|| "a block is a power of 2, at most 64k".to_owned())
}

fn maximum(text: &str) -> Result<u32, String> {
    let size = parse_size(text)?;
    let size = u32::try_from(size).ok().filter(|size| (64 << 10..=1 << 30).contains(size));
    size.ok_or_else(|| "a request may have at least 64k and at most 1g".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_the_protocol_does_not_have_are_refused() {
        assert_eq!((block("1"), block("4k")), (Ok(1), Ok(4096)));
        for wrong in ["0", "3", "128k", "x"] {
            assert!(block(wrong).is_err(), "{wrong}");
        }
        assert_eq!(maximum("1m"), Ok(1 << 20));
        assert!(maximum("4k").is_err() && maximum("2g").is_err());
    }
}
