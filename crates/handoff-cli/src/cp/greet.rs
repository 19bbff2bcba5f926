//! The first words on a connection, from both sides.
//!
//! Contracts:
//! - every wait ends with the time-out or with the stop, whichever is first;
//! - hellos are heard side by side, so that a silent connection keeps nobody out;
//! - a listener takes exactly the connections of one transfer, then listens no more; what connects
//!   and does not speak the protocol is turned away and does not end the wait.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::wire::{Frame, HELLO_LEN, Hello};
use crate::net::patience::Patience;
use crate::net::reach::Listener;
use crate::{Failure, Stop};

/// How long a connection that was accepted may take for its first words.
const FIRST_WORDS: Duration = Duration::from_secs(5);

/// Connections whose first words are not all there, at most: the oldest goes for the next.
const MOST_WAITING: usize = 256;

/// A connection that was accepted, and what came of its hello.
struct Waiting {
    stream: TcpStream,
    peer: SocketAddr,
    words: FirstWords,
    since: Instant,
}

/// Why a connection is not taken: it is turned away, or ends the wait.
pub(super) enum Refusal {
    /// It, and nobody else.
    TurnAway(String),
    /// The copy.
    End(Failure),
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        match failure {
            stopped @ Failure::Stopped(_) => Self::End(stopped),
            failure => Self::TurnAway(failure.line().unwrap_or_default()),
        }
    }
}

/// Takes all connections of one transfer, in the order of their streams; the peer's hello. `answer` gives
/// our hello for theirs. Nobody is waited for longer than `first`, and for the other streams than `rest`.
///
/// # Errors
///
/// A peer that can't be served, the time-outs, the stop.
pub(super) fn gather(
    listener: &Listener,
    answer: impl Fn(&Hello, &TcpStream) -> Result<Hello, Refusal>,
    first: Option<Duration>,
    rest: Duration,
    stop: &Stop,
) -> Result<(Vec<TcpStream>, Hello), Failure> {
    let mut begun: Option<Hello> = None;
    let mut patience = Patience::new(stop, first);
    let mut waiting: VecDeque<Waiting> = VecDeque::new();
    let mut streams: Vec<Option<TcpStream>> = Vec::new();
    loop {
        let oldest = waiting.front().map(|one| FIRST_WORDS.saturating_sub(one.since.elapsed()));
        let round = oldest.map_or(patience, |oldest| patience.at_most(oldest));
        let mut fds = vec![PollFd::from_borrowed_fd(listener.fd(), PollFlags::IN)];
        fds.extend(waiting.iter().map(|one| PollFd::new(&one.stream, PollFlags::IN)));
        round.wait_for_any(&mut fds)?;
        let mut ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let calls = ready.remove(0);
        for readable in ready {
            let Some(mut one) = waiting.pop_front() else { break };
            if !readable && one.since.elapsed() < FIRST_WORDS {
                waiting.push_back(one);
                continue;
            }
            let heard = match one.words.take_from(&mut one.stream) {
                Ok(Some(hello)) => welcome(&mut one.stream, hello, begun, &answer, stop),
                Ok(None) if one.since.elapsed() < FIRST_WORDS => {
                    waiting.push_back(one);
                    continue;
                }
                Ok(None) => Err(silent().into()),
                Err(failure) => Err(failure.into()),
            };
            match heard {
                Ok(hello) => {
                    if begun.is_none() {
                        begun = Some(hello);
                        patience = Patience::new(stop, Some(rest));
                        streams.resize_with(usize::from(hello.streams), || None);
                    }
                    streams[usize::from(hello.stream)] = Some(one.stream);
                }
                Err(Refusal::TurnAway(why)) => listener.visitors.turned_away(one.peer, &why),
                Err(Refusal::End(failure)) => return Err(failure),
            }
        }
        if let Some(hello) = begun
            && streams.iter().all(Option::is_some)
        {
            return Ok((streams.into_iter().flatten().collect(), hello));
        }
        if patience.is_over() {
            return Err(Failure::failed(match begun {
                None => "nobody connected in time (--connect-timeout)",
                Some(_) => "not all streams of the transfer connected in time (--connect-timeout)",
            }));
        }
        if calls {
            let accepted = listener.try_accept();
            let accepted = accepted
                .map_err(|error| Failure::failed(format!("accepting a connection: {error}")))?;
            let Some((stream, peer)) = accepted else { continue };
            if waiting.len() >= MOST_WAITING
                && let Some(oldest) = waiting.pop_front()
            {
                listener.visitors.turned_away(oldest.peer, "it said nothing while others came");
            }
            let words = FirstWords::default();
            waiting.push_back(Waiting { stream, peer, words, since: Instant::now() });
        }
    }
}

/// Answers a hello, where it is one of the transfer that has begun.
fn welcome(
    stream: &mut TcpStream,
    hello: Hello,
    begun: Option<Hello>,
    answer: impl Fn(&Hello, &TcpStream) -> Result<Hello, Refusal>,
    stop: &Stop,
) -> Result<Hello, Refusal> {
    if !begun.is_none_or(|begun| begun == Hello { stream: begun.stream, ..hello }) {
        return Err(Refusal::TurnAway("it belongs to another transfer".to_owned()));
    }
    let ours = answer(&hello, stream)?;
    speak(stream, &ours, Patience::new(stop, Some(FIRST_WORDS)))?;
    Ok(hello)
}

fn silent() -> Failure {
    Failure::failed(
        "the peer does not speak: is it `handoff cp`? (with nc, socat and the like use --raw)",
    )
}

/// A hello, as its bytes come.
struct FirstWords {
    bytes: [u8; HELLO_LEN],
    heard: usize,
}

impl Default for FirstWords {
    fn default() -> Self {
        Self { bytes: [0; HELLO_LEN], heard: 0 }
    }
}

impl FirstWords {
    /// Takes what is there; the hello once it is complete.
    ///
    /// # Errors
    ///
    /// A peer that is gone or says something else.
    fn take_from(&mut self, stream: &mut TcpStream) -> Result<Option<Hello>, Failure> {
        while self.heard < HELLO_LEN {
            match stream.read(&mut self.bytes[self.heard..]) {
                Ok(0) => {
                    return Err(Failure::failed(
                        "the peer ended the connection before its first words: it has another transfer under \
                         way, or is no `handoff cp` (with nc, socat and the like use --raw)",
                    ));
                }
                Ok(more) => self.heard += more,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Failure::failed(format!("hearing the peer: {error}"))),
            }
        }
        Hello::decode(&self.bytes).map(Some).map_err(Failure::failed)
    }
}

/// Tells a sender that says hello why it is not wanted, as far as that goes at once.
pub(super) fn refuse(mut stream: &TcpStream, hello: &Hello, why: &str) {
    let answer = Frame::Answer { bytes: 0, outcome: Err(why.to_owned()) };
    // Who does not hear it sees the connection end.
    let _ = stream.write_all(&[&hello.encode()[..], &answer.encode()].concat());
}

/// Says hello on a connection.
///
/// # Errors
///
/// A peer that is gone, the time-out, the stop.
pub(super) fn speak(
    stream: &mut TcpStream,
    hello: &Hello,
    patience: Patience<'_>,
) -> Result<(), Failure> {
    let bytes = hello.encode();
    let mut left = &bytes[..];
    while !left.is_empty() {
        match stream.write(left) {
            Ok(taken) => left = &left[taken..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if !patience.wait(&*stream, PollFlags::OUT)? {
                    return Err(Failure::failed("the peer took too long to listen"));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Failure::failed(format!("greeting the peer: {error}"))),
        }
    }
    Ok(())
}

/// Hears the peer's hello.
///
/// # Errors
///
/// A peer that is gone or says something else, the time-out, the stop.
pub(super) fn listen_to(stream: &mut TcpStream, patience: Patience<'_>) -> Result<Hello, Failure> {
    let mut words = FirstWords::default();
    loop {
        if let Some(hello) = words.take_from(stream)? {
            return Ok(hello);
        }
        if !patience.wait(&*stream, PollFlags::IN)? {
            return Err(silent());
        }
    }
}

/// Gives connections to a driver, which wants descriptors.
pub(super) fn into_fds(streams: Vec<TcpStream>) -> Vec<OwnedFd> {
    streams.into_iter().map(OwnedFd::from).collect()
}
