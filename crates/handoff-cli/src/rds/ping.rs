//! `handoff rds ping`: empty messages to port 0, which RDS answers itself, by either engine.

use std::net::IpAddr;
use std::pin::pin;
use std::time::{Duration, Instant};

use futures_util::future::select;
use handoff::{Driver, Executor};
use handoff_command::failure::Failed;
use handoff_command::{Context, Failure, clock, output};
use handoff_net::rds::failure;
use handoff_net::rds::{Host, Serving, UNDER_WAY};
use handoff_rds::kernel::{Mode, Socket};
use handoff_rds::own::Engine;
use handoff_rds::protocol::Event;
use handoff_rds::wire::PORT;
use serde::Serialize;

const EXAMPLES: &str = "\
Examples:
  handoff rds ping 192.0.2.1 192.0.2.2            from the first address to the second, four times
  handoff rds ping -c 1 --timeout 2 192.0.2.1 192.0.2.2

The first answer takes as long as connecting. The peer may be a kernel or our engine.";

/// How long a wait may last before signals and the time are checked.
const LOOK: Duration = Duration::from_millis(100);
/// The port that our own engine pings from.
const FIRST_PORT: u16 = 20_000;
const PORTS: u32 = 10_000;

/// Arguments of `handoff rds ping`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct PingArgs {
    /// The address of this host to ping from
    #[arg(value_name = "OWN")]
    pub own: IpAddr,

    /// The peer's address
    #[arg(value_name = "PEER")]
    pub peer: IpAddr,

    /// What serves, and whom.
    #[command(flatten)]
    pub serving: Serving,

    /// Number of pings to send
    #[arg(short, long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    pub count: u32,

    /// Seconds to wait for each answer
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub timeout: u32,
}

#[derive(Serialize)]
struct Report {
    peer: IpAddr,
    engine: &'static str,
    answers_us: Vec<u64>,
    /// Pings without an answer.
    lost: u32,
}

pub(super) fn run(args: &PingArgs, context: &Context) -> Result<(), Failure> {
    let driver = Driver::new().failed("no driver")?;
    let (host, _) = args.serving.host(&driver, args.own, &[args.peer], true, UNDER_WAY)?;
    let mut report =
        Report { peer: args.peer, engine: host.name(), answers_us: Vec::new(), lost: 0 };
    let asked = |took: Option<Duration>, report: &mut Report| {
        report.lost += u32::from(took.is_none());
        report.answers_us.extend(took.map(|took| took.as_micros() as u64));
        let number = report.answers_us.len() + report.lost as usize;
        let line = match took {
            Some(took) => format!("{number}: {} us\n", took.as_micros()),
            None => format!("{number}: no answer within {} s\n", args.timeout),
        };
        if context.json { Ok(()) } else { output::text(&line) }
    };
    match &host {
        Host::Kernel { .. } => {
            for _ in 0..args.count {
                asked(by_the_kernel(args, context)?, &mut report)?;
            }
        }
        Host::Own(engine) => {
            let executor = Executor::new(&driver);
            host.serve(&executor);
            let pings = async {
                for number in 0..args.count {
                    asked(by_ours(engine, number, args, context, &driver).await?, &mut report)?;
                }
                Ok::<(), Failure>(())
            };
            executor.run(pings).failed("pinging")??;
        }
    }
    if report.answers_us.is_empty() {
        return Err(Failure::failed(format!(
            "{} does not answer within {} s: is it reachable, with RDS at TCP port {PORT}?",
            args.peer, args.timeout
        )));
    }
    if context.json {
        return output::json(&report);
    }
    output::text(&format!("{} of {} lost\n", report.lost, args.count))
}

fn by_the_kernel(args: &PingArgs, context: &Context) -> Result<Option<Duration>, Failure> {
    // Late answers go to other ports.
    let socket: Socket<Vec<u8>> = Socket::bind((args.own, 0).into()).map_err(failure)?;
    let begin = Instant::now();
    let sent = socket.send((args.peer, 0).into(), Vec::new(), 0, Mode::Copy);
    sent.map_err(|refused| failure(refused.error))?;
    loop {
        context.stop.check()?;
        socket.completions(usize::MAX, &mut Vec::new()).map_err(failure)?;
        while let Some(received) = socket.receive().map_err(failure)? {
            if received.from.ip() == args.peer && received.from.port() == 0 {
                return Ok(Some(begin.elapsed()));
            }
        }
        let Some(left) = left(begin, args) else { return Ok(None) };
        socket.wait_readable(left.min(LOOK)).map_err(failure)?;
    }
}

async fn by_ours(
    engine: &Engine,
    number: u32,
    args: &PingArgs,
    context: &Context,
    driver: &Driver,
) -> Result<Option<Duration>, Failure> {
    // Late answers go to other ports.
    let port = FIRST_PORT + (number % PORTS) as u16;
    let begin = Instant::now();
    engine.ping(args.peer, port).map_err(failure)?;
    loop {
        context.stop.check()?;
        while let Some(event) = engine.event() {
            if event == (Event::Pong { peer: args.peer, port }) {
                return Ok(Some(begin.elapsed()));
            }
        }
        if left(begin, args).is_none() {
            return Ok(None);
        }
        select(pin!(engine.changed()), pin!(clock::pass(driver, LOOK))).await;
    }
}

/// How long the answer may still take.
fn left(begin: Instant, args: &PingArgs) -> Option<Duration> {
    Duration::from_secs(args.timeout.into())
        .checked_sub(begin.elapsed())
        .filter(|left| !left.is_zero())
}
