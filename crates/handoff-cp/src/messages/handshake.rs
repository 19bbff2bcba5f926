//! Who the peer is.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use handoff_command::Failure;
use handoff_net::address::Endpoint;
use handoff_net::deadline::Deadline;
use handoff_net::reach;

use super::line::Line;
use crate::args::Args;
use crate::job::Job;
use crate::wire::{Decoder, Event, Frame, HELLO_LEN, Hello};

/// How often a sender says hello: messages to an unbound port are dropped silently.
const HELLO_INTERVAL: Duration = Duration::from_millis(500);

/// The address and port of `endpoint`.
///
/// # Errors
///
/// An unknown name, the time-out, the stop.
pub(super) fn resolve(job: &Job<'_>, endpoint: &Endpoint) -> Result<SocketAddr, Failure> {
    let deadline = Deadline::new(job.order.stop, Some(job.order.args.reach_timeout()));
    let family = job.order.args.addresses.family();
    Ok(reach::resolve(endpoint, family, deadline)?[0])
}

/// This host's address for packets to `peer`.
///
/// # Errors
///
/// If there is no route.
pub(super) fn own_address(peer: SocketAddr) -> Result<IpAddr, Failure> {
    let any: SocketAddr = match peer {
        SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        SocketAddr::V6(_) => ([0_u16; 8], 0).into(),
    };
    // Connecting a datagram socket asks for the route, and sends nothing.
    let asked = UdpSocket::bind(any).and_then(|asker| {
        asker.connect(peer)?;
        asker.local_addr()
    });
    asked.map(|own| own.ip()).map_err(|error| Failure::failed(format!("no way to {peer}: {error}")))
}

/// Says hello until the receiver answers.
///
/// # Errors
///
/// A receiver that does not answer in time, is busy, or is another program.
pub(super) async fn send_hello(
    line: &Line<'_>,
    peer: SocketAddr,
    hello: &Hello,
) -> Result<Hello, Failure> {
    let (begin, mut said_hello) = (Instant::now(), None::<Instant>);
    loop {
        line.reap()?;
        if said_hello.is_none_or(|then| then.elapsed() > HELLO_INTERVAL) {
            line.try_say(peer, hello.encode().to_vec())?;
            said_hello = Some(Instant::now());
        }
        while let Some(received) = line.port.receive()? {
            if received.from == peer {
                return answer(&received.payload, hello);
            }
        }
        if begin.elapsed() >= line.job.order.args.reach_timeout() {
            return Err(Failure::failed(format!(
                "{peer} does not answer within {} s (--connect-timeout): is it reachable, does it have RDS at TCP port \
                 16385, and does `handoff cp rds://{peer} FILE` wait there?",
                line.job.order.args.reach_timeout().as_secs_f32()
            )));
        }
        line.changed().await?;
    }
}

fn answer(bytes: &[u8], ours: &Hello) -> Result<Hello, Failure> {
    if let Ok(bytes) = <&[u8; HELLO_LEN]>::try_from(bytes)
        && let Ok(hello) = Hello::decode(bytes)
    {
        return match hello {
            Hello { sends: true, .. } => Err(Failure::usage(
                "both sides send: on one of them rds:// is SRC, on the other DST",
            )),
            Hello { transfer, .. } if transfer != ours.transfer => {
                Err(Failure::failed("the receiver answers somebody else"))
            }
            hello => Ok(hello),
        };
    }
    match Decoder::new().next(bytes) {
        Ok((_, Some(Event::Frame(Frame::Answer { outcome: Err(reason), .. })))) => {
            Err(Failure::failed(format!("the receiver refuses: {reason}")))
        }
        _ => Err(Failure::failed("the program that answers is not `handoff cp`")),
    }
}

/// Waits for a sender's hello, and answers it.
///
/// # Errors
///
/// The engine's error.
pub(super) async fn accept_hello(line: &Line<'_>) -> Result<Hello, Failure> {
    let begin = Instant::now();
    loop {
        line.reap()?;
        if line.job.order.args.connect_timeout.is_some_and(|time| begin.elapsed() >= time) {
            return Err(Failure::failed("nobody sent in time (--connect-timeout)"));
        }
        while let Some(received) = line.port.receive()? {
            if !line.allow_list.lets_in(received.from) {
                continue;
            }
            match welcome(line.job.order.args, &received.payload) {
                Ok(hello) => {
                    let ours = Hello { sends: false, verifies: true, length: None, ..hello };
                    line.begin(received.from, &ours);
                    line.say(&ours.encode()).await?;
                    return Ok(hello);
                }
                Err(why) => line.turn_away(received.from, &received.payload, &why),
            }
        }
        line.changed().await?;
    }
}

/// The hello of a sender that can be received from, or why it cannot.
fn welcome(args: &Args, bytes: &[u8]) -> Result<Hello, String> {
    let bytes = bytes.try_into().map_err(|_| "what comes is no greeting")?;
    match Hello::decode(bytes).map_err(|error| error.to_string())? {
        Hello { sends: false, .. } => Err("it wants to receive, as this side does".to_owned()),
        Hello { streams: 2.., .. } => Err("it wants several streams".to_owned()),
        hello => args.too_long(hello.length).map_or(Ok(hello), Err),
    }
}
