//! The receiving side: connections divided among threads, each with a driver, a queue of the NIC if there is one, and
//! a [`share`](crate::share) of the connections.
//!
//! Contracts:
//! - a transfer that ends early, with a gap, or with another checksum leaves no file;
//! - the sender gets success only after the file is under its name; otherwise it gets the reason.
//!
//! The first thread greets the sender when all others are ready. It gives each its share, and tells the sender how
//! all ended.

use std::net::Shutdown;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use handoff::{ReceiveEngine, RxQueue, RxStats, Socket, Tally};
use handoff_command::Failure;
use handoff_command::clock::Clock;
use handoff_command::descriptors;
use handoff_command::failure::Failed;
use handoff_command::threads::on_threads;
use handoff_net::arrived::Arrived;
use handoff_net::nic::{Card, Rules};
use socket2::SockRef;

use crate::destination::Target;
use crate::ending::Ending;
use crate::handshake::Reached;
use crate::intake::{Intake, Part};
use crate::job::Job;
use crate::kept::Preserved;
use crate::order::Order;
use crate::queues::{self, Source, Steering, Turn};
use crate::reach::{Offer, reach};
use crate::report::{Hop, Report, Transferred};
use crate::share::{LINGER, Share, ShareReceiver, hear_out};
use crate::sink::{Output, Sink};
use crate::tell::tell;
use crate::wire::{Frame, Hello};

/// What a checksum was compared with.
pub(crate) const SAME: &str = "the same on both sides, of what was sent and what arrived in memory";

pub(crate) const UNCOMPARED: &str = "compare it yourself: --raw tells nothing of the sender's";

const SHARING_OUT: &str = "sharing connections out";
pub(crate) const ANSWERING: &str = "answering the sender";

/// How often the sender hears that this side is at work.
const AT_WORK: Duration = Duration::from_millis(500);

/// How a transfer is divided.
pub(crate) struct Spread<'a> {
    pub(crate) threads: usize,
    pub(crate) card: Option<&'a Card>,
    /// Of the card, at most one for each thread.
    pub(crate) queues: usize,
}

/// Waits for the sender and receives everything into `target`.
///
/// # Errors
///
/// Errors here, or there.
pub(crate) fn receive(
    order: &Order<'_>,
    target: Option<Target>,
    spread: &Spread<'_>,
) -> Result<Report, Failure> {
    descriptors::allow_all();
    // A sender that connects decides how many there are; if --threads is given, each expects one.
    let streams = usize::from(order.args.streams).max(spread.threads);
    let ending = Ending::new()?;
    let mut turns = queues::turns(spread.card, spread.threads, spread.queues, streams).into_iter();
    let turn = turns.next().unwrap_or(Turn::Plain);
    let (mut others, mut members) = (Vec::new(), Vec::new());
    for turn in turns {
        let (is_ready, ready) = channel();
        let (give, given) = channel();
        others.push(Other { ready, give });
        members.push(Member::Other(Helper { order, turn, is_ready, given, ending: &ending }));
    }
    let first = First { order, target, spread, turn, others, ending: &ending };
    members.insert(0, Member::First(first));
    let tasks = members.into_iter().map(|member| move || member.run()).collect();
    outcome(on_threads(ending.quit(), tasks))
}

/// How all ended: as the first thread says, which puts the file in place and tells the sender. Later events for
/// others, such as a signal, change nothing.
fn outcome<T>(ended: Vec<Result<Option<T>, Failure>>) -> Result<T, Failure> {
    for ended in ended {
        if let Some(report) = ended? {
            return Ok(report);
        }
    }
    Err(Failure::failed("no thread received anything"))
}

/// A thread.
enum Member<'a> {
    First(First<'a>),
    Other(Helper<'a>),
}

impl Member<'_> {
    fn run(self) -> Result<Option<Report>, Failure> {
        match self {
            Self::First(first) => first.run(),
            Self::Other(helper) => helper.run().map(|()| None),
        }
    }
}

/// A share, and the intake that it belongs to.
type Given<'a> = (Share, Arc<Intake<'a>>);

/// What the first thread knows about another one.
struct Other<'a> {
    /// Whether it can receive.
    ready: Receiver<bool>,
    give: Sender<Given<'a>>,
}

/// A thread that receives what it is given.
struct Helper<'a> {
    order: &'a Order<'a>,
    turn: Turn<'a>,
    is_ready: Sender<bool>,
    given: Receiver<Given<'a>>,
    ending: &'a Ending,
}

impl Helper<'_> {
    fn run(self) -> Result<(), Failure> {
        let job = Job::new(self.order)?;
        let queue = match self.turn.take(&job)? {
            Source::Plain => None,
            Source::Queue(queue) => Some(queue),
            Source::Nothing => {
                // The first thread may have failed, and says why.
                let _ = self.is_ready.send(false);
                return Ok(());
            }
        };
        let _ = self.is_ready.send(true);
        // There may be nothing for it to receive.
        let Ok((share, intake)) = self.given.recv() else { return Ok(()) };
        let receiving = ShareReceiver::begin(&job, &intake, share, queue);
        let mut receiving = receiving.map_err(|failure| self.ending.fail(failure))?;
        let ended = receiving.run(self.ending);
        if ended.is_err() && !job.order.args.raw {
            let _ = job.for_at_most(LINGER, hear_out(&mut receiving.receivers));
        }
        ended
    }
}

/// The thread that does the handshake.
struct First<'a> {
    order: &'a Order<'a>,
    target: Option<Target>,
    spread: &'a Spread<'a>,
    turn: Turn<'a>,
    others: Vec<Other<'a>>,
    ending: &'a Ending,
}

impl First<'_> {
    /// `None` if another thread has failed and says why.
    fn run(self) -> Result<Option<Report>, Failure> {
        let Self { order, target, spread, turn, others, ending } = self;
        let job = &Job::new(order)?;
        let queue = match turn.take(job)? {
            Source::Queue(queue) => Some(queue),
            Source::Plain | Source::Nothing => None,
        };
        let Some(gives) = those_ready(others) else { return Ok(None) };
        let threads = 1 + gives.len();
        let steering = queue.clone().zip(spread.card).map(|(queue, card)| Steering {
            queue,
            rules: Rules::of(card),
            threads,
            queues: spread.queues,
        });
        let offer = Offer { sends: false, length: None, sparse: false };
        let Reached { connections: sockets, peer, .. } = reach(job, &offer, steering.as_ref())?;
        let length = peer.and_then(|peer| peer.length);
        job.order.set_length(length);
        let output = Output::open(order, target)?;
        let verify = order.args.verify || peer.is_some_and(|peer| peer.verifies);
        let sparse = peer.is_some_and(|peer| peer.sparse);

        let clock = Clock::start();
        let streams = sockets.len();
        let intake = Arc::new(Intake::new(order, length, verify, output.fate()));
        // First words may have come by the queue.
        let greeted = queue.as_ref().map(RxQueue::stats).unwrap_or_default();
        let mut shares = Vec::new();
        for number in 0..threads.min(streams) {
            let queue = queues::number_of(number, spread.queues);
            let before = if queue == 0 { greeted } else { RxStats::default() };
            let opened = output.share(order.args.direct)?;
            let memory = job.order.memory_for(streams)? / threads.min(streams);
            shares.push(Share { number, connections: Vec::new(), opened, queue, before, memory });
        }
        for (stream, socket) in sockets.iter().enumerate() {
            let connection = socket.as_fd().try_clone_to_owned().failed(SHARING_OUT)?;
            shares[queues::thread_of(stream, threads)].connections.push(connection);
        }
        ending.begin(shares.len());
        if let Err(failure) = output.prepare(order, streams, length, sparse) {
            ending.fail(failure);
        }
        let mut shares = shares.into_iter();
        let own = shares.next().ok_or_else(|| Failure::failed("no connection to receive from"))?;
        for (give, share) in gives.into_iter().zip(shares) {
            // A thread that is gone has failed.
            let _ = give.send((share, Arc::clone(&intake)));
        }
        let receiving = ShareReceiver::begin(job, &intake, own, queue);
        let mut receiving = receiving.map_err(|failure| ending.fail(failure))?;
        let received = receiving.run(ending).and_then(|()| intake.check());
        let holes = intake.holes();
        let ended = received.and_then(|(bytes, checksum)| {
            put_in_place(job, output, &intake, peer.as_ref(), &sockets, bytes)?;
            Ok((bytes, checksum))
        });
        let (bytes, checksum) = match ended {
            Ok(ended) => ended,
            Err(failure) => {
                if !order.args.raw {
                    refuse(job, &sockets, &mut receiving, &failure);
                }
                return Err(failure);
            }
        };
        if !order.args.raw {
            confirm(job, &sockets, bytes, checksum);
        }
        let verified = checksum.map(|_| match order.args.raw {
            true => UNCOMPARED,
            false => SAME,
        });
        let (parts, nic) = intake.take_parts();
        let hops = hops(&parts, nic.as_ref(), &receiving.sink);
        let threads = parts.iter().map(|part| part.connections).collect();
        let done = Transferred { bytes, holes, streams, checksum, verified, hops };
        Ok(Some(Report { threads, nic, ..Report::new(order, &clock, done) }))
    }
}

/// Gives the file its name, and says meanwhile that this side is at work, to a peer that hears it.
///
/// # Errors
///
/// Those of [`Destination::commit`](crate::destination::Destination::commit).
pub(crate) fn put_in_place(
    job: &Job<'_>,
    output: Output,
    intake: &Intake<'_>,
    peer: Option<&Hello>,
    sockets: &[Socket],
    bytes: u64,
) -> Result<(), Failure> {
    let Output::File(destination) = output else { return Ok(()) };
    let (preserved, sync) = (intake.attributes().map(Preserved::told), job.order.args.sync);
    let commit = move || destination.commit(bytes, preserved, sync);
    let hears_work = peer.is_some_and(|peer| peer.hears_work);
    saying(commit, || {
        if hears_work {
            // What it does not hear it does not need.
            let _ = job.for_at_most(LINGER, tell(sockets, &Frame::AtWork, ANSWERING));
        }
    })
    .map(drop)
}

/// Tells the sender that everything is in place. It stays there, whether or not the sender hears of it.
pub(crate) fn confirm(job: &Job<'_>, sockets: &[Socket], bytes: u64, checksum: Option<u64>) {
    let answer = Frame::Answer { bytes, outcome: Ok(checksum) };
    let connections: Vec<_> = sockets.iter().collect();
    if let Err(failure) = job.until_cut_off(&connections, tell(sockets, &answer, ANSWERING)) {
        let why = failure.line().unwrap_or_default();
        job.order.note(format!("the sender may take it for failed: {why}"));
    }
}

/// The threads that can get shares, when all are ready; `None` if one has failed.
fn those_ready<'a>(others: Vec<Other<'a>>) -> Option<Vec<Sender<Given<'a>>>> {
    let mut gives = Vec::new();
    for other in others {
        if other.ready.recv().ok()? {
            gives.push(other.give);
        }
    }
    Some(gives)
}

/// Does on a thread of its own what may take long, such as a sync, and says again and again that this side is at work.
fn saying<T: Send>(
    work: impl FnOnce() -> Result<T, Failure> + Send,
    mut at_work: impl FnMut(),
) -> Result<T, Failure> {
    let (tell, over) = channel();
    thread::scope(|scope| {
        scope.spawn(move || tell.send(work()));
        loop {
            match over.recv_timeout(AT_WORK) {
                Ok(done) => return done,
                Err(RecvTimeoutError::Timeout) => at_work(),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Failure::failed("naming the file panicked"));
                }
            }
        }
    })
}

/// Tells the sender why it failed, and reads from it for a moment.
fn refuse(job: &Job<'_>, sockets: &[Socket], receiving: &mut ShareReceiver<'_>, failure: &Failure) {
    let reason = failure.line().unwrap_or_else(|| "what it writes to was closed".to_owned());
    let answer = Frame::Answer { bytes: 0, outcome: Err(reason) };
    // The sender may be gone, and then nobody is left to tell.
    let _ = job.for_at_most(LINGER, async {
        tell(sockets, &answer, ANSWERING).await?;
        for socket in sockets {
            SockRef::from(&socket.as_fd()).shutdown(Shutdown::Write).map_err(Failure::failed)?;
        }
        hear_out(&mut receiving.receivers).await;
        Ok::<_, Failure>(())
    });
}

/// From the sockets to the outlet, on all threads.
fn hops(parts: &[Part], nic: Option<&Arrived>, sink: &Sink<'_>) -> Vec<Hop> {
    let (mut received, mut written, mut staged) = (Tally::default(), Tally::default(), 0);
    let mut ways: Vec<&(ReceiveEngine, String)> = Vec::new();
    for part in parts {
        received += part.received;
        written += part.written;
        staged += part.staged;
        for way in &part.engines {
            if !ways.contains(&way) {
                ways.push(way);
            }
        }
    }
    if let Some(nic) = nic {
        received = nic.settle(received);
    }
    let by = |part: fn(&(ReceiveEngine, String)) -> String| {
        ways.iter().map(|way| part(way)).collect::<Vec<_>>().join("; ")
    };
    let mut hops = vec![Hop {
        from: "socket",
        to: "memory",
        engine: by(|(engine, _)| engine.to_string()),
        reason: by(|(_, reason)| reason.clone()) + "; frames included",
        tally: received,
    }];
    if staged > 0 {
        let unit = parts.iter().map(|part| part.unit).max().unwrap_or_default();
        hops.push(Hop {
            from: "memory",
            to: "memory",
            engine: "memcpy".to_owned(),
            reason: match ways.iter().any(|(engine, _)| *engine == ReceiveEngine::Zcrx) {
                true => format!(
                    "direct writes take pieces at multiples of {unit} bytes here, and these lay at others"
                ),
                false => "direct writes need aligned memory".to_owned(),
            },
            tally: Tally { copied: staged, ..Tally::default() },
        });
    }
    hops.push(sink.hop_out(written, parts.iter().all(|part| part.registered)));
    hops
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_in_place_is_a_success_whatever_ends_another_thread() {
        assert_eq!(outcome(vec![Ok(Some(7)), Err(Failure::Stopped(2)), Ok(None)]), Ok(7));
    }

    #[test]
    fn the_sender_hears_that_a_long_sync_is_at_work() {
        let (tell, told) = channel();
        let work = move || told.recv().map_err(Failure::failed);
        let at_work = || {
            // It may hear it more than once.
            let _ = tell.send(7);
        };
        assert_eq!(saying(work, at_work), Ok(7));
    }

    #[test]
    fn the_first_thread_leaves_it_to_others_to_say_why_they_failed() {
        let why = Failure::failed("why");
        assert_eq!(outcome::<()>(vec![Ok(None), Ok(None), Err(why.clone())]), Err(why.clone()));
        assert_eq!(outcome::<()>(vec![Err(why.clone()), Err(Failure::Stopped(2))]), Err(why));
    }
}
