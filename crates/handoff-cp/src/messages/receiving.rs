//! The receiving side.

use std::mem;
use std::net::SocketAddr;
use std::thread;

use futures_lite::future::yield_now;
use handoff::{Buffer, Tally};
use handoff_command::allow_list::{self, AllowList};
use handoff_command::clock::Clock;
use handoff_command::{Failure, output};
use handoff_net::address::Endpoint;

use super::handshake::{accept_hello, resolve};
use super::line::{self, Line};
use crate::destination::Target;
use crate::intake::{Frames, Intake, Portion};
use crate::job::Job;
use crate::report::{Hop, Report, Transferred};
use crate::sink::{Output, Sink, Writes};
use crate::wire::Frame;

/// After so many taken bytes the sender is told, even if more wait.
const CONFIRM: u64 = 512 << 10;

/// Receives at `endpoint`, an address of this host, what a sender has, into `target`.
///
/// # Errors
///
/// Errors here, or there.
pub(crate) fn receive(
    job: &Job<'_>,
    endpoint: &Endpoint,
    target: Option<Target>,
) -> Result<Report, Failure> {
    let own = resolve(job, endpoint)?;
    let from = job.order.args.addresses.from();
    line::with(job, own.ip(), Some(own.port()), AllowList::new(from), async |line| {
        output::say(format_args!("listening on rds://{}", SocketAddr::new(own.ip(), own.port())));
        allow_list::warn(own, from, "send");
        let peer = job.unless_stopped(accept_hello(line)).await?;
        let clock = Clock::start();
        job.order.set_length(peer.length);
        let output = Output::open(job.order, target)?;
        let intake = Intake::new(job.order, peer.length, true, output.fate());
        output.prepare(job.order, 1, peer.length, peer.sparse)?;
        let sink = Sink::new(job, &intake, output.share(false)?)?;
        let received = job.while_moving(&[], take(line, &sink)).await?;
        let (bytes, checksum) = intake.check()?;
        let hop = Hop {
            from: "socket",
            to: "memory",
            engine: line.engine.to_owned(),
            reason: "messages are received by copying; frames included".to_owned(),
            tally: Tally { copied: received, ..Tally::default() },
        };
        let (hops, holes) = (vec![hop, sink.hop_out(sink.tally(), false)], intake.holes());
        if let Output::File(destination) = output {
            let sync = job.order.args.sync;
            let commit = move || destination.commit(bytes, None, sync);
            // It may take long, and the sender waits for signs of life.
            let committed = to_its_end(commit, async || {
                line.attend()?;
                line.changed().await
            });
            let panicked = |_| Err(Failure::failed("naming the file panicked"));
            committed.await.unwrap_or_else(panicked)?;
        }
        let answer = Frame::Answer { bytes, outcome: Ok(checksum) };
        // The file stays in place, whether or not the sender hears of it.
        if let Err(failure) = job.while_moving(&[], line.say(&answer.encode())).await {
            let why = failure.line().unwrap_or_default();
            job.order.note(format!("the sender may take it for failed: {why}"));
        }
        let verified = Some("the same on both sides, of what was sent and what arrived in memory");
        let done = Transferred { bytes, holes, streams: 1, checksum, verified, hops };
        Ok(Report { threads: vec![1], ..Report::new(job.order, &clock, done) })
    })
}

/// Does `work` to its end, on a thread of its own, and serves the peer by `attend` meanwhile. A peer that leaves changes
/// nothing, and neither does a signal, for which nobody looks here.
async fn to_its_end<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
    mut attend: impl AsyncFnMut() -> Result<(), Failure>,
) -> thread::Result<T> {
    let working = thread::spawn(work);
    while !working.is_finished() && attend().await.is_ok() {}
    working.join()
}

/// A message whose front is taken off piece by piece; the rest stays where it is.
struct Unread {
    bytes: Vec<u8>,
    /// Where the rest begins.
    begin: usize,
}

impl Unread {
    fn rest(&self) -> &[u8] {
        &self.bytes[self.begin..]
    }

    fn skip(&mut self, len: usize) {
        self.begin += len;
    }

    /// Takes `len` bytes off: a copy, unless they are the whole message.
    fn take(&mut self, len: usize) -> Vec<u8> {
        if len == self.bytes.len() {
            return mem::take(&mut self.bytes);
        }
        let taken = self.rest()[..len].to_vec();
        self.skip(len);
        taken
    }
}

/// Takes the sender's frames, to the end of the transfer; returns the bytes of all messages.
async fn take(line: &Line<'_>, sink: &Sink<'_>) -> Result<u64, Failure> {
    let mut frames = Frames::new(sink.intake);
    let mut writes = Writes::default();
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
        let mut message = Unread { bytes: message, begin: 0 };
        while !message.rest().is_empty() {
            let (taken, portion) = frames.next(message.rest())?;
            match portion {
                Portion::Head => message.skip(taken),
                Portion::Payload { offset, .. } => {
                    let part = Buffer::from(message.take(taken));
                    let putting = sink.put(part, taken, offset, &mut writes);
                    line.meanwhile(putting, || line.attend()).await?;
                }
                Portion::Hole { offset, len } => {
                    message.skip(taken);
                    // A sender that has left ends the attendance.
                    let leaving_out = sink.leave_out(offset, len, || false);
                    line.meanwhile(leaving_out, || line.attend()).await?;
                }
                Portion::End => {
                    line.meanwhile(sink.finish(writes), || line.attend()).await?;
                    return Ok(received);
                }
            }
        }
        // Many messages may be there, and none of them has to wait for anything.
        yield_now().await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn work_counts_whatever_becomes_of_the_peer() {
        let (tell, told) = channel();
        let attend = async || {
            tell.send(()).expect("it works");
            Err(Failure::failed("the peer says nothing"))
        };
        let done = to_its_end(move || told.recv(), attend).now_or_never();
        assert_eq!(done.expect("never waits").expect("no panic"), Ok(()));
    }

    #[test]
    fn the_rest_of_a_message_stays_where_it_is() {
        let bytes: Vec<u8> = (0..100).collect();
        let place = bytes.as_ptr();
        let mut message = Unread { bytes, begin: 0 };
        message.skip(24);
        assert_eq!(message.take(10), (24..34).collect::<Vec<u8>>());
        let rest = message.rest();
        assert_eq!((rest.as_ptr(), rest.len()), (place.wrapping_add(34), 66));
        message.skip(66);
        assert!(message.rest().is_empty());
    }

    #[test]
    fn a_message_that_is_all_payload_is_not_copied() {
        let bytes = vec![7; 100];
        let place = bytes.as_ptr();
        let mut message = Unread { bytes, begin: 0 };
        let taken = message.take(100);
        assert_eq!((taken.as_ptr(), taken.len()), (place, 100));
        assert!(message.rest().is_empty());
    }
}
