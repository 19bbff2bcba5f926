//! The receiving side.

use std::collections::VecDeque;
use std::net::SocketAddr;

use handoff::{Buffer, Tally};

use super::super::checksum::PieceSum;
use super::super::destination::Target;
use super::super::job::Job;
use super::super::receive::{Intake, Outlet, Writes};
use super::super::report::{Hop, Report, Transferred};
use super::super::wire::{Decoder, Event, Frame};
use super::greeting::{admit, resolve};
use super::line::{self, Line};
use crate::Failure;
use crate::clock::Clock;
use crate::net::address::Endpoint;

/// Bytes after which the sender is told that they were taken, though more wait.
const CONFIRM: u64 = 512 << 10;

/// Receives at `endpoint`, an address of this host, what a sender has, into what `outlet` makes of
/// `target`.
///
/// # Errors
///
/// What fails here, or there.
pub(in super::super) fn receive(
    job: &Job<'_>,
    endpoint: &Endpoint,
    target: Option<Target>,
    outlet: impl FnOnce(Option<Target>) -> Result<Outlet, Failure>,
) -> Result<Report, Failure> {
    let own = resolve(job, endpoint)?;
    line::with(job, own.ip(), Some(own.port()), async |line| {
        eprintln!("handoff: listening on rds://{}", SocketAddr::new(own.ip(), own.port()));
        let peer = admit(line).await?;
        let clock = Clock::start();
        job.set_length(peer.length);
        let outlet = outlet(target)?;
        let intake = Intake::new(job, &outlet, peer.length, true);
        intake.prepare(1)?;
        let received = take(line, &intake).await?;
        let (bytes, checksum) = intake.check()?;
        let hop = Hop {
            from: "socket",
            to: "memory",
            engine: line.engine.to_owned(),
            reason: "messages are received by copying; frames included".to_owned(),
            tally: Tally { copied: received, ..Tally::default() },
        };
        let hops = vec![hop, intake.hop_out(false)];
        if let Outlet::File { destination, .. } = outlet {
            let sync = job.args.sync;
            // It may take long, and the sender waits for signs of life.
            let committing = std::thread::spawn(move || destination.commit(sync));
            while !committing.is_finished() {
                line.attend()?;
                line.changed().await?;
            }
            let committed = committing.join();
            committed.unwrap_or_else(|_| Err(Failure::failed("naming the file panicked")))?;
        }
        let answer = Frame::Answer { bytes, outcome: Ok(checksum) };
        // What is in place stays there, whether or not the sender hears of it.
        if let Err(failure) = line.say(&answer.encode()).await {
            let why = failure.line().unwrap_or_default();
            job.note(format!("the sender may take it for failed: {why}"));
        }
        let verified = Some("the same on both sides, of what was sent and what arrived in memory");
        let done = Transferred { bytes, streams: 1, checksum, verified, hops };
        Ok(Report::new(job, &clock, done))
    })
}

/// Takes the sender's frames in, to the end of the transfer; the bytes of all messages.
async fn take(line: &Line<'_>, intake: &Intake<'_>) -> Result<u64, Failure> {
    let mut decoder = Decoder::new();
    let mut writes = Writes(VecDeque::new());
    let mut piece = (0, 0, PieceSum::new(false));
    let mut received = 0;
    loop {
        let message = match line.heard()? {
            Some(message) => message,
            None => {
                line.confirm(received)?;
                line.hear().await?
            }
        };
        received += message.len() as u64;
        if received - line.taken() >= CONFIRM {
            line.confirm(received)?;
        }
        let mut rest = Some(message);
        while let Some(bytes) = rest.take().filter(|bytes| !bytes.is_empty()) {
            let (taken, event) = decoder.next(&bytes).map_err(Failure::failed)?;
            let mut part = bytes;
            rest = Some(part.split_off(taken));
            match event {
                None => {}
                Some(Event::Frame(Frame::Data { offset, len })) => {
                    piece = (offset, u64::from(len), PieceSum::new(true));
                }
                Some(Event::Payload { offset, last }) => {
                    piece.2.update(&part);
                    let len = part.len();
                    let putting = intake.put(Buffer::from(part), len, offset, &mut writes);
                    line.meanwhile(putting, || line.attend()).await?;
                    if last {
                        let (offset, len, sum) =
                            std::mem::replace(&mut piece, (0, 0, PieceSum::new(false)));
                        intake.cover(offset, len, sum)?;
                    }
                }
                Some(Event::Frame(Frame::End { bytes, checksum })) => {
                    intake.ended(bytes, checksum)?;
                    line.meanwhile(intake.finish(writes), || line.attend()).await?;
                    return Ok(received);
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
