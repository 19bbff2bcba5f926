//! Requests of a client, and the stream of a server's replies.
//!
//! Contracts:
//! - a reply covers its request exactly, or the connection ends: parts of a read that overlap, repeat, lie outside or are
//!   missing when it is said to be done, and replies to what is not under way, are a [`ReplyViolation`]. So a reader never
//!   gets what was in its memory before;
//! - a machine holds one header, and of chunks without payload one chunk of at most 16 MiB. Payload goes past it:
//!   [`Replies::expect`] says how many of the next bytes are payload;
//! - when a connection ends, [`Replies::outstanding`] names what was not answered. Their memory is the connection's until
//!   it cannot write there any more.

use super::chunk::{self, ReplyViolation};
use super::coverage::Wrong;
use super::table::{Cookie, Failure, Open, Table};
use super::terms::Agreed;
use crate::request::{Extent, Operation, Refusal, Request};
use crate::target::Target;
use crate::wire::{
    ChunkHeader, ChunkType, Command, CommandFlags, Framing, Gather, Head, Reader, ReplyFlags,
    RequestHeader, STRUCTURED_REPLY_MAGIC, SimpleReply,
};

/// Why a request cannot go over a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IssueError {
    /// As many are under way as may be.
    #[error("as many requests are under way as the connection takes")]
    Full,
    /// The server would refuse it.
    #[error("the server takes no such request: {0}")]
    Refused(#[from] Refusal),
    /// The length has more than 32 bits, and the headers have not.
    #[error("the request is longer than 4 GiB, and the server has no extended headers")]
    TooLong,
}

/// What came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The next `len` bytes belong into the memory of a read, from `at` on.
    Data {
        /// The read.
        cookie: Cookie,
        /// Where in it.
        at: u64,
        /// How many bytes.
        len: u64,
    },
    /// The bytes that were taken are of that part of a read, from `at` on.
    Payload {
        /// The read.
        cookie: Cookie,
        /// Where in it.
        at: u64,
    },
    /// So many bytes of a read are zeroes, from `at` on. Nobody has written them into its memory.
    Zeroes {
        /// The read.
        cookie: Cookie,
        /// Where in it.
        at: u64,
        /// How many bytes.
        len: u64,
    },
    /// Extents of a context, from the request's offset on, at least one. They may end before the request does, or behind.
    Status {
        /// The request.
        cookie: Cookie,
        /// The context's number.
        context: u32,
        /// The extents.
        extents: Vec<Extent>,
    },
    /// The reply is complete, and the cookie is over.
    Done {
        /// The request.
        cookie: Cookie,
        /// Whether it was carried out. The memory of a read that failed may have been written to.
        result: Result<(), Failure>,
    },
}

/// What the stream's next bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// At least so many bytes for the machine; 0 where it has an event ready.
    Machine(usize),
    /// So many bytes of a read, for its memory from `at` on.
    Payload {
        /// The read.
        cookie: Cookie,
        /// Where in it.
        at: u64,
        /// How many bytes.
        left: u64,
    },
}

#[derive(Clone, Copy, Debug)]
enum State {
    Header,
    Chunk {
        cookie: Cookie,
        header: ChunkHeader,
        want: usize,
    },
    Payload {
        cookie: Cookie,
        at: u64,
        left: u64,
        last: bool,
    },
    /// The last chunk of a reply has been dealt with.
    Done(Cookie),
}

/// Requests under way on a connection, and their replies.
#[derive(Debug)]
pub struct Replies {
    target: Target,
    contexts: Vec<u32>,
    table: Table,
    state: State,
    message: Gather,
}

impl Replies {
    /// Begins with the first byte after negotiation. At most `depth` requests are under way at a time.
    pub fn new(agreed: &Agreed, depth: u32) -> Self {
        Self {
            target: agreed.target,
            contexts: agreed.contexts.clone(),
            table: Table::new(depth),
            state: State::Header,
            message: Gather::default(),
        }
    }

    /// Begins a request: send the header, and behind it the payload of a write, before anything else.
    ///
    /// # Errors
    ///
    /// Too many are under way, or the server would refuse it. Nothing has begun then.
    pub fn issue(&mut self, request: Request) -> Result<(Cookie, Head), IssueError> {
        request.check(&self.target)?;
        let framing = self.target.framing;
        request.encode(0, framing).ok_or(IssueError::TooLong)?;
        let cookie = self.table.open(request).ok_or(IssueError::Full)?;
        let head = request.encode(cookie.number(), framing).ok_or(IssueError::TooLong)?;
        Ok((cookie, head))
    }

    /// What a client sends last. There is no reply.
    pub fn disconnect(&self) -> Head {
        let (flags, command) = (CommandFlags::empty(), Command::Disconnect);
        let header = RequestHeader { flags, command, cookie: 0, offset: 0, length: 0 };
        header.encode(self.target.framing).expect("0 fits")
    }

    /// Requests that have not been answered whole.
    pub fn outstanding(&self) -> impl Iterator<Item = Cookie> {
        self.table.cookies()
    }

    /// What the next bytes are.
    pub fn expect(&self) -> Expect {
        match self.state {
            State::Header => Expect::Machine(self.header_len() - self.message.bytes().len()),
            State::Chunk { want, .. } => Expect::Machine(want - self.message.bytes().len()),
            State::Payload { cookie, at, left, .. } => Expect::Payload { cookie, at, left },
            State::Done(_) => Expect::Machine(0),
        }
    }

    fn header_len(&self) -> usize {
        match self.target.framing {
            Framing::Structured
                if !self.message.bytes().starts_with(&STRUCTURED_REPLY_MAGIC.to_be_bytes()) =>
            {
                SimpleReply::LEN
            }
            Framing::Simple => SimpleReply::LEN,
            framing => framing.chunk_len(),
        }
    }

    /// Payload came past the machine. At most what [`Replies::expect`] says counts. Call [`Replies::next`] afterwards, also
    /// without bytes: the reply may be complete.
    pub fn received(&mut self, bytes: u64) {
        if let State::Payload { cookie, at, left, last } = self.state {
            self.state = if bytes < left {
                State::Payload { cookie, at: at + bytes, left: left - bytes, last }
            } else if last {
                State::Done(cookie)
            } else {
                State::Header
            };
        }
    }

    /// Takes bytes. Returns how many, and what came. Without an event, all were taken and more must come; call it until
    /// then, also with an empty rest.
    ///
    /// # Errors
    ///
    /// The server breaks the protocol.
    pub fn next(&mut self, input: &[u8]) -> Result<(usize, Option<Event>), ReplyViolation> {
        let mut taken = 0;
        loop {
            let rest = &input[taken..];
            let want = match self.state {
                State::Done(cookie) => {
                    self.state = State::Header;
                    return Ok((taken, Some(self.done(cookie)?)));
                }
                State::Payload { .. } if rest.is_empty() => return Ok((taken, None)),
                State::Payload { cookie, at, left, .. } => {
                    let more = (rest.len() as u64).min(left);
                    self.received(more);
                    taken += usize::try_from(more).unwrap_or(0);
                    return Ok((taken, Some(Event::Payload { cookie, at })));
                }
                State::Header => self.header_len(),
                State::Chunk { want, .. } => want,
            };
            let (more, whole) = self.message.fill(rest, want);
            taken += more;
            if !whole {
                return Ok((taken, None));
            }
            let event = match self.state {
                State::Chunk { cookie, header, .. } => {
                    let message = std::mem::take(&mut self.message);
                    let event = self.chunk(cookie, &header, message.bytes())?;
                    self.message = message;
                    self.message.clear();
                    event
                }
                _ if self.header_len() > want => continue,
                _ => {
                    let event = self.header()?;
                    self.message.clear();
                    event
                }
            };
            if event.is_some() {
                return Ok((taken, event));
            }
        }
    }

    /// A header is whole.
    fn header(&mut self) -> Result<Option<Event>, ReplyViolation> {
        let (framing, bytes) = (self.target.framing, self.message.bytes());
        let unknown = ReplyViolation::UnknownCookie;
        if let Some(header) = ChunkHeader::decode(framing, bytes) {
            let found = self.table.get(header.cookie);
            let (cookie, open) = found.ok_or(unknown(header.cookie))?;
            if framing == Framing::Extended && header.offset != open.request.offset {
                return Err(ReplyViolation::Offset(header.offset));
            }
            let want = chunk::fixed_len(&header, framing, &open.request)?;
            self.state = State::Chunk { cookie, header, want };
            return Ok(None);
        }
        let simple = SimpleReply::decode(bytes).filter(|_| framing != Framing::Extended);
        let Some(reply) = simple else {
            let magic = bytes.first_chunk().copied().map_or(0, u32::from_be_bytes);
            return Err(ReplyViolation::Magic(magic));
        };
        let (cookie, open) = self.table.get(reply.cookie).ok_or(unknown(reply.cookie))?;
        let reads = matches!(open.request.operation, Operation::Read { .. });
        if reads && framing == Framing::Structured {
            return Err(ReplyViolation::Kind(ChunkType::None.into()));
        }
        open.failure = reply.error.map(chunk::simple_failure);
        if reads && open.failure.is_none() {
            let len = open.request.length;
            return self.content(cookie, 0, len, true).map(|()| {
                self.state = State::Payload { cookie, at: 0, left: len, last: true };
                Some(Event::Data { cookie, at: 0, len })
            });
        }
        self.state = State::Done(cookie);
        Ok(None)
    }

    /// What stands between a chunk's header and its payload, or all of it, is whole.
    fn chunk(
        &mut self,
        cookie: Cookie,
        header: &ChunkHeader,
        message: &[u8],
    ) -> Result<Option<Event>, ReplyViolation> {
        let last = header.flags.contains(ReplyFlags::DONE);
        self.state = if last { State::Done(cookie) } else { State::Header };
        let request = self.open(cookie)?.request;
        let at = |offset: Option<u64>| {
            let inside = offset.and_then(|offset| offset.checked_sub(request.offset));
            inside.ok_or(ReplyViolation::Outside)
        };
        let mut reader = Reader(message);
        match header.kind {
            ChunkType::None => Ok(None),
            ChunkType::OffsetData => {
                let (at, len) = (at(reader.u64())?, header.length - 8);
                self.content(cookie, at, len, false)?;
                self.state = State::Payload { cookie, at, left: len, last };
                Ok(Some(Event::Data { cookie, at, len }))
            }
            ChunkType::OffsetHole => {
                let at = at(reader.u64())?;
                let len = u64::from(reader.u32().unwrap_or(0));
                self.content(cookie, at, len, false)?;
                Ok(Some(Event::Zeroes { cookie, at, len }))
            }
            ChunkType::BlockStatus | ChunkType::BlockStatusExt => {
                let size = self.target.size;
                let (context, extents) = chunk::extents(header.kind, message, &request, size)?;
                let known = self.contexts.contains(&context);
                let seen = &mut self.open(cookie)?.contexts;
                if !known || seen.contains(&context) {
                    return Err(ReplyViolation::Contexts);
                }
                seen.push(context);
                Ok(Some(Event::Status { cookie, context, extents }))
            }
            kind => {
                let failure = chunk::failure(kind, message, &request)?;
                self.open(cookie)?.failure.get_or_insert(failure);
                Ok(None)
            }
        }
    }

    fn open(&mut self, cookie: Cookie) -> Result<&mut Open, ReplyViolation> {
        let found = self.table.get(cookie.number());
        found.map(|(_, open)| open).ok_or(ReplyViolation::UnknownCookie(cookie.number()))
    }

    /// A part of a read comes.
    fn content(
        &mut self,
        cookie: Cookie,
        at: u64,
        len: u64,
        whole: bool,
    ) -> Result<(), ReplyViolation> {
        let open = self.open(cookie)?;
        let end = at.checked_add(len).filter(|end| len > 0 && *end <= open.request.length);
        let end = end.ok_or(ReplyViolation::Outside)?;
        let fragments = open.request.operation == (Operation::Read { unfragmented: true });
        if fragments && open.has_content && !whole {
            return Err(ReplyViolation::Fragmented);
        }
        open.has_content = true;
        open.covered.add(at, end).map_err(|wrong| match wrong {
            Wrong::Overlaps => ReplyViolation::Overlap,
            Wrong::Scattered => ReplyViolation::Scattered,
        })
    }

    fn done(&mut self, cookie: Cookie) -> Result<Event, ReplyViolation> {
        let number = cookie.number();
        let open = self.table.close(cookie).ok_or(ReplyViolation::UnknownCookie(number))?;
        let result = match open.failure {
            Some(failure) => Err(failure),
            None => Ok(()),
        };
        match open.request.operation {
            Operation::Read { .. }
                if result.is_ok() && !open.covered.is_whole(open.request.length) =>
            {
                Err(ReplyViolation::Gap)
            }
            Operation::BlockStatus { .. }
                if result.is_ok() && open.contexts.len() != self.contexts.len() =>
            {
                Err(ReplyViolation::Contexts)
            }
            _ => Ok(Event::Done { cookie, result }),
        }
    }
}
