//! The first words on a connection, from both sides.
//!
//! Contracts:
//! - every wait ends with the time-out or with the stop, whichever is first;
//! - a listener takes exactly the connections of one transfer, then listens no more; what connects
//!   and does not speak the protocol is turned away and does not end the wait.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::PollFlags;

use super::wire::{HELLO_LEN, Hello};
use crate::net::patience::Patience;
use crate::net::reach::Listener;
use crate::{Failure, Stop};

/// How long a connection that was accepted may take for its first words.
const FIRST_WORDS: Duration = Duration::from_secs(5);

/// Takes all connections of one transfer, in the order of their streams; the peer's hello.
///
/// # Errors
///
/// A peer that can't be served, the time-out from the first connection on, the stop.
pub(super) fn gather(
    listener: &Listener,
    answer: impl Fn(&Hello, &TcpStream) -> Result<Hello, Failure>,
    time: Duration,
    stop: &Stop,
) -> Result<(Vec<TcpStream>, Hello), Failure> {
    let mut first: Option<Hello> = None;
    let mut patience = Patience::new(stop, None);
    let mut streams: Vec<Option<TcpStream>> = Vec::new();
    while first.is_none() || streams.iter().any(Option::is_none) {
        let (mut stream, peer) = listener.accept(patience)?;
        let words = Patience::new(stop, Some(FIRST_WORDS));
        let heard = listen_to(&mut stream, words).and_then(|hello| {
            let belongs = |first: Hello| first == Hello { stream: first.stream, ..hello };
            if !first.is_none_or(belongs) {
                return Err(Failure::failed("it belongs to another transfer"));
            }
            let answer = answer(&hello, &stream)?;
            speak(&mut stream, &answer, words)?;
            Ok(hello)
        });
        let hello = match heard {
            Ok(hello) => hello,
            Err(stopped @ Failure::Stopped(_)) => return Err(stopped),
            Err(failure) => {
                let why = failure.line().unwrap_or_default();
                eprintln!("handoff: turned a connection from {peer} away: {why}");
                continue;
            }
        };
        if first.is_none() {
            first = Some(hello);
            patience = Patience::new(stop, Some(time));
            streams.resize_with(usize::from(hello.streams), || None);
        }
        streams[usize::from(hello.stream)] = Some(stream);
    }
    let hello = first.unwrap_or_else(|| unreachable!("the loop ends after a first hello"));
    Ok((streams.into_iter().flatten().collect(), hello))
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
    let mut bytes = [0; HELLO_LEN];
    let mut heard = 0;
    while heard < HELLO_LEN {
        match stream.read(&mut bytes[heard..]) {
            Ok(0) => {
                return Err(Failure::failed(
                    "the peer ended the connection before its first words: it has another transfer under way, or \
                     is no `handoff cp` (with nc, socat and the like use --raw)",
                ));
            }
            Ok(more) => heard += more,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if !patience.wait(&*stream, PollFlags::IN)? {
                    return Err(Failure::failed(
                        "the peer does not speak: is it `handoff cp`? (with nc, socat and the like use --raw)",
                    ));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Failure::failed(format!("hearing the peer: {error}"))),
        }
    }
    Hello::decode(&bytes).map_err(Failure::failed)
}

/// Gives connections to a driver, which wants descriptors.
pub(super) fn into_fds(streams: Vec<TcpStream>) -> Vec<OwnedFd> {
    streams.into_iter().map(OwnedFd::from).collect()
}
