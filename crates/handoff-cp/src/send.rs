//! The sending side: pieces to one or many connections, and the receiver's confirmation.
//!
//! Contracts:
//! - it succeeds only when the receiver says that everything is under its name;
//! - if the receiver fails, its reason is reported rather than what its leaving does to our sends;
//! - when this side fails, the receiver is told why before the connection ends.

use std::future::Future;
use std::io::ErrorKind;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::pin;
use std::time::{Duration, Instant};

use futures_util::future::{Either, select};
use futures_util::stream::{FuturesUnordered, StreamExt};
use handoff::tls::TlsSession;
use handoff::{Error, Region, Socket};
use handoff_command::Failure;
use handoff_command::clock::Clock;
use handoff_command::failure::Failed;
use socket2::SockRef;

use crate::answer::{self, Answer};
use crate::args::Lend;
use crate::certified;
use crate::copier::{Copier, SENDING};
use crate::ear::{self, Ear};
use crate::handshake::Reached;
use crate::inlet::Inlet;
use crate::job::Job;
use crate::kept::Preserved;
use crate::origin::Origin;
use crate::outlet::{Outlet, Stream};
use crate::reach::{Offer, reach};
use crate::report::{Ciphered, Report, Transferred};
use crate::tell::tell;
use crate::wire::{Attributes, Decoder, Frame};

const ENDING: &str = "ending the stream";

/// How long to wait, once sending failed, for the receiver's reason.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// How often to ask the kernel whether the bytes of a bare stream have arrived.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// Connections after the hellos, and what both sides agree on.
struct Agreed {
    connections: Vec<Socket>,
    /// Who ciphers them, if that is done.
    session: Option<TlsSession>,
    /// One side wants the checksum.
    verify: bool,
    /// Metadata of the source for the copy to keep.
    attributes: Option<Attributes>,
}

/// Reaches the receiver, and sends all of the source, which has `preserved` beside its bytes.
///
/// # Errors
///
/// Errors here, or there.
pub(crate) fn send(
    job: &Job<'_>,
    origin: Origin,
    preserved: Option<Preserved>,
) -> Result<Report, Failure> {
    let args = job.order.args;
    let sparse = !args.raw && origin.extents()?.is_some_and(|it| it.is_sparse());
    let offer = Offer { sends: true, length: origin.len(), sparse };
    if let Origin::File { .. } = origin {
        job.order.can_begin_anew();
    }
    let Reached { connections, peer, session } = reach(job, &offer, None)?;
    let verify = args.verify || peer.is_some_and(|peer| peer.verifies);
    if verify && args.lend == Lend::Always {
        job.order
            .note("read in spite of --lend always: the receiver asks for the checksum".to_owned());
    }
    let attributes = origin.attributes();
    let inlet = Inlet::new(job, origin, !verify && session.is_none(), !args.raw)?;
    let attributes = attributes.filter(|_| args.preserve && peer.is_some_and(|it| it.preserves));
    if attributes.is_some() && preserved.is_some_and(|it| it.has_extended()) {
        job.order.note("the ACL and extended attributes of SRC are not sent".to_owned());
    }
    send_all(job, inlet, Agreed { connections, session, verify, attributes })
}

/// Sends all of `inlet`.
///
/// # Errors
///
/// Errors here, or there.
fn send_all(job: &Job<'_>, inlet: Inlet, agreed: Agreed) -> Result<Report, Failure> {
    let clock = Clock::start();
    let raw = job.order.args.raw;
    let session = agreed.session.as_ref();
    let pool = Region::anonymous(agreed.connections.len() * ear::CHUNK * 2)
        .and_then(|region| job.driver.pool(region, ear::CHUNK))
        .failed("setting memory aside")?;
    let mut streams = Vec::new();
    for socket in agreed.connections {
        if session.is_none() {
            job.set_engine(&socket)?;
        }
        streams.push(Stream::new(socket, session.is_some()));
    }
    let memory = job.memory(streams.len())?;
    let outlet = Outlet::Sockets { streams, raw };
    let copier =
        Copier::new(inlet, outlet, job.order.args.buffer, agreed.verify, &job.order.progress);

    let sockets: Vec<_> = copier.sockets().collect();
    let ears = sockets.iter().map(|socket| Ear::new(socket, session.is_some(), &pool));
    let mut ears = ears.collect::<Result<Vec<_>, _>>()?;
    let ended = job.until_cut_off(&sockets, async {
        let answered = pin!(async {
            // A connection closed with an unread answer is reset, which a relay in between takes for a
            // failure.
            let mut answers = answers(&mut ears, raw, || job.hear());
            let mut confirmed = None;
            while let Some(answer) = answers.next().await {
                confirmed = Some(answer.confirmed().map_err(|failure| job.order.cut(failure))?);
            }
            confirmed.ok_or_else(|| Failure::failed("no connection to hear the receiver on"))
        });
        let sent = pin!(async {
            let (bytes, checksum) = copier.run(memory.buffers).await?;
            if let Some(attributes) = agreed.attributes {
                let frame = Frame::Attributes(attributes);
                tell(copier.sockets().take(1), &frame, SENDING).await?;
            }
            if !raw {
                let end = Frame::End { bytes, checksum };
                tell(copier.sockets(), &end, SENDING).await?;
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
                copier.sockets().for_each(Socket::abort);
                return Err(failure);
            }
            let failure = last_words(job, &mut ears, failure);
            give_up(job, &copier, &failure);
            return Err(failure);
        }
    };
    if raw {
        see_off(job, copier.streams())?;
        if session.is_some() {
            // With a ticket unread, closing would reset the connection, and its last bytes with it.
            let refused = job.for_at_most(LAST_WORDS, async {
                for ear in &mut ears {
                    loop {
                        match ear.next(|_| ()).await {
                            Some(Ok(())) => {}
                            Some(Err(error)) if certified::is_refusal(&error) => {
                                return Some(error.to_string());
                            }
                            Some(Err(_)) | None => break,
                        }
                    }
                }
                None
            });
            if let Some(why) = refused.flatten() {
                return Err(Failure::failed(format!("the receiver refused what was sent: {why}")));
            }
        }
    }
    let verified = match answer {
        None => checksum.map(|_| "compare it yourself: --raw tells the receiver nothing"),
        Some(answer) => answer::check(bytes, checksum, answer)?.then_some("the same on both sides"),
    };
    let hops = vec![
        copier.hop_in(job, memory.registered),
        copier.hop_out(job, session, memory.registered),
    ];
    for socket in sockets.iter().filter(|_| session.is_some()) {
        // The receiver has answered, whether or not it sees a proper end.
        let _ = socket.shutdown(Shutdown::Write);
    }
    let (streams, holes) = (copier.streams().len(), copier.holes());
    let done = Transferred { bytes, holes, streams, checksum, verified, hops };
    Ok(Report { tls: session.map(Ciphered::by), ..Report::new(job.order, &clock, done) })
}

/// The answer on each connection, the first to come first; `at_work` hears what comes before.
fn answers(
    ears: &mut [Ear<'_>],
    raw: bool,
    at_work: impl Fn() + Copy,
) -> FuturesUnordered<impl Future<Output = Answer>> {
    ears.iter_mut().map(|ear| answer_of(ear, raw, at_work)).collect()
}

async fn answer_of(ear: &mut Ear<'_>, raw: bool, at_work: impl Fn()) -> Answer {
    let mut decoder = Decoder::new();
    loop {
        let heard = ear.next(|said| match raw {
            true => None,
            false => answer::read(&mut decoder, said),
        });
        match heard.await {
            Some(Ok(Some(answer))) => return answer,
            Some(Ok(None)) if raw => {}
            Some(Ok(None)) => at_work(),
            // What it says of its own direction matters to nobody; that it is gone, the sends tell.
            Some(Err(error @ Error::Tls { .. })) if raw => match certified::is_refusal(&error) {
                true => return Answer::Gone(error.to_string()),
                false => std::future::pending().await,
            },
            Some(Err(error)) => return Answer::Gone(error.to_string()),
            // A receiver of bare bytes may end its own direction at any time.
            None if raw => std::future::pending().await,
            None => return Answer::Gone("it ended the connection".to_owned()),
        }
    }
}

/// The receiver's own reason if it still comes; that it has left, if it says none; else `failure`.
fn last_words(job: &Job<'_>, ears: &mut [Ear<'_>], failure: Failure) -> Failure {
    let sending = match &failure {
        Failure::Failed(text) if text.starts_with(SENDING) => text.clone(),
        _ => return failure,
    };
    let failure = job.order.cut(failure);
    let ended = job.for_at_most(LAST_WORDS, async {
        let mut answers = answers(ears, false, || ());
        let mut last = None;
        while let Some(answer) = answers.next().await {
            match answer {
                Answer::Failed(_) => return Some(answer),
                Answer::Gone(_) => last = Some(Answer::Gone(sending.clone())),
                Answer::Confirmed(..) => {}
            }
        }
        last
    });
    ended.flatten().and_then(|answer| answer.confirmed().err()).unwrap_or(failure)
}

/// Tells the receiver why it gets no more.
fn give_up(job: &Job<'_>, copier: &Copier<'_>, failure: &Failure) {
    let Some(reason) = failure.line() else { return };
    // A receiver that does not read it sees the connection end without an end of the transfer.
    let _ = job.for_at_most(LAST_WORDS, tell(copier.sockets(), &Frame::Abort { reason }, SENDING));
}

/// Says that nothing follows, as soon as the connection has room for that.
fn end_ciphered(job: &Job<'_>, socket: &Socket) -> Result<(), Failure> {
    let begin = Instant::now();
    loop {
        match socket.shutdown(Shutdown::Write) {
            Err(Error::Io { source, .. }) if source.kind() == ErrorKind::WouldBlock => {
                job.order.stop.check()?;
                job.stands_still(begin)?;
                job.hears(&[socket])?;
                std::thread::sleep(LOOK_AGAIN);
            }
            ended => return ended.failed(ENDING),
        }
    }
}

/// Ends bare streams, and waits until their bytes have arrived.
fn see_off(job: &Job<'_>, streams: &[Stream]) -> Result<(), Failure> {
    for stream in streams {
        match stream.ciphered {
            true => end_ciphered(job, &stream.socket)?,
            false => {
                SockRef::from(&stream.socket.as_fd()).shutdown(Shutdown::Write).failed(ENDING)?;
            }
        }
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
