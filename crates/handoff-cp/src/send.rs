//! The sending side: pieces to one or many connections, and the receiver's confirmation.
//!
//! Contracts:
//! - it succeeds only when the receiver says that everything is under its name;
//! - if the receiver fails, its reason is reported rather than what its leaving does to our sends;
//! - when this side fails, the receiver is told why before the connection ends.

use std::future::Future;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::pin;
use std::time::{Duration, Instant};

use futures_util::future::{Either, select};
use futures_util::stream::{FuturesUnordered, StreamExt};
use handoff::{Receiver, Region, Socket};
use handoff_command::Failure;
use handoff_command::clock::Clock;
use handoff_command::failure::Failed;
use socket2::SockRef;

use crate::carry::{Carriage, Inlet, Outlet, SENDING, Stream};
use crate::job::Job;
use crate::report::{Report, Transferred, hexadecimal};
use crate::tell::tell;
use crate::wire::{Attributes, Decoder, Event, Frame};

/// How long to wait, once sending failed, for the receiver's reason.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// How often to ask the kernel whether the bytes of a bare stream have arrived.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// Bytes of a piece of the receiver's answer.
const ANSWER_CHUNK: usize = 4096;

/// What to send, and how.
pub(crate) struct Sending {
    /// The connections, after the hellos.
    pub(crate) connections: Vec<Socket>,
    /// One side wants the checksum.
    pub(crate) verify: bool,
    /// Metadata of the source for the copy to keep.
    pub(crate) attributes: Option<Attributes>,
}

/// Sends all of `inlet`.
///
/// # Errors
///
/// Errors here, or there.
pub(crate) fn send(job: &Job<'_>, inlet: Inlet, sending: Sending) -> Result<Report, Failure> {
    let clock = Clock::start();
    let raw = job.order.args.raw;
    let answers = Region::anonymous(sending.connections.len() * ANSWER_CHUNK * 2)
        .and_then(|region| job.driver.pool(region, ANSWER_CHUNK))
        .failed("setting memory aside")?;
    let mut streams = Vec::new();
    let mut receivers = Vec::new();
    for socket in sending.connections {
        job.set_engine(&socket)?;
        receivers.push(socket.receive(&answers).failed("receiving")?);
        streams.push(Stream::new(socket));
    }
    let memory = job.memory(streams.len())?;
    let outlet = Outlet::Sockets { streams, raw };
    let carriage =
        Carriage::new(inlet, outlet, job.order.args.buffer, sending.verify, &job.order.progress);

    let sockets: Vec<_> = carriage.sockets().collect();
    let ended = job.until_cut_off(&sockets, async {
        let answered = pin!(async {
            // A connection closed with an unread answer is reset, which a relay in between takes for a
            // failure.
            let mut endings = endings(&mut receivers, raw, || job.hear());
            let mut answer = None;
            while let Some(ending) = endings.next().await {
                answer = Some(ending.confirmed()?);
            }
            answer.ok_or_else(|| Failure::failed("no connection to hear the receiver on"))
        });
        let sent = pin!(async {
            let (bytes, checksum) = carriage.run(memory.buffers).await?;
            if let Some(attributes) = sending.attributes {
                let frame = Frame::Attributes(attributes);
                tell(carriage.sockets().take(1), &frame, SENDING).await?;
            }
            if !raw {
                let end = Frame::End { bytes, checksum };
                tell(carriage.sockets(), &end, SENDING).await?;
            }
            Ok::<_, Failure>((bytes, checksum))
        });
        match select(sent, answered).await {
            Either::Left((Ok(sent), _)) if raw => Ok((sent, None)),
            Either::Left((Ok(sent), answered)) => Ok((sent, Some(answered.await?))),
            Either::Left((Err(failure), _)) | Either::Right((Err(failure), _)) => Err(failure),
            // The receiver may have everything before the last buffer is back.
            Either::Right((Ok(answer), sent)) => Ok((sent.await?, Some(answer))),
        }
    });
    let ((bytes, checksum), answer) = match ended {
        Ok(ended) => ended,
        Err(failure) => {
            if raw {
                // Nothing else tells the receiver that bytes are missing.
                carriage.sockets().for_each(Socket::abort);
                return Err(failure);
            }
            let failure = last_words(job, &mut receivers, failure);
            give_up(job, &carriage, &failure);
            return Err(failure);
        }
    };
    if raw {
        see_off(job, carriage.streams())?;
    }
    let verified = match answer {
        None => checksum.map(|_| "compare it yourself: --raw tells the receiver nothing"),
        Some(answer) => check(bytes, checksum, answer)?.then_some("the same on both sides"),
    };
    let hops =
        vec![carriage.hop_in(job, memory.registered), carriage.hop_out(job, memory.registered)];
    let (streams, holes) = (carriage.streams().len(), carriage.holes());
    Ok(Report::new(
        job.order,
        &clock,
        Transferred { bytes, holes, streams, checksum, verified, hops },
    ))
}

/// How it ended for the receiver.
pub(crate) enum Ending {
    /// Everything is in place: bytes and checksum.
    Confirmed(u64, Option<u64>),
    /// It said why not.
    Failed(String),
    /// It left without a word; the visible signs of that.
    Gone(String),
}

impl Ending {
    pub(crate) fn confirmed(self) -> Result<Answer, Failure> {
        match self {
            Self::Confirmed(bytes, checksum) => Ok((bytes, checksum)),
            Self::Failed(reason) => Err(Failure::failed(format!("the receiver failed: {reason}"))),
            Self::Gone(seen) => Err(Failure::failed(format!(
                "the receiver left before it confirmed the transfer: {seen}"
            ))),
        }
    }
}

/// What the receiver confirmed: bytes and checksum.
pub(crate) type Answer = (u64, Option<u64>);

/// Compares the receiver's answer with what was sent; returns whether checksums were compared.
pub(crate) fn check(bytes: u64, checksum: Option<u64>, answer: Answer) -> Result<bool, Failure> {
    let (their_bytes, theirs) = answer;
    if their_bytes != bytes {
        return Err(Failure::failed(format!(
            "the receiver confirmed {their_bytes} bytes of {bytes} that were sent"
        )));
    }
    match (checksum, theirs) {
        (Some(ours), Some(theirs)) if ours != theirs => Err(Failure::failed(format!(
            "the checksums differ: {} was sent and {} arrived",
            hexadecimal(ours),
            hexadecimal(theirs)
        ))),
        (Some(_), None) => Err(Failure::failed("the receiver confirmed no checksum")),
        (ours, _) => Ok(ours.is_some()),
    }
}

/// The ending on each connection, the first to come first; `at_work` hears what comes before.
fn endings(
    receivers: &mut [Receiver],
    raw: bool,
    at_work: impl Fn() + Copy,
) -> FuturesUnordered<impl Future<Output = Ending>> {
    receivers.iter_mut().map(|receiver| ending(receiver, raw, at_work)).collect()
}

async fn ending(receiver: &mut Receiver, raw: bool, at_work: impl Fn()) -> Ending {
    let mut decoder = Decoder::new();
    loop {
        match receiver.next_span().await {
            Some(Ok(_)) if raw => {}
            Some(Ok(span)) => {
                if let Some(ending) = take_ending(&mut decoder, &span) {
                    return ending;
                }
                at_work();
            }
            Some(Err(error)) => return Ending::Gone(error.to_string()),
            // A receiver of bare bytes may end its own direction at any time.
            None if raw => std::future::pending().await,
            None => return Ending::Gone("it ended the connection".to_owned()),
        }
    }
}

pub(crate) fn take_ending(decoder: &mut Decoder, span: &[u8]) -> Option<Ending> {
    let mut bytes = span;
    while !bytes.is_empty() {
        let (taken, event) = match decoder.next(bytes) {
            Ok(next) => next,
            Err(error) => return Some(Ending::Gone(error.to_string())),
        };
        bytes = &bytes[taken..];
        match event {
            None | Some(Event::Frame(Frame::AtWork)) => {}
            Some(Event::Frame(Frame::Answer { bytes, outcome: Ok(sum) })) => {
                return Some(Ending::Confirmed(bytes, sum));
            }
            Some(Event::Frame(Frame::Answer { outcome: Err(reason), .. })) => {
                return Some(Ending::Failed(reason));
            }
            Some(_) => return Some(Ending::Gone("it sends something itself".to_owned())),
        }
    }
    None
}

/// The receiver's own reason if it still comes; that it has left, if it says none; else `failure`.
fn last_words(job: &Job<'_>, receivers: &mut [Receiver], failure: Failure) -> Failure {
    let sending = match &failure {
        Failure::Failed(text) if text.starts_with(SENDING) => text.clone(),
        _ => return failure,
    };
    let ended = job.for_at_most(LAST_WORDS, async {
        let mut endings = endings(receivers, false, || ());
        let mut last = None;
        while let Some(ending) = endings.next().await {
            match ending {
                Ending::Failed(_) => return Some(ending),
                Ending::Gone(_) => last = Some(Ending::Gone(sending.clone())),
                Ending::Confirmed(..) => {}
            }
        }
        last
    });
    ended.flatten().and_then(|ending| ending.confirmed().err()).unwrap_or(failure)
}

/// Tells the receiver why it gets no more.
fn give_up(job: &Job<'_>, carriage: &Carriage<'_>, failure: &Failure) {
    let Some(reason) = failure.line() else { return };
    // A receiver that does not read it sees the connection end without an end of the transfer.
    let _ =
        job.for_at_most(LAST_WORDS, tell(carriage.sockets(), &Frame::Abort { reason }, SENDING));
}

/// Ends bare streams, and waits until their bytes have arrived.
fn see_off(job: &Job<'_>, streams: &[Stream]) -> Result<(), Failure> {
    for stream in streams {
        SockRef::from(&stream.socket.as_fd())
            .shutdown(Shutdown::Write)
            .map_err(|error| Failure::failed(format!("ending the stream: {error}")))?;
        // Closing with unread bytes resets the connection, which would discard our bytes on the other side:
        // so the close comes when they have arrived.
        let (mut seen, mut since) = (i32::MAX, Instant::now());
        loop {
            // In this order: the rest of a stream that has ended does not change any more.
            let ended = SockRef::from(&stream.socket.as_fd()).peer_addr().is_err();
            let left = unacknowledged(stream.socket.as_fd())?;
            if left != seen {
                (seen, since) = (left, Instant::now());
            }
            if left == 0 {
                break;
            }
            if ended {
                return Err(Failure::failed(format!(
                    "the receiver ended the connection before it took the last {left} bytes"
                )));
            }
            job.order.stop.check()?;
            job.stands_still(since)?;
            job.hears(&[&stream.socket])?;
            std::thread::sleep(LOOK_AGAIN);
        }
    }
    Ok(())
}

/// Bytes that the peer's kernel has not taken.
fn unacknowledged(socket: BorrowedFd<'_>) -> Result<i32, Failure> {
    // SAFETY: SIOCOUTQ, which is TIOCOUTQ, writes one int.
    let bytes = unsafe {
        rustix::ioctl::ioctl(
            socket,
            rustix::ioctl::Getter::<{ libc::TIOCOUTQ as rustix::ioctl::Opcode }, i32>::new(),
        )
    };
    bytes.map_err(|error| Failure::failed(format!("looking at the stream: {error}")))
}
