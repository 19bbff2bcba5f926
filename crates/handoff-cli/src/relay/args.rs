//! The arguments of `handoff relay`.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::time::Duration;

use handoff::RouteEngine;
use handoff_command::access_log::LogArgs;
use handoff_command::allow_list;
use handoff_command::quantity::{self, parse_bytes};
use handoff_net::proxy::Version;
use handoff_net::reach::Addresses;
use handoff_sys::getbuf;
use ipnet::{IpNet, Ipv4Net};

const EXAMPLES: &str = "\
Examples:
  handoff relay tcp-listen://:8080 tcp://192.0.2.7:80       pass every connection on
  handoff relay --engine splice tcp-listen://:8080 tcp://host:80
  handoff relay --max-connections 100 --idle 30 tcp-listen://[::1]:8080 tcp://host:80
  handoff relay --from 192.0.2.0/24 --max-per-client 20 tcp-listen://:8080 tcp://host:80
  handoff relay --idle 30 --least-rate 1k tcp-listen://:8080 tcp://host:80
  handoff relay --nic eth0 --threads 4 tcp-listen://:8080 tcp://host:80   one queue, four rings
  handoff relay unix:/run/app.sock tcp://host:80            clients by a Unix socket
  handoff relay tcp-listen://:8080 unix:/run/app.sock --listen unix:@app   two places to wait, a Unix target
  handoff relay --proxy-protocol v2 --stats unix:/run/relay.stats tcp-listen://:8080 tcp://host:80
  curl --unix-socket /run/relay.stats http://relay/         what it has done so far
  handoff relay --connections 1 --json tcp-listen://:9000 tcp://host:9000   one, and its report

Payload goes from socket to socket without being read into memory: lent from the receive queue
(get-buf, needs the module getbuf), or by splice(2). Of each direction the first 16 KiB are copied,
as long as they come in small pieces, which is cheaper. With --nic what clients send stays where
the NIC has put it. The target's name is resolved for each connection, and its addresses are tried
in turn. After SIGINT, SIGTERM or SIGHUP the relay takes no new connections, gives
those under way --grace seconds, and prints its report.";

/// Arguments of `handoff relay`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// Where to wait for connections: tcp-listen://[addr]:port (port 0 takes a free one, and the command
    /// prints it), unix:/path or unix:@name (an abstract name). Sockets that systemd passes are used instead
    #[arg(value_name = "LISTEN")]
    pub listen: OsString,

    /// Where each connection goes on to: tcp://host:port, unix:/path or unix:@name
    #[arg(value_name = "TARGET")]
    pub target: OsString,

    /// Where else to wait for connections, as LISTEN; may be repeated
    #[arg(long = "listen", value_name = "LISTEN")]
    pub beside: Vec<OsString>,

    /// Tell the target who connects, by the head of the PROXY protocol before each connection's bytes. The
    /// target must expect it
    #[arg(long, value_name = "VERSION", value_enum)]
    pub proxy_protocol: Option<Version>,

    /// Expect that head, of either version, from a front that connects for others. What it says is in the log,
    /// counts for --max-per-client, and goes on by --proxy-protocol; --from is about the front itself
    #[arg(long)]
    pub accept_proxy: bool,

    /// Answer HTTP here, an address as LISTEN, with what was done so far: / has JSON, /metrics OpenMetrics
    #[arg(long, value_name = "LISTEN")]
    pub stats: Option<OsString>,

    /// Who may ask there, beside those who may open a Unix socket [default: this machine]; may be repeated
    #[arg(long, value_name = "ADDR/LEN", requires = "stats", value_parser = allow_list::range)]
    pub stats_from: Vec<IpNet>,

    /// Engine to pass payload on with
    #[arg(long, value_enum, default_value_t = EngineName::Auto)]
    pub engine: EngineName,

    /// Receive what clients send without copies on this interface. The command prepares it, and puts it back
    /// at the end (see `handoff nic`); needs root
    #[arg(long, value_name = "IFACE")]
    pub nic: Option<String>,

    /// Threads that relay, each with its own ring; the kernel spreads connections over them. With --nic they
    /// share its queue
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: u16,

    /// Most connections at the same time, divided evenly among the threads; more wait to be accepted. Fewer
    /// if the limit on open files does not carry them
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=16_384))]
    pub max_connections: u32,

    /// Most connections of one client address at the same time, for each thread; more are closed at once
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_per_client: Option<u32>,

    /// End after this many connections [default: go on until stopped]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub connections: Option<u64>,

    /// Close a connection after this many seconds without a byte in either direction; 0: never
    #[arg(long, value_name = "SECONDS", default_value = "300", value_parser = quantity::seconds)]
    pub idle: Duration,

    /// Close a connection that moves fewer bytes a second than this (k, m, g), in both directions together,
    /// over the time of --idle; 0: never
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = parse_bytes)]
    pub least_rate: u64,

    /// Seconds that open connections have to end after SIGINT, SIGTERM or SIGHUP
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = quantity::seconds)]
    pub grace: Duration,

    /// Seconds to reach the target
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = quantity::seconds_above_0)]
    pub connect_timeout: Duration,

    /// Where connections are logged.
    #[command(flatten)]
    pub(crate) log: LogArgs,

    /// Who may connect, and by which addresses.
    #[command(flatten)]
    pub addresses: Addresses,
}

impl Args {
    /// Who may ask for the counts.
    pub(super) fn stats_from(&self) -> Vec<IpNet> {
        match self.stats_from.is_empty() {
            true => vec![
                Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8).into(),
                IpAddr::from(Ipv6Addr::LOCALHOST).into(),
            ],
            false => self.stats_from.clone(),
        }
    }
}

/// Engines, as they are called on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum EngineName {
    /// Copy the first small pieces, then take the best that works
    Auto,
    /// Lent from the socket's receive queue, and sent with io_uring without copying
    GetBuf,
    /// splice(2) through a pipe
    Splice,
    /// Received into registered memory, and sent from there
    Memory,
    /// Received into memory, and copied out of it
    Copy,
}

impl EngineName {
    pub(super) fn only(self) -> Option<RouteEngine> {
        match self {
            Self::Auto => None,
            Self::GetBuf => Some(RouteEngine::GetBuf),
            Self::Splice => Some(RouteEngine::Splice),
            Self::Memory => Some(RouteEngine::Memory),
            Self::Copy => Some(RouteEngine::Copy),
        }
    }

    /// Descriptors of a connection: two sockets, and what its engine cannot do without.
    pub(super) fn descriptors(self) -> usize {
        match self {
            Self::Auto if Path::new(getbuf::PATH).exists() => 4,
            Self::Auto | Self::Memory | Self::Copy => 2,
            Self::GetBuf => 4,
            Self::Splice => 6,
        }
    }
}
