//! The receiving side: spans of one or many connections to a file or pipe.
//!
//! Contracts:
//! - a transfer that ends without its end, with a gap, or with another checksum leaves no file;
//! - the sender is told that all is well only after the file is under its name, and why when not;
//! - what is under way is bounded by the receive pool: with all of its chunks on their way to the
//!   file, the kernel receives no more, and the sender waits.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use handoff::{
    File, Lend, Pool, ReceiveEngine, Received, Receiver, RxQueue, Socket, Tally, Transfer,
};
use socket2::SockRef;

use super::Job;
use super::checksum::PieceSum;
use super::coverage::Coverage;
use super::destination::Destination;
use super::job::streamed;
use super::ranged::Ranged;
use super::report::{Hop, Report, Transferred, hexadecimal};
use super::staging::Staging;
use super::tell::tell;
use super::wire::{Decoder, Event, Frame};
use crate::Failure;
use crate::clock::Clock;
use crate::failure::Failed;

/// Bytes of a chunk of the receive pool: about what one receive yields at high rates.
const CHUNK: usize = 64 * 1024;

/// How long a failing receiver hears the sender out, so that its answer is not lost to a reset.
const LINGER: Duration = Duration::from_secs(2);

/// The most writes of a connection under way: a NIC delivers by the packet.
const WRITES: usize = 64;

/// Where the bytes go.
pub(super) enum Outlet {
    /// Not under its name yet.
    File {
        /// To be written at offsets.
        file: Ranged,
        /// To be given its name.
        destination: Destination,
    },
    /// In order.
    Stream { file: File, name: String },
}

/// What to receive from, and how.
pub(super) struct Receiving<'a> {
    /// The connections, hellos said.
    pub(super) connections: Vec<OwnedFd>,
    /// The queue of a NIC that they are led to.
    pub(super) queue: Option<&'a RxQueue>,
    /// One side wants the checksum.
    pub(super) verify: bool,
    /// Bytes, where the sender knows.
    pub(super) length: Option<u64>,
}

/// What all connections of a transfer share.
pub(super) struct Intake<'a> {
    outlet: &'a Outlet,
    coverage: RefCell<Coverage>,
    verify: bool,
    length: Option<u64>,
    /// What the sender said at the end: bytes, checksum.
    end: Cell<Option<(u64, Option<u64>)>>,
    /// Bytes written to a pipe.
    streamed: Cell<u64>,
    /// Bytes copied once more to be aligned.
    staged: Cell<u64>,
    job: &'a Job<'a>,
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
    let streams = receiving.connections.len();
    let (pool, mut registered) = pool(job, streams)?;
    if let Some(queue) = receiving.queue {
        registered &= job.register(queue);
    }
    let mut sockets = Vec::new();
    let mut receivers = Vec::new();
    for connection in receiving.connections {
        let socket = job.driver.socket(connection).failed("attaching a socket")?;
        let intake = receiving.queue.map_or_else(|| (&pool).into(), |queue| queue.or(&pool));
        receivers.push(socket.receive(intake).failed(RECEIVING)?);
        sockets.push(socket);
    }
    let intake = Intake::new(job, &outlet, receiving.length, receiving.verify);
    let received = intake.prepare(streams).and_then(|()| {
        job.until_stopped(async {
            let mut all: FuturesUnordered<_> = receivers
                .iter_mut()
                .map(|receiver| async {
                    if job.args.raw {
                        intake.take_raw(receiver).await
                    } else {
                        intake.take(receiver).await
                    }
                })
                .collect();
            while let Some(ended) = all.next().await {
                ended?;
            }
            intake.check()
        })
    });
    let hops = intake.hops(&receivers, registered);
    let ended = received.and_then(|(bytes, checksum)| {
        if let Outlet::File { destination, .. } = outlet {
            destination.commit(job.args.sync)?;
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
    Ok(Report::new(job, &clock, Transferred { bytes, streams, checksum, verified, hops }))
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

/// Writes under way, oldest first.
pub(super) struct Writes<B: Lend = Received>(pub(super) VecDeque<Transfer<B>>);

impl Default for Writes {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<'a> Intake<'a> {
    /// Of a transfer of this length, where that is known.
    pub(super) fn new(
        job: &'a Job<'a>,
        outlet: &'a Outlet,
        length: Option<u64>,
        verify: bool,
    ) -> Self {
        Self {
            outlet,
            coverage: RefCell::new(Coverage::new(length, verify)),
            verify,
            length,
            end: Cell::new(None),
            streamed: Cell::new(0),
            staged: Cell::new(0),
            job,
        }
    }

    /// Finds out before anything is received whether the transfer can be taken.
    pub(super) fn prepare(&self, streams: usize) -> Result<(), Failure> {
        match self.outlet {
            Outlet::Stream { name, .. } if streams > 1 => Err(Failure::failed(format!(
                "{name} takes its bytes in order, and so one stream, not {streams} (--streams 1)"
            ))),
            Outlet::File { destination, .. } => destination.reserve(self.length.unwrap_or(0)),
            Outlet::Stream { .. } => Ok(()),
        }
    }

    /// The next span, while writes that are over are put away.
    async fn next_span(
        &self,
        receiver: &mut Receiver,
        writes: &mut Writes,
    ) -> Result<Option<Received>, Failure> {
        poll_fn(|context| {
            while let Some(oldest) = writes.0.front_mut() {
                let Poll::Ready(over) = Pin::new(oldest).poll(context) else { break };
                writes.0.pop_front();
                self.written(over)?;
            }
            Pin::new(&mut receiver.next_span())
                .poll(context)
                .map(|span| span.transpose().failed(RECEIVING))
        })
        .await
    }

    fn written<B>(&self, over: handoff::Transferred<B>) -> Result<(), Failure> {
        match self.outlet {
            Outlet::File { file, .. } => file.written(over).map(drop),
            Outlet::Stream { name, .. } => streamed(over, name).map(drop),
        }
    }

    /// Waits for writes.
    ///
    /// # Errors
    ///
    /// Theirs.
    pub(super) async fn finish<B: Lend>(&self, writes: Writes<B>) -> Result<(), Failure> {
        for write in writes.0 {
            self.written(write.await)?;
        }
        Ok(())
    }

    /// Puts a part of a piece where it belongs.
    pub(super) async fn put<B: Lend>(
        &self,
        part: B,
        len: usize,
        offset: u64,
        writes: &mut Writes<B>,
    ) -> Result<(), Failure> {
        match self.outlet {
            Outlet::File { file, .. } => {
                writes.0.push_back(file.write(part, len, offset)?);
                if writes.0.len() > WRITES
                    && let Some(oldest) = writes.0.pop_front()
                {
                    self.written(oldest.await)?;
                }
            }
            Outlet::Stream { file, .. } => {
                if offset != self.streamed.get() {
                    return Err(Failure::failed("the sender left the order of the bytes"));
                }
                self.streamed.set(offset + len as u64);
                let write = file.write(part).failed("writing")?;
                self.written(write.await)?;
            }
        }
        self.job.progress.inc(len as u64);
        Ok(())
    }

    pub(super) fn cover(&self, offset: u64, len: u64, sum: PieceSum) -> Result<(), Failure> {
        self.coverage
            .borrow_mut()
            .add(offset, len, sum.finish())
            .map_err(|error| Failure::failed(format!("the sender breaks the protocol: {error}")))
    }

    /// Takes one connection's frames in, to the end of the transfer.
    async fn take(&self, receiver: &mut Receiver) -> Result<(), Failure> {
        let mut decoder = Decoder::new();
        let mut writes = Writes::default();
        let mut staging = match self.outlet {
            Outlet::File { file, .. } if file.is_direct() => Some(Staging::new(self.job, file)?),
            _ => None,
        };
        let mut piece = (0, 0, PieceSum::new(false));
        loop {
            let Some(mut span) = self.next_span(receiver, &mut writes).await? else {
                return Err(self.broken_off());
            };
            while !span.is_empty() {
                let (taken, event) = decoder.next(&span).map_err(Failure::failed)?;
                let part = span.split_to(taken);
                match event {
                    None => {}
                    Some(Event::Frame(Frame::Data { offset, len })) => {
                        piece = (offset, u64::from(len), PieceSum::new(self.verify));
                    }
                    Some(Event::Payload { offset, last }) => {
                        piece.2.update(&part);
                        match &mut staging {
                            Some(staging) if !staging.may_pass(&part, offset) => {
                                self.job.progress.inc(part.len() as u64);
                                staging.put(&part, offset, last).await?;
                            }
                            _ => {
                                let len = part.len();
                                self.put(part, len, offset, &mut writes).await?;
                            }
                        }
                        if last {
                            let (offset, len, sum) =
                                std::mem::replace(&mut piece, (0, 0, PieceSum::new(false)));
                            self.cover(offset, len, sum)?;
                        }
                    }
                    Some(Event::Frame(Frame::End { bytes, checksum })) => {
                        self.ended(bytes, checksum)?;
                        if let Some(staging) = staging {
                            let copied = staging.finish().await?;
                            self.staged.set(self.staged.get() + copied);
                        }
                        return self.finish(writes).await;
                    }
                    Some(Event::Frame(Frame::Abort { reason })) => {
                        return Err(Failure::failed(format!("the sender gave up: {reason}")));
                    }
                    Some(Event::Frame(Frame::Answer { .. })) => {
                        return Err(Failure::failed("the sender breaks the protocol: it answers"));
                    }
                }
            }
        }
    }

    /// Takes bare bytes in, to the end of the connection.
    async fn take_raw(&self, receiver: &mut Receiver) -> Result<(), Failure> {
        let mut writes = Writes::default();
        let mut staging = match self.outlet {
            Outlet::File { file, .. } if file.is_direct() => Some(Staging::new(self.job, file)?),
            _ => None,
        };
        let mut offset = 0;
        let mut sum = PieceSum::new(self.verify);
        while let Some(span) = self.next_span(receiver, &mut writes).await? {
            let len = span.len() as u64;
            sum.update(&span);
            match &mut staging {
                Some(staging) if !staging.may_pass(&span, offset) => {
                    self.job.progress.inc(len);
                    staging.put(&span, offset, false).await?;
                }
                _ => self.put(span, len as usize, offset, &mut writes).await?,
            }
            offset += len;
        }
        if let Some(staging) = staging {
            let copied = staging.finish().await?;
            self.staged.set(self.staged.get() + copied);
        }
        self.cover(0, offset, sum)?;
        self.end.set(Some((offset, None)));
        self.finish(writes).await
    }

    fn broken_off(&self) -> Failure {
        let got = self.coverage.borrow().bytes();
        let of = self.length.map(|length| format!(" of {length}")).unwrap_or_default();
        Failure::failed(format!(
            "the sender ended the connection midway, after {got}{of} bytes: nothing of it is kept"
        ))
    }

    pub(super) fn ended(&self, bytes: u64, checksum: Option<u64>) -> Result<(), Failure> {
        let before = self.end.replace(Some((bytes, checksum)));
        if before.is_some_and(|before| before != (bytes, checksum)) {
            return Err(Failure::failed(
                "the sender breaks the protocol: its streams end differently",
            ));
        }
        Ok(())
    }

    /// Whether everything came; bytes and checksum.
    ///
    /// # Errors
    ///
    /// What is missing or differs.
    pub(super) fn check(&self) -> Result<(u64, Option<u64>), Failure> {
        let (bytes, theirs) = self.end.get().unwrap_or_default();
        let coverage = self.coverage.borrow();
        let Some(ours) = coverage.complete(bytes) else {
            return Err(Failure::failed(format!(
                "the sender speaks of {bytes} bytes, and {} came",
                coverage.bytes()
            )));
        };
        match (ours, theirs) {
            (Some(ours), Some(theirs)) if ours != theirs => Err(Failure::failed(format!(
                "the checksums differ: {} was sent and {} arrived; nothing of it is kept",
                hexadecimal(theirs),
                hexadecimal(ours)
            ))),
            (Some(_), None) if !self.job.args.raw => {
                Err(Failure::failed("the sender sent no checksum"))
            }
            _ => Ok((bytes, ours)),
        }
    }

    fn hops(&self, receivers: &[Receiver], registered: bool) -> Vec<Hop> {
        let mut tally = Tally::default();
        for receiver in receivers {
            tally += receiver.tally();
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
        if self.staged.get() > 0 {
            hops.push(Hop {
                from: "memory",
                to: "memory",
                engine: "memcpy".to_owned(),
                reason: "direct writes need aligned memory".to_owned(),
                tally: copied(self.staged.get()),
            });
        }
        hops.push(self.hop_out(registered));
        hops
    }

    /// What became of the bytes on their way out.
    pub(super) fn hop_out(&self, registered: bool) -> Hop {
        let (tally, reason) = match self.outlet {
            Outlet::File { file, .. } => (file.tally(), file.reason()),
            Outlet::Stream { .. } => (
                Tally { copied: self.streamed.get(), ..Tally::default() },
                "a pipe or stream is written by copying".to_owned(),
            ),
        };
        Hop {
            from: "memory",
            to: self.job.destination_kind(),
            engine: self.job.file_engine("write", registered),
            reason,
            tally,
        }
    }
}
