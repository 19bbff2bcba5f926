//! The stream of a client's requests.
//!
//! Contracts:
//! - a machine holds one header. Payload goes past it: [`Requests::expect`] says how many of the next bytes are payload;
//! - a request that the target does not allow is no error of the connection: it is refused, and its payload is skipped.

use super::answer::Answer;
use crate::request::{Refusal, Request};
use crate::target::Target;
use crate::wire::{Command, CommandFlags, Framing, Gather, RequestHeader};

/// Payload that is skipped rather than taken for an attack: what each server should accept.
const SKIPPED: u64 = 1 << 25;

/// Why a connection cannot go on: close it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestViolation {
    /// The bytes do not begin as a request of the agreed kind.
    #[error("the client sends no request of NBD ({0:#010x})")]
    Magic(u32),
    /// A payload that is too long to be skipped.
    #[error("a request of the client has a payload of {0} bytes")]
    TooLong(u64),
    /// Something came after the request to disconnect.
    #[error("the client sends more after it disconnected")]
    AfterEnd,
}

/// What came.
#[derive(Clone, Debug)]
pub enum Event {
    /// A request. If it is a write, its payload comes next.
    Request(Request, Answer),
    /// A request that the target does not allow: send [`Answer::fail`] with this. Its payload is skipped.
    Refused(Refusal, Answer),
    /// The bytes that were taken are payload of the last request, from this place in it.
    Payload(u64),
    /// The client has done: answer what is under way, and close the connection.
    Disconnect,
}

/// What the stream's next bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// So many bytes of a header.
    Header(usize),
    /// So many bytes of the last request's payload.
    Payload(u64),
    /// So many bytes of a payload that nobody wants.
    Skip(u64),
    /// Nothing: the client has disconnected.
    Nothing,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Header,
    Payload { at: u64, left: u64 },
    Skip(u64),
    Over,
}

/// Reads requests.
#[derive(Clone, Debug)]
pub struct Requests {
    target: Target,
    state: State,
    header: Gather,
}

impl Requests {
    /// Begins with the first byte after negotiation.
    pub fn new(target: Target) -> Self {
        Self { target, state: State::Header, header: Gather::default() }
    }

    /// What the next bytes are.
    pub fn expect(&self) -> Expect {
        match self.state {
            State::Header => {
                Expect::Header(self.target.framing.request_len() - self.header.bytes().len())
            }
            State::Payload { left, .. } => Expect::Payload(left),
            State::Skip(left) => Expect::Skip(left),
            State::Over => Expect::Nothing,
        }
    }

    /// Payload, or skipped bytes, came past the machine. At most what [`Requests::expect`] says counts.
    pub fn received(&mut self, bytes: u64) {
        self.state = match self.state {
            State::Payload { at, left } if bytes < left => {
                State::Payload { at: at + bytes, left: left - bytes }
            }
            State::Skip(left) if bytes < left => State::Skip(left - bytes),
            State::Payload { .. } | State::Skip(_) => State::Header,
            state => state,
        };
    }

    /// Takes bytes. Returns how many, and what came; without an event, all were taken and more must come.
    ///
    /// # Errors
    ///
    /// The client breaks the protocol in a way that has no answer.
    pub fn next(&mut self, input: &[u8]) -> Result<(usize, Option<Event>), RequestViolation> {
        let mut taken = 0;
        loop {
            let rest = &input[taken..];
            if rest.is_empty() {
                return Ok((taken, None));
            }
            match self.state {
                State::Header => {
                    let (more, whole) = self.header.fill(rest, self.target.framing.request_len());
                    taken += more;
                    if !whole {
                        return Ok((taken, None));
                    }
                    let event = self.request()?;
                    self.header.clear();
                    return Ok((taken, Some(event)));
                }
                State::Payload { at, left } => {
                    let more = (rest.len() as u64).min(left);
                    self.received(more);
                    return Ok((
                        taken + usize::try_from(more).unwrap_or(0),
                        Some(Event::Payload(at)),
                    ));
                }
                State::Skip(left) => {
                    let more = (rest.len() as u64).min(left);
                    self.received(more);
                    taken += usize::try_from(more).unwrap_or(0);
                }
                State::Over => return Err(RequestViolation::AfterEnd),
            }
        }
    }

    /// The header is whole.
    fn request(&mut self) -> Result<Event, RequestViolation> {
        let bytes = self.header.bytes();
        let header = RequestHeader::decode(self.target.framing, bytes).ok_or_else(|| {
            let magic = bytes.first_chunk().copied().map_or(0, u32::from_be_bytes);
            RequestViolation::Magic(magic)
        })?;
        if header.command == Command::Disconnect {
            self.state = State::Over;
            return Ok(Event::Disconnect);
        }
        let has_payload = header.command == Command::Write
            || (self.target.framing == Framing::Extended
                && header.flags.contains(CommandFlags::PAYLOAD_LEN));
        let payload = if has_payload { header.length } else { 0 };
        let answer = |request| Answer::new(&self.target, &header, request);
        match Request::parse(&header, &self.target) {
            Ok(request) => {
                if payload > 0 {
                    self.state = State::Payload { at: 0, left: payload };
                }
                Ok(Event::Request(request, answer(Some(request))))
            }
            Err(_) if payload > SKIPPED.max(u64::from(self.target.block.maximum)) => {
                Err(RequestViolation::TooLong(payload))
            }
            Err(refusal) => {
                if payload > 0 {
                    self.state = State::Skip(payload);
                }
                Ok(Event::Refused(refusal, answer(None)))
            }
        }
    }
}
