//! `handoff rds stress`: requests of one size, answers of another, so many under way.

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use futures_lite::future::yield_now;
use futures_util::future::try_join_all;
use handoff::{Buffer, Driver, Executor, Region, Tally};
use handoff_rds::End;

use super::answer;
use super::frame::{self, HEAD, Head, Kind};
use super::port::{EngineName, Host, Port, UNDER_WAY};
use super::report::{Report, Times};
use crate::{Context, Failure, clock, output, quantity};

/// Between looks where nothing tells of a change.
const LOOK: Duration = Duration::from_millis(80);

const EXAMPLES: &str = "\
Examples:
  handoff rds stress 192.0.2.2                                    answers, until it is stopped
  handoff rds stress 192.0.2.1 -s 192.0.2.2                       asks there for ten seconds
  handoff rds stress 192.0.2.1 -s 192.0.2.2 -s 192.0.2.3 -q 1M -a 64 -t 8 -d 64 --time 60
  handoff rds stress 192.0.2.1 -s 192.0.2.2 --engine own --copy --json

Each task has a port of its own and so many requests under way to each peer; the answering side
checks what arrives and so does this one. A buffer is used again when it is back and its answer there.
A request that is lost, because its peer was restarted, is asked again.
Answers of the kernel's engine are copied.";

/// How long answers that are missing at the end are waited for, from the last that came on.
const GRACE: Duration = Duration::from_secs(5);
/// A peer that says nothing for so long, and for twice its longest answer, may have been restarted: what it
/// has not answered is asked again.
const SILENCE: Duration = Duration::from_secs(2);
/// A request is lost if so many later ones of its task were answered, for each that may be under way.
const OVERTAKEN: u64 = 4;
/// Bytes that a task makes before what is made goes out, and bytes that it checks before it makes more.
/// Much more would be waited for on a slow machine as if no peer answered.
pub(super) const AT_ONCE: usize = 1 << 20;

/// Arguments of `handoff rds stress`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct StressArgs {
    /// The address of this host
    #[arg(value_name = "OWN")]
    pub own: IpAddr,

    /// Where requests go, where the same command answers; without any, this one answers
    #[arg(short = 's', long = "send-to", value_name = "PEER")]
    pub peers: Vec<IpAddr>,

    /// The port that answers
    #[arg(short, long, default_value_t = 4000, value_parser = clap::value_parser!(u16).range(1..))]
    pub port: u16,

    /// Bytes of a request, 16 to 1M; K and M multiply
    #[arg(short = 'q', long, value_name = "BYTES", default_value = "1024", value_parser = size)]
    pub request: usize,

    /// Bytes of an answer, 16 to 1M
    #[arg(short = 'a', long, value_name = "BYTES", default_value = "256", value_parser = size)]
    pub answer: usize,

    /// Tasks, each with a port
    #[arg(short, long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub tasks: u16,

    /// Requests under way, for each task and peer
    #[arg(short, long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub depth: u16,

    /// Seconds; the answering side goes on until it is stopped
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    pub time: Option<u32>,

    /// Seconds without any answer after which peers count as unreachable
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    pub timeout: u32,

    /// Which engine
    #[arg(long, value_enum, default_value_t = EngineName::Auto)]
    pub engine: EngineName,

    /// Have our own engine listen on this TCP port, to which a packet filter leads connections to 16385:
    /// so beside a kernel that has rds_tcp
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub listen_port: Option<u16>,

    /// Send with a copy
    #[arg(long)]
    pub copy: bool,

    /// Don't check what arrives
    #[arg(long)]
    pub no_verify: bool,
}

impl StressArgs {
    /// Bytes of all requests that may be under way.
    fn under_way(&self) -> usize {
        let requests = usize::from(self.tasks) * usize::from(self.depth) * self.peers.len();
        (requests * self.request).max(UNDER_WAY)
    }
}

fn size(text: &str) -> Result<usize, String> {
    let bytes = quantity::bytes(text).and_then(|bytes| usize::try_from(bytes).ok());
    bytes.filter(|bytes| (HEAD..=1 << 20).contains(bytes)).ok_or_else(|| {
        "a message has 16 bytes to 1M here, the longest that the kernel takes".to_owned()
    })
}

/// What is counted while it runs.
#[derive(Default)]
pub(super) struct Counted {
    pub(super) messages: u64,
    pub(super) bytes: u64,
    pub(super) corrupt: u64,
    pub(super) tally: Tally,
    pub(super) times: Times,
    asked_again: u64,
    unanswered: u64,
}

/// What all tasks of a run share.
pub(super) struct Run<'a> {
    pub(super) args: &'a StressArgs,
    pub(super) context: &'a Context,
    driver: &'a Driver,
    pub(super) begin: Instant,
    /// When the last answer came, to whichever task.
    answered: Cell<Instant>,
    pub(super) counted: RefCell<Counted>,
}

impl Run<'_> {
    pub(super) fn is_over(&self, default: Option<u32>) -> bool {
        let time = self.args.time.or(default).map(|time| Duration::from_secs(time.into()));
        self.context.stop.requested() || time.is_some_and(|time| self.begin.elapsed() >= time)
    }

    /// Waits for a moment, after which it is time to look again.
    pub(super) async fn look(&self) {
        clock::pass(self.driver, LOOK).await;
    }

    pub(super) fn took_back(&self, tally: Tally) {
        self.counted.borrow_mut().tally += tally;
    }
}

pub(super) fn run(args: &StressArgs, context: &Context) -> Result<(), Failure> {
    let driver =
        Driver::builder().entries(1024).in_flight(65_536).build().map_err(Failure::not_possible)?;
    let (host, passed_over) =
        Host::new(&driver, args.engine, args.own, args.listen_port, args.copy, args.under_way())?;
    host.announce(passed_over.as_deref());
    let executor = Executor::new(&driver);
    host.serve(&executor);
    let asking = match args.peers.is_empty() {
        true => Vec::new(),
        false => (0..args.tasks)
            .map(|_| Asking::set_up(args, &host, &driver))
            .collect::<Result<_, _>>()?,
    };
    let begin = Instant::now();
    let run = Run {
        args,
        context,
        driver: &driver,
        begin,
        answered: Cell::new(begin),
        counted: RefCell::default(),
    };
    let ended = executor.run(async {
        if args.peers.is_empty() {
            return answer::run(&run, &host, &driver).await;
        }
        let tasks = asking.into_iter().map(|task| task.run(&run));
        try_join_all(tasks).await.map(|_| ())
    });
    let seconds = run.begin.elapsed().as_secs_f64();
    let counted = run.counted.take();
    let report = Report {
        engine: host.name(),
        passed_over,
        seconds,
        messages: counted.messages,
        messages_per_s: counted.messages as f64 / seconds,
        bytes: counted.bytes,
        bytes_per_s: counted.bytes as f64 / seconds,
        corrupt: counted.corrupt,
        asked_again: counted.asked_again,
        latency_us: counted.times.percentiles(),
        sent: counted.tally,
    };
    if context.json {
        output::json(&report)?
    } else {
        output::text(&report.text())?
    }
    ended.map_err(Failure::failed)??;
    if counted.corrupt > 0 {
        return Err(Failure::failed(format!(
            "{} messages arrived otherwise than they were sent",
            counted.corrupt
        )));
    }
    context.stop.check()?;
    if counted.unanswered > 0 {
        return Err(Failure::failed(format!("{} requests were not answered", counted.unanswered)));
    }
    Ok(())
}

/// A request's place: its buffer is used again when it is back and its answer there.
struct Place {
    /// Which of the peers.
    peer: usize,
    to: SocketAddr,
    buffer: Option<Buffer>,
    number: u64,
    /// The request with that number is in the buffer, and was refused so far.
    made: bool,
    waits: bool,
    sent: Instant,
    /// How many were sent to the peer before.
    order: u64,
    /// The peer was restarted before it acknowledged the request.
    lost: bool,
    /// Requests that were asked again, and may be answered yet.
    given_up: Vec<u64>,
}

/// What a task knows of a peer.
struct Known {
    /// Requests sent to it.
    sent: u64,
    /// The latest of them that was answered.
    answered: u64,
    heard: Instant,
    /// The longest time that an answer took.
    longest: Option<Duration>,
}

impl Known {
    /// How long it may say nothing.
    fn silence(&self, timeout: Duration) -> Duration {
        self.longest.map_or(timeout / 2, |longest| SILENCE.max(longest * 2))
    }
}

/// A task, with its port and its memory.
struct Asking {
    port: Port,
    places: Vec<Place>,
    peers: Vec<Known>,
}

impl Asking {
    fn set_up(args: &StressArgs, host: &Host, driver: &Driver) -> Result<Self, Failure> {
        let port = host.bind_free(driver, args.copy)?;
        let count = args.peers.len() * usize::from(args.depth);
        let room = args.request.next_multiple_of(4096);
        let mut region = Region::anonymous(count * room).map_err(Failure::failed)?;
        // Registered, pages are not pinned for each send; without, it works as well.
        if let Err(error) = driver.register(&region) {
            tracing::info!(%error, "buffers stay unregistered");
        }
        let now = Instant::now();
        let places = (0..count).map(|at| {
            let mut buffer = region.take(room).expect("so many were mapped");
            buffer.set_len(args.request);
            let peer = at % args.peers.len();
            Place {
                peer,
                to: (args.peers[peer], args.port).into(),
                buffer: Some(buffer),
                number: at as u64,
                made: false,
                waits: false,
                sent: now,
                order: 0,
                lost: false,
                given_up: Vec::new(),
            }
        });
        let known = |_| Known { sent: 0, answered: 0, heard: now, longest: None };
        let peers = args.peers.iter().map(known).collect();
        Ok(Self { port, places: places.collect(), peers })
    }

    async fn run(self, run: &Run<'_>) -> Result<(), Failure> {
        let (args, Self { port, mut places, mut peers }) = (run.args, self);
        let mut over_since = None;
        let mut batch = Vec::new();
        loop {
            port.completions(&mut batch)?;
            for back in batch.drain(..) {
                run.took_back(back.tally);
                let place = &mut places[back.cookie as usize];
                place.buffer = Some(back.payload);
                place.lost = back.end == End::PeerRestarted;
            }
            let mut checked = 0;
            while checked < AT_ONCE
                && let Some(received) = port.receive()?
            {
                checked += received.payload.len();
                answered(run, &mut places, &mut peers, &received.payload);
            }
            let last = run.answered.get();
            let mut more = checked >= AT_ONCE;
            if run.is_over(Some(10)) {
                let over = *over_since.get_or_insert_with(Instant::now);
                let waiting = places.iter().filter(|place| place.waits).count();
                let settled = waiting == 0 && places.iter().all(|place| place.buffer.is_some());
                if settled || run.context.stop.requested() || over.max(last).elapsed() > GRACE {
                    run.counted.borrow_mut().unanswered += waiting as u64;
                    return Ok(());
                }
            } else {
                give_up_lost(run, &mut places, &peers);
                more |= send(run, &port, &mut places, &mut peers)?;
            }
            if last.elapsed().as_secs() >= u64::from(args.timeout) {
                return Err(Failure::failed(format!(
                    "no answer for {} s from any of {}: are they reachable, and does `handoff rds stress` answer at \
                     port {}?",
                    args.timeout,
                    args.peers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
                    args.port
                )));
            }
            if more {
                yield_now().await;
            } else {
                port.changed(run.look()).await?;
            }
        }
    }
}

fn answered(run: &Run<'_>, places: &mut [Place], peers: &mut [Known], bytes: &[u8]) {
    let now = Instant::now();
    run.answered.set(now);
    let counted = &mut *run.counted.borrow_mut();
    let found = frame::head(bytes);
    let place = found.and_then(|head| Some((head, places.get_mut(head.number as u32 as usize)?)));
    let Some((head, place)) = place else {
        counted.corrupt += 1;
        return;
    };
    let intact = run.args.no_verify
        || head.kind == Kind::Answer
            && bytes.len() == run.args.answer
            && frame::is_intact(bytes, head.number);
    counted.corrupt += u64::from(!intact);
    let peer = &mut peers[place.peer];
    peer.heard = now;
    if let Some(late) = place.given_up.iter().position(|number| *number == head.number) {
        place.given_up.swap_remove(late);
    } else if place.waits && place.number == head.number {
        counted.messages += 1;
        counted.bytes += run.args.request as u64;
        let time = place.sent.elapsed();
        counted.times.add(time);
        peer.longest = peer.longest.max(Some(time));
        peer.answered = peer.answered.max(place.order);
        place.waits = false;
    } else if intact {
        // Nobody asked for it; what is not intact is counted above.
        counted.corrupt += 1;
    }
}

/// What will not be answered any more is asked again, with another number.
fn give_up_lost(run: &Run<'_>, places: &mut [Place], peers: &[Known]) {
    let timeout = Duration::from_secs(run.args.timeout.into());
    for place in places.iter_mut().filter(|place| place.waits && place.buffer.is_some()) {
        let peer = &peers[place.peer];
        let overtaken = peer.answered > place.order + OVERTAKEN * u64::from(run.args.depth);
        let silent = place.sent.max(peer.heard).elapsed() >= peer.silence(timeout);
        if place.lost || overtaken || silent {
            place.given_up.push(place.number);
            (place.waits, place.lost) = (false, false);
            run.counted.borrow_mut().asked_again += 1;
        }
    }
}

/// Sends [`AT_ONCE`], and says whether there may be more to send.
fn send(
    run: &Run<'_>,
    port: &Port,
    places: &mut [Place],
    peers: &mut [Known],
) -> Result<bool, Failure> {
    let mut sent = 0;
    // Peers that take no more for now.
    let mut full = Vec::new();
    for place in places.iter_mut().filter(|place| !place.waits) {
        if full.contains(&place.to) {
            continue;
        }
        let Some(mut buffer) = place.buffer.take() else { continue };
        if !place.made {
            place.number = place.number.wrapping_add(1 << 32);
            let answer = run.args.answer as u32;
            let head = Head { number: place.number, answer, kind: Kind::Request };
            frame::fill(&mut buffer, head, !run.args.no_verify);
            place.made = true;
        }
        place.sent = Instant::now();
        match port.send(place.to, buffer, place.number as u32) {
            Ok(()) => {
                (place.made, place.waits) = (false, true);
                let peer = &mut peers[place.peer];
                (place.order, peer.sent) = (peer.sent, peer.sent + 1);
            }
            Err(refused) => {
                place.buffer = Some(refused.payload);
                if !refused.error.is_temporary() {
                    return Err(refused.error.into());
                }
                full.push(place.to);
                continue;
            }
        }
        sent += run.args.request;
        if sent >= AT_ONCE {
            return Ok(true);
        }
    }
    Ok(false)
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
