//! What both sides of `handoff rds stress` share: the arguments, the counts, the time.

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use handoff::{Driver, Tally};
use handoff_command::quantity::parse_bytes;
use handoff_command::{Context, clock};
use handoff_net::rds::{Serving, UNDER_WAY};

use super::super::frame::HEAD;
use super::super::report::Times;

/// Between looks if nothing reports a change.
const LOOK: Duration = Duration::from_millis(80);

const EXAMPLES: &str = "\
Examples:
  handoff rds stress 192.0.2.2                                    answers, until it is stopped
  handoff rds stress 192.0.2.2 --from 192.0.2.0/24                answers these addresses only
  handoff rds stress 192.0.2.1 -s 192.0.2.2                       asks there for ten seconds
  handoff rds stress 192.0.2.1 -s 192.0.2.2 -s 192.0.2.3 -q 1M -a 64 -t 8 -d 64 --time 60
  handoff rds stress 192.0.2.1 -s 192.0.2.2 --engine own --copy --json

Each task has a port of its own, and --depth requests under way to each peer. Both sides check what
arrives. A buffer is used again when it is back and its answer has arrived. A request that was lost,
because its peer was restarted, is sent again, and the run fails at its end: exit code 1. The kernel's
engine copies answers.";

/// Bytes that a task makes before they go out, and bytes that it checks before it makes more. With many
/// more, a slow machine would seem to have no answering peer.
pub(super) const AT_ONCE: usize = 1 << 20;

/// Arguments of `handoff rds stress`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct StressArgs {
    /// The address of this host
    #[arg(value_name = "OWN")]
    pub own: IpAddr,

    /// Send requests to this address, where the same command answers; without any, answer requests
    #[arg(short = 's', long = "send-to", value_name = "PEER")]
    pub peers: Vec<IpAddr>,

    /// The port of the answering side
    #[arg(short, long, default_value_t = 4000, value_parser = clap::value_parser!(u16).range(1..))]
    pub port: u16,

    /// Bytes of a request, 16 to 1m (k, m)
    #[arg(short = 'q', long, value_name = "BYTES", default_value = "1024", value_parser = size)]
    pub request: usize,

    /// Bytes of an answer, 16 to 1m (k, m)
    #[arg(short = 'a', long, value_name = "BYTES", default_value = "256", value_parser = size)]
    pub answer: usize,

    /// Number of tasks, each with its own port
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub tasks: u16,

    /// Requests under way, for each task and peer
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub depth: u16,

    /// Stop after this many seconds [default: 10; the answering side goes on until it is stopped]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    pub time: Option<u32>,

    /// Give up after this many seconds without any answer, also at the end
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    pub timeout: u32,

    /// What serves, and whom.
    #[command(flatten)]
    pub serving: Serving,

    /// Copy payload instead of lending it
    #[arg(long)]
    pub copy: bool,

    /// Do not check what arrives
    #[arg(long)]
    pub no_verify: bool,
}

impl StressArgs {
    /// Bytes of all requests that may be under way.
    pub(super) fn under_way(&self) -> usize {
        let requests = usize::from(self.tasks) * usize::from(self.depth) * self.peers.len();
        (requests * self.request).max(UNDER_WAY)
    }
}

fn size(text: &str) -> Result<usize, String> {
    let bytes = parse_bytes(text).ok().and_then(|bytes| usize::try_from(bytes).ok());
    bytes.filter(|bytes| (HEAD..=1 << 20).contains(bytes)).ok_or_else(|| {
        "a message has 16 bytes to 1M here, the longest that the kernel takes".to_owned()
    })
}

/// Counts of a running test.
#[derive(Default)]
pub(super) struct Counted {
    pub(super) messages: u64,
    pub(super) bytes: u64,
    pub(super) corrupt: u64,
    pub(super) tally: Tally,
    pub(super) times: Times,
    pub(super) asked_again: u64,
    /// Requests that nobody will answer.
    pub(super) lost: u64,
    pub(super) unanswered: u64,
}

/// State shared by all tasks of a run.
pub(super) struct Run<'a> {
    pub(super) args: &'a StressArgs,
    pub(super) context: &'a Context,
    pub(super) driver: &'a Driver,
    pub(super) begin: Instant,
    /// When the last answer came, to any task.
    pub(super) answered: Cell<Instant>,
    pub(super) counted: RefCell<Counted>,
}

impl Run<'_> {
    pub(super) fn is_over(&self, default: Option<u32>) -> bool {
        let time = self.args.time.or(default).map(|time| Duration::from_secs(time.into()));
        self.context.stop.requested() || time.is_some_and(|time| self.begin.elapsed() >= time)
    }

    /// Waits for a moment, then it is time to look again.
    pub(super) async fn look(&self) {
        clock::pass(self.driver, LOOK).await;
    }

    pub(super) fn took_back(&self, tally: Tally) {
        self.counted.borrow_mut().tally += tally;
    }
}

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn sizes_have_units_and_bounds() {
        assert_eq!(size("64k"), Ok(65_536));
        assert_eq!(size("1M"), Ok(1 << 20));
        for wrong in ["15", "1025K", "", "k", "9999999999999M", "-1"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
