//! `handoff rds ping`: empty messages to port 0, which RDS answers itself, by either engine.

use std::net::IpAddr;
use std::pin::pin;
use std::time::{Duration, Instant};

use futures_util::future::{Either, select};
use handoff::{Driver, Executor};
use handoff_rds::kernel::{Mode, Socket};
use handoff_rds::own::Engine;
use handoff_rds::protocol::Event;
use serde::Serialize;

use super::port::{EngineName, Host, UNDER_WAY};
use crate::failure::Failed;
use crate::ticks::Ticks;
use crate::{Context, Failure, output};

const EXAMPLES: &str = "\
Examples:
  handoff rds ping 192.0.2.1 192.0.2.2            from the first address to the second, four times
  handoff rds ping -c 1 --timeout 2 192.0.2.1 192.0.2.2

The first answer takes as long as connecting does. A peer may be a kernel or our own engine.";

/// How long a wait may last before signals and the time are looked at.
const LOOK: Duration = Duration::from_millis(100);
/// Where our own engine pings from.
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

    /// Which engine
    #[arg(long, value_enum, default_value_t = EngineName::Auto)]
    pub engine: EngineName,

    /// How many times
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
}

pub(super) fn run(args: &PingArgs, context: &Context) -> Result<(), Failure> {
    let driver = Driver::new().failed("no driver")?;
    let (host, passed_over) = Host::new(&driver, args.engine, args.own, true, UNDER_WAY)?;
    host.announce(passed_over.as_deref());
    let mut report = Report { peer: args.peer, engine: host.name(), answers_us: Vec::new() };
    let answered = |took: Duration, report: &mut Report| {
        report.answers_us.push(took.as_micros() as u64);
        let line = format!("{}: {} us\n", report.answers_us.len(), took.as_micros());
        if context.json { Ok(()) } else { output::text(&line) }
    };
    match &host {
        Host::Kernel { .. } => {
            let socket: Socket<Vec<u8>> = Socket::bind((args.own, 0).into())?;
            for _ in 0..args.count {
                answered(by_the_kernel(&socket, args, context)?, &mut report)?;
            }
        }
        Host::Own(engine) => {
            let executor = Executor::new(&driver);
            host.serve(&executor);
            let ticks = Ticks::new([LOOK, Duration::ZERO, Duration::ZERO]);
            let pings = async {
                for number in 0..args.count {
                    answered(by_ours(engine, number, args, context, &ticks).await?, &mut report)?;
                }
                Ok(())
            };
            let ended = executor.run(async {
                match select(pin!(pings), pin!(ticks.run(&driver))).await {
                    Either::Left((done, _)) => done,
                    Either::Right((failure, _)) => Err(failure),
                }
            });
            ended.failed("pinging")??;
        }
    }
    if context.json { output::json(&report) } else { Ok(()) }
}

fn by_the_kernel(
    socket: &Socket<Vec<u8>>,
    args: &PingArgs,
    context: &Context,
) -> Result<Duration, Failure> {
    let begin = Instant::now();
    let sent = socket.send((args.peer, 0).into(), Vec::new(), 0, Mode::Copy);
    sent.map_err(|refused| Failure::from(refused.error))?;
    loop {
        context.stop.check()?;
        socket.completions(usize::MAX, &mut Vec::new())?;
        while let Some(received) = socket.receive()? {
            if received.from.ip() == args.peer && received.from.port() == 0 {
                return Ok(begin.elapsed());
            }
        }
        socket.wait_readable(left(begin, args)?.min(LOOK))?;
    }
}

async fn by_ours(
    engine: &Engine,
    number: u32,
    args: &PingArgs,
    context: &Context,
    ticks: &Ticks,
) -> Result<Duration, Failure> {
    // Answers that come late are those to other ports.
    let port = FIRST_PORT + (number % PORTS) as u16;
    let begin = Instant::now();
    engine.ping(args.peer, port)?;
    loop {
        context.stop.check()?;
        while let Some(event) = engine.event() {
            if event == (Event::Pong { peer: args.peer, port }) {
                return Ok(begin.elapsed());
            }
        }
        left(begin, args)?;
        select(pin!(engine.changed()), pin!(ticks.next())).await;
    }
}

/// How long the answer may still take.
fn left(begin: Instant, args: &PingArgs) -> Result<Duration, Failure> {
    let left = Duration::from_secs(args.timeout.into()).saturating_sub(begin.elapsed());
    if left.is_zero() {
        return Err(Failure::failed(format!(
            "{} does not answer within {} s: is it reachable, and has it RDS at TCP port 16385?",
            args.peer, args.timeout
        )));
    }
    Ok(left)
}
