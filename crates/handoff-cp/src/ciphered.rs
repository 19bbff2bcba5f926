//! The receiving side over TLS: one thread, whose connections are deciphered into memory that the file is written from.
//!
//! Contracts:
//! - as of [`receive`](crate::receive): no file of a transfer that ends early, with a gap, or with another checksum, and
//!   success for the sender only after the file is under its name;
//! - a connection holds as many buffers as it has; with all of them on their way to the file, nothing more is received;
//! - payload is deciphered into whole buffers of its own, so that direct writes take it as it is.

use std::collections::VecDeque;
use std::net::Shutdown;

use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt};
use handoff::tls::TlsSession;
use handoff::{Buffer, Engine, Error, Socket, Tally, Transfer};
use handoff_command::Failure;
use handoff_command::clock::Clock;
use handoff_command::failure::Failed;
use rustix::net::RecvFlags;

use crate::checksum::PieceSum;
use crate::connection::{RECEIVING, has_left};
use crate::destination::Target;
use crate::intake::{Frames, Intake, Portion};
use crate::job::Job;
use crate::reach::{Offer, reach};
use crate::receive::{ANSWERING, SAME, UNCOMPARED, confirm, put_in_place};
use crate::report::{Ciphered, Hop, Report, Transferred};
use crate::share::LINGER;
use crate::sink::{Output, Put, Sink};
use crate::tell::tell;
use crate::wire::{Frame, MAX_TEXT};

/// The most payload of a record of TLS.
const RECORD: usize = 16 << 10;

/// Buffers of a connection, at least: one fills while another is written.
const LEAST: usize = 2;

/// Waits for the sender, or connects to it, and receives everything into `target`.
///
/// # Errors
///
/// Errors here, or there.
pub(crate) fn receive(job: &Job<'_>, target: Option<Target>) -> Result<Report, Failure> {
    let order = job.order;
    if let Some(Target::File(_)) = target {
        order.can_begin_anew();
    }
    let offer = Offer { sends: false, length: None, sparse: false };
    let reached = reach(job, &offer, None)?;
    let sockets = reached.connections;
    let streams = sockets.len();
    let Some(session) = reached.session else {
        return Err(Failure::failed("the connections are not ciphered"));
    };
    // With bare bytes it says nothing.
    let peer = reached.peer;
    let length = peer.and_then(|peer| peer.length);
    order.set_length(length);
    let output = Output::open(order, target)?;
    let verify = order.args.verify || peer.is_some_and(|peer| peer.verifies);
    let sparse = peer.is_some_and(|peer| peer.sparse);
    let clock = Clock::start();
    let intake = Intake::new(order, length, verify, output.fate());
    let memory = job.memory(LEAST * streams)?;
    let sink = Sink::new(job, &intake, output.share(order.args.direct)?)?;
    let mut shares: Vec<Vec<Buffer>> = Vec::new();
    shares.resize_with(streams, Vec::new);
    for (number, buffer) in memory.buffers.into_iter().enumerate() {
        shares[number % streams].push(buffer);
    }
    let connections: Vec<_> = sockets.iter().collect();
    let received = output.prepare(order, streams, length, sparse).and_then(|()| {
        job.until_cut_off(&connections, async {
            let all = sockets.iter().zip(shares).map(|(socket, spare)| {
                let arriving = Arriving { sink: &sink, socket, spare, writes: VecDeque::new() };
                async {
                    match order.args.raw {
                        true => arriving.take_raw(&session).await,
                        false => arriving.take(&session).await,
                    }
                }
            });
            let mut all: FuturesUnordered<_> = all.collect();
            let mut tally = Tally::default();
            while let Some(taken) = all.next().await {
                tally += taken?;
            }
            Ok(tally)
        })
    });
    let ended = received.and_then(|tally| {
        let (bytes, checksum) = intake.check()?;
        put_in_place(job, output, &intake, peer.as_ref(), &sockets, bytes)?;
        Ok((tally, bytes, checksum))
    });
    let (tally, bytes, checksum) = match ended {
        Ok(ended) => ended,
        Err(failure) => {
            if !order.args.raw {
                refuse(job, &sockets, &failure);
            }
            return Err(failure);
        }
    };
    if !order.args.raw {
        confirm(job, &sockets, bytes, checksum);
    }
    for socket in &sockets {
        // The sender has its answer, whether or not it sees a proper end.
        let _ = socket.shutdown(Shutdown::Write);
    }
    let hop = Hop {
        from: "socket",
        to: "memory",
        engine: session.engine.name().to_owned(),
        reason: match order.args.raw {
            true => session.reason.clone(),
            false => format!("{}; frames included", session.reason),
        },
        tally,
    };
    let hops = vec![hop, sink.hop_out(sink.tally(), memory.registered)];
    let verified = checksum.map(|_| if order.args.raw { UNCOMPARED } else { SAME });
    let done = Transferred { bytes, holes: intake.holes(), streams, checksum, verified, hops };
    let tls = Some(Ciphered::by(&session));
    Ok(Report { threads: vec![streams], tls, ..Report::new(order, &clock, done) })
}

/// One connection, and its bytes on their way out.
struct Arriving<'a> {
    sink: &'a Sink<'a>,
    socket: &'a Socket,
    spare: Vec<Buffer>,
    /// Oldest first.
    writes: VecDeque<Transfer<Buffer>>,
}

impl Arriving<'_> {
    /// Takes everything, to the end of the transfer; returns what became of the bytes.
    ///
    /// # Errors
    ///
    /// Errors of the sender, and errors here.
    async fn take(mut self, session: &TlsSession) -> Result<Tally, Failure> {
        let by_kernel = session.engine == Engine::KernelTls;
        let mut tally = Tally::default();
        let mut frames = Frames::new(self.sink.intake);
        let words = || Buffer::from(vec![0; MAX_TEXT]);
        // Bytes of the piece that have come.
        let mut at = 0;
        loop {
            let (wanted, is_payload) = frames.wanted();
            let mut buffer = if is_payload { self.spare().await? } else { words() };
            let len = wanted.min(buffer.capacity());
            buffer.set_len(len);
            let buffer = self.exactly(buffer).await?;
            // The kernel deciphers into a buffer that ends with a record, and otherwise into pages of its own first.
            let in_place = at % RECORD == 0 && (len == wanted || len % RECORD == 0);
            match (by_kernel, in_place) {
                (true, true) => tally.ciphered += len as u64,
                (true, false) => tally.unknown += len as u64,
                (false, _) => tally.copied += len as u64,
            }
            at = if is_payload && len < wanted { at + len } else { 0 };
            match frames.next(&buffer)?.1 {
                Portion::Payload { offset, .. } => {
                    match self.sink.begin(buffer, len, offset).await? {
                        Put::Writing(write) => self.writes.push_back(write),
                        Put::Written(buffer) => self.spare.push(buffer),
                    }
                }
                Portion::Head => {}
                Portion::Hole { offset, len } => {
                    self.sink.leave_out(offset, len, || has_left(self.socket)).await?;
                }
                Portion::End => {
                    for write in self.writes {
                        self.sink.written(write.await)?;
                    }
                    return Ok(tally);
                }
            }
        }
    }

    /// Takes bare bytes, to the end of the connection, which its sender must have told (close-notify).
    ///
    /// # Errors
    ///
    /// As of [`take`](Self::take), and a connection that was cut.
    async fn take_raw(mut self, session: &TlsSession) -> Result<Tally, Failure> {
        let by_kernel = session.engine == Engine::KernelTls;
        let intake = self.sink.intake;
        let (mut tally, mut offset, mut ended) = (Tally::default(), 0, false);
        let mut sum = PieceSum::new(intake.verify);
        while !ended {
            let mut buffer = self.spare().await?;
            let room = buffer.capacity();
            buffer.set_len(room);
            // Whole buffers go past the page cache; who reads a stream gets what has come.
            let received = match self.sink.is_stream() {
                true => self.socket.receive_into(buffer),
                false => self.socket.receive_exact(buffer),
            };
            let received = received.failed(RECEIVING)?.await.failed(RECEIVING)?;
            let len = match received.result {
                Ok(len) => len,
                Err(Error::StreamEnded { received, .. }) => received,
                Err(error) => return Err(self.broken(error)),
            };
            ended = len < room && (len == 0 || !self.sink.is_stream());
            match (by_kernel, len % RECORD == 0) {
                (true, true) => tally.ciphered += len as u64,
                (true, false) => tally.unknown += len as u64,
                (false, _) => tally.copied += len as u64,
            }
            let mut buffer = received.buffer;
            buffer.set_len(len);
            sum.update(&buffer);
            if len == 0 {
                break;
            }
            match self.sink.begin(buffer, len, offset).await? {
                Put::Writing(write) => self.writes.push_back(write),
                Put::Written(buffer) => self.spare.push(buffer),
            }
            offset += len as u64;
        }
        for write in std::mem::take(&mut self.writes) {
            self.sink.written(write.await)?;
        }
        intake.cover(0, offset, sum.finish())?;
        intake.ended(offset, None)?;
        Ok(tally)
    }

    /// A buffer with nothing in it, of the oldest write if it must be.
    async fn spare(&mut self) -> Result<Buffer, Failure> {
        if let Some(buffer) = self.spare.pop() {
            return Ok(buffer);
        }
        let oldest = self.writes.pop_front();
        let oldest = oldest.ok_or_else(|| Failure::failed("a connection has no buffer"))?;
        self.sink.written(oldest.await)
    }

    async fn exactly(&self, buffer: Buffer) -> Result<Buffer, Failure> {
        let received = self.socket.receive_exact(buffer).failed(RECEIVING)?;
        let received = received.await.failed(RECEIVING)?;
        match received.result {
            Ok(_) => Ok(received.buffer),
            Err(error) => Err(self.broken(error)),
        }
    }

    /// What the end of a connection midway is.
    fn broken(&self, error: Error) -> Failure {
        let intake = self.sink.intake;
        match error {
            Error::StreamEnded { .. } => intake.broken_off(),
            Error::Tls { reason } => {
                let line = intake.broken_off().line().unwrap_or_default();
                Failure::failed(format!("{line} ({reason})"))
            }
            error => self.sink.job.order.cut(Failure::failed(format!("{RECEIVING}: {error}"))),
        }
    }
}

/// Tells the sender why it failed, and takes what it sends for a moment: a connection closed with something unread is
/// reset, and the reset would overtake the answer.
fn refuse(job: &Job<'_>, sockets: &[Socket], failure: &Failure) {
    let reason = failure.line().unwrap_or_else(|| "what it writes to was closed".to_owned());
    let answer = Frame::Answer { bytes: 0, outcome: Err(reason) };
    // The sender may be gone, and then nobody is left to tell.
    let _ = job.for_at_most(LINGER, async {
        tell(sockets, &answer, ANSWERING).await?;
        for socket in sockets {
            socket.shutdown(Shutdown::Write).map_err(Failure::failed)?;
        }
        join_all(sockets.iter().map(hear_out)).await;
        Ok::<_, Failure>(())
    });
}

/// Takes what comes to the end, and looks at none of it.
async fn hear_out(socket: &Socket) {
    let mut thrown_away = vec![0; RECORD];
    while let Ok(readiness) = socket.readable()
        && readiness.await.is_ok()
        && rustix::net::recv(socket, &mut thrown_away[..], RecvFlags::DONTWAIT)
            .is_ok_and(|it| it.0 > 0)
    {}
}
