//! Answers on their way to peers: a peer that takes none delays none of the others'.
//!
//! Contracts:
//! - one of the kernel's sockets has one send buffer for all that it sends to, so each peer is answered from a
//!   socket of its own;
//! - the answers of a peer, from when they are made until they are back, hold at most three times the bytes that they
//!   leave free of [`ROOM`], or there is only one. Other requests get no answer;
//! - a peer that takes none for [`TIMEOUT`] is given up, and its answers with it. Whoever misses an answer asks again;
//! - at most [`KNOWN`] peers are known. The one that asked longest ago is given up for another.

use std::collections::{HashMap, VecDeque};
use std::fmt::Display;
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use handoff::{Buffer, Region};
use handoff_command::rate_limit::RateLimit;
use handoff_command::{Failure, output};
use handoff_net::rds::failure;
use handoff_net::rds::{Host, Port};
use handoff_rds::kernel::{Mode, Socket};
use handoff_rds::{Completion, Error, Refused};

use super::shared::Run;

/// Bytes of all answers.
const ROOM: usize = 256 << 20;
/// Buffers have whole pages.
const PAGE: usize = 4 << 10;
/// Bytes of buffers kept for the next answers.
const KEPT: usize = 64 << 20;
/// Who has taken no answer for so long has most likely given them up.
const TIMEOUT: Duration = Duration::from_secs(10);
/// One of the kernel's sockets takes two descriptors, and many programs may have 1,024.
const KNOWN: usize = 256;
/// Answers to congested ports of a peer that are tried in a round.
const TRIES: usize = 16;

/// The peers of an answering side.
pub(super) struct Peers<'a> {
    run: &'a Run<'a>,
    host: &'a Host,
    /// Takes the requests, and answers peers that have no socket of their own.
    port: Port,
    known: HashMap<IpAddr, Peer>,
    /// Bytes of all answers.
    held: usize,
    unsent: Unsent,
    batch: Vec<Completion<Buffer>>,
    free: Free,
}

struct Peer {
    own: Option<Box<Socket<Buffer>>>,
    /// Answers that were refused for now, with the peer's port.
    waiting: VecDeque<(u16, Buffer)>,
    /// Bytes of its answers.
    held: usize,
    asked: Instant,
    /// When it took an answer, or had none to take.
    took: Instant,
}

impl<'a> Peers<'a> {
    pub(super) fn new(run: &'a Run<'a>, host: &'a Host, port: Port) -> Self {
        Self {
            run,
            host,
            port,
            known: HashMap::new(),
            held: 0,
            unsent: Unsent::new(),
            batch: Vec::new(),
            free: Free::default(),
        }
    }

    /// Where requests come.
    pub(super) fn port(&self) -> &Port {
        &self.port
    }

    /// Answers so many bytes, which `fill` writes, unless the peer that asks has too many under way; says whether it
    /// does. What is refused for now waits.
    pub(super) fn answer(
        &mut self,
        now: Instant,
        to: SocketAddr,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<bool, Failure> {
        if self.known.len() >= KNOWN && !self.known.contains_key(&to.ip()) {
            self.give_up_the_oldest();
        }
        let peer = self.known.entry(to.ip()).or_insert_with(|| {
            let own = self.host.bind_for_answers().unwrap_or_else(|failure| {
                self.unsent.say(to, failure.line().unwrap_or_default());
                None
            });
            Peer { own, waiting: VecDeque::new(), held: 0, asked: now, took: now }
        });
        let bytes = len.next_multiple_of(PAGE);
        let left = ROOM.saturating_sub(self.held + bytes);
        peer.asked = now;
        if peer.held == 0 {
            peer.took = now;
        } else if peer.held + bytes > 3 * left {
            self.unsent.say(to, "others are under way, and it takes too few");
            return Ok(false);
        }
        let mut answer = self.free.take(bytes)?;
        (peer.held, self.held) = (peer.held + bytes, self.held + bytes);
        answer.set_len(len);
        fill(&mut answer);
        if !peer.waiting.is_empty() {
            peer.waiting.push_back((to.port(), answer));
            return Ok(true);
        }
        match peer.send(&self.port, to, answer, &mut self.batch)? {
            Err(refused) if refused.error.is_temporary() => {
                peer.waiting.push_back((to.port(), refused.payload));
            }
            Err(refused) => self.drop_unsent(to, refused),
            Ok(()) => {}
        }
        Ok(true)
    }

    /// Takes back what is back, sends what waits and can be sent, and gives up peers that take nothing.
    pub(super) fn go_on(&mut self, now: Instant) -> Result<(), Failure> {
        self.port.completions(&mut self.batch)?;
        let mut batch = mem::take(&mut self.batch);
        for back in batch.drain(..) {
            self.run.took_back(back.tally);
            self.put_down(back.to.ip(), back.payload, Some(now));
        }
        self.batch = batch;
        for peer in self.those(|peer| !peer.waiting.is_empty()) {
            self.send_waiting(peer)?;
        }
        let within_timeout = |took| now.saturating_duration_since(took) < TIMEOUT;
        for peer in self.those(|peer| peer.held > 0 && !within_timeout(peer.took)) {
            self.unsent.say(peer, format_args!("it has taken none for {} s", TIMEOUT.as_secs()));
            self.give_up(peer);
        }
        Ok(())
    }

    fn those(&self, are_so: impl Fn(&Peer) -> bool) -> Vec<IpAddr> {
        self.known.iter().filter(|(_, peer)| are_so(peer)).map(|(address, _)| *address).collect()
    }

    fn send_waiting(&mut self, address: IpAddr) -> Result<(), Failure> {
        let Some(peer) = self.known.get_mut(&address) else { return Ok(()) };
        let mut tries = TRIES.min(peer.waiting.len());
        while tries > 0
            && let Some(peer) = self.known.get_mut(&address)
            && let Some((port, answer)) = peer.waiting.pop_front()
        {
            let to = SocketAddr::new(address, port);
            match peer.send(&self.port, to, answer, &mut self.batch)? {
                Ok(()) => {}
                Err(refused) if matches!(refused.error, Error::Congested(_)) => {
                    peer.waiting.push_back((port, refused.payload));
                    tries -= 1;
                }
                Err(refused) if refused.error.is_temporary() => {
                    // So it is for all of its ports.
                    peer.waiting.push_front((port, refused.payload));
                    break;
                }
                Err(refused) => self.drop_unsent(to, refused),
            }
        }
        Ok(())
    }

    fn drop_unsent(&mut self, to: SocketAddr, refused: Refused<Buffer>) {
        self.unsent.say(to, refused.error);
        self.put_down(to.ip(), refused.payload, None);
    }

    /// The buffer of an answer that is over is there for the next.
    fn put_down(&mut self, peer: IpAddr, answer: Buffer, took: Option<Instant>) {
        let bytes = answer.capacity();
        self.held -= bytes;
        if let Some(peer) = self.known.get_mut(&peer) {
            // It may have been given up, and have asked again, while this one was under way.
            peer.held = peer.held.saturating_sub(bytes);
            peer.took = took.unwrap_or(peer.took);
        }
        self.free.put(answer);
    }

    fn give_up_the_oldest(&mut self) {
        let asked = self.known.iter().map(|(address, peer)| (peer.asked, *address)).min();
        asked.into_iter().for_each(|(_, address)| self.give_up(address));
    }

    /// Forgets a peer. What is under way to it ends with its socket, or comes back.
    fn give_up(&mut self, address: IpAddr) {
        if let Some(peer) = self.known.remove(&address) {
            self.held -= peer.waiting.iter().map(|(_, answer)| answer.capacity()).sum::<usize>();
            self.port.cancel(address);
        }
    }
}

impl Peer {
    fn send(
        &self,
        port: &Port,
        to: SocketAddr,
        answer: Buffer,
        batch: &mut Vec<Completion<Buffer>>,
    ) -> Result<Result<(), Refused<Buffer>>, Failure> {
        let Some(own) = &self.own else { return Ok(port.send(to, answer, 0)) };
        let sent = own.send(to, answer, 0, Mode::Copy);
        own.completions(usize::MAX, batch).map_err(failure)?;
        Ok(sent)
    }
}

/// Buffers for the next answers.
#[derive(Default)]
struct Free {
    buffers: Vec<Buffer>,
    /// Bytes of these.
    bytes: usize,
}

impl Free {
    fn take(&mut self, bytes: usize) -> Result<Buffer, Failure> {
        let free = self.buffers.pop().inspect(|free| self.bytes -= free.capacity());
        if let Some(free) = free.filter(|free| free.capacity() == bytes) {
            return Ok(free);
        }
        let mut region = Region::anonymous(bytes).map_err(Failure::failed)?;
        Ok(region.take(bytes).expect("was mapped"))
    }

    fn put(&mut self, buffer: Buffer) {
        if self.bytes + buffer.capacity() <= KEPT {
            self.bytes += buffer.capacity();
            self.buffers.push(buffer);
        }
    }
}

/// Says which answers are not sent.
struct Unsent(RateLimit);

impl Unsent {
    fn new() -> Self {
        Self(RateLimit::new(|count| format!("{count} more answers were not sent"), output::say))
    }

    fn say(&self, to: impl Display, why: impl Display) {
        if let Some(line) = self.0.now(|| format!("an answer to {to} is not sent: {why}")) {
            output::say(line);
        }
    }
}
