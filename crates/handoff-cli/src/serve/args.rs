//! The arguments of `handoff serve`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use handoff_command::access_log::LogArgs;
use handoff_command::certificates::CertArgs;
use handoff_command::quantity;
use handoff_net::reach::Addresses;

const EXAMPLES: &str = "\
Examples:
  handoff serve public                                 http://127.0.0.1:8080/, for this machine
  handoff serve public --listen :80 --threads 4        for all who reach this machine
  handoff serve public --listen '[::1]:0' --json       on a free port, which is told; a report
  handoff serve public --listen unix:/run/files.sock --listen :8080   two places to wait
  handoff serve public --from 192.0.2.0/24 --listen :8080
  handoff serve public --access-log /var/log/handoff.log
  handoff serve public --listen :443 --cert chain.pem --cert-key key.pem   https://

Files of 64 KiB and more are sent from the page cache's own pages: lent (get-buf, needs the module
getbuf), or by splice(2), which does not report whether it copies. Smaller files are read and
copied. A request for one range gets this range, and a request for several gets the whole file. A
request for a directory gets its index.html. Names that begin with a dot are not served, except
.well-known; symbolic links are followed within the directory. A file that shrinks while it is sent
ends the connection. --access-log has a line for each request. With --cert the server speaks HTTPS:
files are spliced to the kernel's cipher, or read and ciphered in this process where the kernel has
no TLS. After SIGINT, SIGTERM or SIGHUP the command takes no new connections, gives requests under
way --grace seconds, and prints its report.";

/// Arguments of `handoff serve`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// The directory whose files are served
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,

    /// Where to wait for connections: addr:port, or :port for all addresses (port 0 takes a free one, and the
    /// command prints it), unix:/path or unix:@name (an abstract name); may be repeated. Sockets that systemd
    /// passes are used instead
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:8080")]
    pub listen: Vec<OsString>,

    /// Threads that serve, each with its own ring; the kernel spreads connections over them
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: u16,

    /// Most connections at the same time, divided evenly among the threads, at least one each; then the one that
    /// is idle for longest is closed for the next. Fewer if the limit on open files does not carry them
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub max_connections: u32,

    /// Most connections of one client address at the same time, for each thread; more are closed at once
    /// [default: three quarters of the thread's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_per_client: Option<u32>,

    /// Close a connection after this many seconds without a request
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = quantity::seconds_above_0)]
    pub idle: Duration,

    /// Seconds that requests under way have to end after SIGINT, SIGTERM or SIGHUP
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = quantity::seconds)]
    pub grace: Duration,

    /// Who the server is, over TLS.
    #[command(flatten)]
    pub(crate) cert: CertArgs,

    /// Where requests are logged.
    #[command(flatten)]
    pub(crate) log: LogArgs,

    /// Who may connect, and by which addresses.
    #[command(flatten)]
    pub addresses: Addresses,
}
