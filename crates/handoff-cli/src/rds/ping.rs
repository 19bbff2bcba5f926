//! `handoff rds ping`: empty messages to port 0, which RDS answers itself.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use handoff_rds::kernel::{Mode, Socket};
use serde::Serialize;

use crate::{Context, Failure, output};

const EXAMPLES: &str = "\
Examples:
  handoff rds ping 192.0.2.1 192.0.2.2            from the first address to the second, four times
  handoff rds ping -c 1 --timeout 2 192.0.2.1 192.0.2.2

By the kernel's sockets; a peer may be a kernel or our own engine.";

/// How long a wait may last before the signals are looked at.
const SHORT: Duration = Duration::from_millis(100);

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
    answers_us: Vec<u64>,
}

pub(super) fn run(args: &PingArgs, context: &Context) -> Result<(), Failure> {
    let socket: Socket<Vec<u8>> = Socket::bind((args.own, 0).into())?;
    let mut report = Report { peer: args.peer, answers_us: Vec::new() };
    for number in 1..=args.count {
        let took = ping(&socket, args, context)?;
        report.answers_us.push(took.as_micros() as u64);
        if !context.json {
            output::text(&format!("{number}: {} us\n", took.as_micros()))?;
        }
    }
    if context.json { output::json(&report) } else { Ok(()) }
}

fn ping(socket: &Socket<Vec<u8>>, args: &PingArgs, context: &Context) -> Result<Duration, Failure> {
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
        let left = Duration::from_secs(args.timeout.into()).saturating_sub(begin.elapsed());
        if left.is_zero() {
            return Err(Failure::failed(format!(
                "{} does not answer within {} s: is it reachable, and has it RDS at TCP port 16385?",
                args.peer, args.timeout
            )));
        }
        socket.wait_readable(left.min(SHORT))?;
    }
}
