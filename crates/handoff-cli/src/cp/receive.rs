//! The receiving side: spans of one or many connections to their [`intake`](super::intake).
//!
//! Contracts:
//! - a transfer that ends without its end, with a gap, or with another checksum leaves no file;
//! - the sender is told that all is well only after the file is under its name, and why when not;
//! - what is under way is bounded by the receive pool: with all of its chunks on their way to the
//!   file, the kernel receives no more, and the sender waits.

use std::future::{Future, poll_fn};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use handoff::{Pool, ReceiveEngine, Receiver, RxQueue, Socket, Span, Tally};
use socket2::SockRef;

use super::Job;
use super::checksum::PieceSum;
use super::gathering::Gathering;
use super::intake::{Frames, Intake, Outlet, Portion, Writes};
use super::report::{Hop, Report, Transferred};
use super::tell::tell;
use super::wire::Frame;
use crate::Failure;
use crate::clock::Clock;
use crate::failure::Failed;
use crate::net::arrived::Arrived;

/// Bytes of a chunk of the receive pool: about what one receive yields at high rates.
const CHUNK: usize = 64 * 1024;

/// How long a failing receiver hears the sender out, so that its answer is not lost to a reset.
const LINGER: Duration = Duration::from_secs(2);

/// What to receive from, and how.
pub(super) struct Receiving<'a> {
    /// The connections, hellos said.
    pub(super) connections: Vec<Socket>,
    /// The queue of a NIC that they are led to.
    pub(super) queue: Option<&'a RxQueue>,
    /// One side wants the checksum.
    pub(super) verify: bool,
    /// Bytes, where the sender knows.
    pub(super) length: Option<u64>,
    /// Not all of them take room.
    pub(super) sparse: bool,
}

/// Receives all into `outlet`.
///
/// # Errors
///
/// What fails here, or there.
pub(super) fn receive(
    job: &Job<'_>,
    outlet: Outlet,
    receiving: Receiving<'_>,
) -> Result<Report, Failure> {
    let clock = Clock::start();
    // First words may have come by the queue.
    let greeted = receiving.queue.map(RxQueue::stats).unwrap_or_default();
    let streams = receiving.connections.len();
    let (pool, mut registered) = pool(job, streams)?;
    if let Some(queue) = receiving.queue {
        // Registered, it would be memory as a whole.
        registered &= queue.chunks() == queue.chunks_limit() && job.register(queue);
    }
    let mut sockets = Vec::new();
    let mut receivers = Vec::new();
    for socket in receiving.connections {
        let intake = receiving.queue.map_or_else(|| (&pool).into(), |queue| queue.or(&pool));
        receivers.push(socket.receive(intake).failed(RECEIVING)?);
        sockets.push(socket);
    }
    let intake = Intake::new(job, &outlet, receiving.length, receiving.verify);
    let received = intake.prepare(streams, receiving.sparse).and_then(|()| {
        job.until_stopped(async {
            let mut all: FuturesUnordered<_> = receivers
                .iter_mut()
                .map(|receiver| async {
                    let connection = Connection::new(&intake, receiver)?;
                    if job.args.raw { connection.take_raw().await } else { connection.take().await }
                })
                .collect();
            while let Some(ended) = all.next().await {
                ended?;
            }
            intake.check()
        })
    });
    let nic = receiving.queue.map(|queue| Arrived::since(&greeted, queue));
    let hops = hops(&intake, &receivers, nic.as_ref(), registered);
    let (holes, attributes) = (intake.holes(), intake.attributes());
    let ended = received.and_then(|(bytes, checksum)| {
        if let Outlet::File { destination, .. } = outlet {
            destination.commit(bytes, attributes, job.args.sync)?;
        }
        Ok((bytes, checksum))
    });
    let (bytes, checksum) = match ended {
        Ok(ended) => ended,
        Err(failure) => {
            if !job.args.raw {
                refuse(job, &sockets, receivers, &failure);
            }
            return Err(failure);
        }
    };
    if !job.args.raw {
        let answer = Frame::Answer { bytes, outcome: Ok(checksum) };
        // What is in place stays there, whether or not the sender hears of it.
        if let Err(failure) = job.until_stopped(tell(&sockets, &answer, ANSWERING)) {
            let why = failure.line().unwrap_or_default();
            job.note(format!("the sender may take it for failed: {why}"));
        }
    }
    let verified = match (checksum, job.args.raw) {
        (None, _) => None,
        (_, true) => Some("compare it yourself: --raw tells nothing of the sender's"),
        _ => Some("the same on both sides, of what was sent and what arrived in memory"),
    };
    let done = Transferred { bytes, holes, streams, checksum, verified, hops };
    Ok(Report { nic, ..Report::new(job, &clock, done) })
}

const RECEIVING: &str = "receiving from the peer";
const ANSWERING: &str = "answering the sender";

/// The chunks that all connections receive into, and whether they are registered.
fn pool(job: &Job<'_>, streams: usize) -> Result<(Pool, bool), Failure> {
    let bytes = job.memory_for(streams)?.max(CHUNK * (streams + 1));
    let region = job.region(bytes)?;
    let registered = job.register(&region);
    let pool = job.driver.pool(region, CHUNK).failed("making a receive pool")?;
    Ok((pool, registered))
}

/// Tells the sender why it failed, and hears it out for a moment: a connection that is closed with
/// bytes unread is reset, and the reset would overtake the answer.
fn refuse(job: &Job<'_>, sockets: &[Socket], mut receivers: Vec<Receiver>, failure: &Failure) {
    let reason = failure.line().unwrap_or_else(|| "what it writes to was closed".to_owned());
    let answer = Frame::Answer { bytes: 0, outcome: Err(reason) };
    // The sender may be gone, and then nobody is left to tell.
    let _ = job.for_at_most(LINGER, async {
        tell(sockets, &answer, ANSWERING).await?;
        for socket in sockets {
            SockRef::from(&socket.as_fd()).shutdown(Shutdown::Write).map_err(Failure::failed)?;
        }
        let mut all: FuturesUnordered<_> = receivers
            .iter_mut()
            .map(|receiver| async { while let Some(Ok(_)) = receiver.next_span().await {} })
            .collect();
        while all.next().await.is_some() {}
        Ok::<_, Failure>(())
    });
}

/// One connection, and its bytes on their way out.
struct Connection<'a> {
    intake: &'a Intake<'a>,
    receiver: &'a mut Receiver,
    writes: Writes<Span>,
    /// For a file past the page cache.
    gathering: Option<Gathering<'a>>,
}

/// What a connection waits for.
enum Event {
    /// A span, or the end.
    Came(Option<Span>),
    /// A write of gathered spans is over, with where they belong.
    Written(handoff::Transferred<Vec<Span>>, u64),
}

impl<'a> Connection<'a> {
    fn new(intake: &'a Intake<'a>, receiver: &'a mut Receiver) -> Result<Self, Failure> {
        let gathering = match intake.outlet {
            Outlet::File { file, .. } if file.is_direct() => {
                Some(Gathering::new(intake.job, file)?)
            }
            _ => None,
        };
        Ok(Self { intake, receiver, writes: Writes::default(), gathering })
    }

    /// Takes frames in, to the end of the transfer.
    async fn take(mut self) -> Result<(), Failure> {
        let mut frames = Frames::new(self.intake);
        loop {
            let Some(mut span) = self.next_span().await? else {
                return Err(self.intake.broken_off());
            };
            while !span.is_empty() {
                let (taken, portion) = frames.next(&span)?;
                let part = span.split_to(taken);
                match portion {
                    Portion::Head => {}
                    Portion::Payload { offset, last } => self.put(part, offset, last).await?,
                    Portion::Hole { offset, len } => self.intake.leave_out(offset, len).await?,
                    Portion::End => return self.finish().await,
                }
            }
        }
    }

    /// Takes bare bytes in, to the end of the connection.
    async fn take_raw(mut self) -> Result<(), Failure> {
        let mut offset = 0;
        let mut sum = PieceSum::new(self.intake.verify);
        while let Some(span) = self.next_span().await? {
            let len = span.len() as u64;
            sum.update(&span);
            self.put(span, offset, false).await?;
            offset += len;
        }
        self.intake.cover(0, offset, sum.finish())?;
        self.intake.ended(offset, None)?;
        self.finish().await
    }

    /// The next span, while writes that are over are put away: they may have the chunks that it needs.
    async fn next_span(&mut self) -> Result<Option<Span>, Failure> {
        loop {
            let event = poll_fn(|context| {
                while let Some(oldest) = self.writes.0.front_mut() {
                    let Poll::Ready(over) = Pin::new(oldest).poll(context) else { break };
                    self.writes.0.pop_front();
                    self.intake.written(over)?;
                }
                if let Some(gathering) = &mut self.gathering
                    && let Poll::Ready((over, offset)) = gathering.poll_write(context)
                {
                    return Poll::Ready(Ok(Event::Written(over, offset)));
                }
                Pin::new(&mut self.receiver.next_span())
                    .poll(context)
                    .map(|span| span.transpose().failed(RECEIVING).map(Event::Came))
            })
            .await?;
            match event {
                Event::Came(span) => return Ok(span),
                Event::Written(over, offset) => {
                    if let Some(gathering) = &mut self.gathering {
                        gathering.end_write(over, offset).await?;
                    }
                }
            }
        }
    }

    /// Puts bytes where they belong; `last` when what follows belongs elsewhere.
    async fn put(&mut self, part: Span, offset: u64, last: bool) -> Result<(), Failure> {
        let len = part.len();
        match &mut self.gathering {
            Some(gathering) => {
                self.intake.check_size(offset, len as u64)?;
                self.intake.job.progress.inc(len as u64);
                gathering.put(part, offset, last).await
            }
            None => self.intake.put(part, len, offset, &mut self.writes).await,
        }
    }

    async fn finish(self) -> Result<(), Failure> {
        if let Some(gathering) = self.gathering {
            let copied = gathering.finish().await?;
            self.intake.staged.set(self.intake.staged.get() + copied);
        }
        self.intake.finish(self.writes).await
    }
}

/// From the sockets to the outlet.
fn hops(
    intake: &Intake<'_>,
    receivers: &[Receiver],
    nic: Option<&Arrived>,
    registered: bool,
) -> Vec<Hop> {
    let mut tally = Tally::default();
    for receiver in receivers {
        tally += receiver.tally();
    }
    if let Some(nic) = nic {
        tally = nic.settle(tally);
    }
    let copied = |copied| Tally { copied, ..Tally::default() };
    let mut ways: Vec<_> = receivers.iter().map(Receiver::engine).collect();
    ways.dedup();
    let by = |part: fn(&(ReceiveEngine, String)) -> String| {
        ways.iter().map(part).collect::<Vec<_>>().join("; ")
    };
    let mut hops = vec![Hop {
        from: "socket",
        to: "memory",
        engine: by(|(engine, _)| engine.to_string()),
        reason: by(|(_, reason)| reason.clone()) + "; frames included",
        tally,
    }];
    if intake.staged.get() > 0 {
        hops.push(Hop {
            from: "memory",
            to: "memory",
            engine: "memcpy".to_owned(),
            reason: match receivers.iter().any(|it| it.engine().0 == ReceiveEngine::Zcrx) {
                true => format!(
                    "direct writes take pieces at multiples of {} bytes here, and these lay at others",
                    intake.unit()
                ),
                false => "direct writes need aligned memory".to_owned(),
            },
            tally: copied(intake.staged.get()),
        });
    }
    hops.push(intake.hop_out(registered));
    hops
}
