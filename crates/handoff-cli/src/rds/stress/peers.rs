//! Answers on their way to peers: a peer that takes none delays none of the others'.
//!
//! Contracts:
//! - one of the kernel's sockets has one send buffer for all that it sends to, so each peer is answered from a
//!   socket of its own;
//! - the answers of a peer, from when they are made until they are back, hold at most three times the bytes that they
//!   leave free of [`ROOM`], or there is only one. Other requests get no answer;
//! - a peer that takes none for [`PATIENCE`] is given up, and its answers with it. Whoever misses an answer asks again;
//! - at most [`KNOWN`] peers are known. The one that asked longest ago is given up for another.

use std::collections::{HashMap, VecDeque};
use std::fmt::Display;
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use handoff::{Buffer, Region};
use handoff_bench::seldom::Seldom;
use handoff_rds::kernel::{Mode, Socket};
use handoff_rds::{Completion, Error, Refused};

use super::super::port::{Host, Port};
use super::shared::Run;
use crate::{Failure, output};

/// Bytes of all answers.
const ROOM: usize = 256 << 20;
/// Buffers have whole pages.
const PAGE: usize = 4 << 10;
/// Bytes of buffers kept for the next answers.
const KEPT: usize = 64 << 20;
/// Who has taken no answer for so long has most likely given them up.
const PATIENCE: Duration = Duration::from_secs(10);
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
    unsent: Seldom,
    batch: Vec<Completion<Buffer>>,
    free: Vec<Buffer>,
    /// Bytes of these.
    kept: usize,
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
            unsent: Seldom::new(|count| format!("{count} more answers were not sent"), output::say),
            batch: Vec::new(),
            free: Vec::new(),
            kept: 0,
        }
    }

    /// Where requests come.
    pub(super) fn port(&self) -> &Port {
        &self.port
    }

    /// A buffer for an answer of so many bytes, unless the peer that asks has too many.
    pub(super) fn asks(&mut self, from: SocketAddr, len: usize) -> Result<Option<Buffer>, Failure> {
        let (now, bytes) = (Instant::now(), len.next_multiple_of(PAGE));
        if !self.known.contains_key(&from.ip()) {
            self.make_place();
            let own = self.host.bind_for_answers().unwrap_or_else(|failure| {
                self.say_unsent(from, failure.line().unwrap_or_default());
                None
            });
            let peer = Peer { own, waiting: VecDeque::new(), held: 0, asked: now, took: now };
            self.known.insert(from.ip(), peer);
        }
        let left = ROOM.saturating_sub(self.held + bytes);
        let peer = self.known.get_mut(&from.ip()).expect("is known by now");
        peer.asked = now;
        if peer.held == 0 {
            peer.took = now;
        } else if peer.held + bytes > 3 * left {
            self.say_unsent(from, "others are under way, and it takes too few");
            return Ok(None);
        }
        (peer.held, self.held) = (peer.held + bytes, self.held + bytes);
        let free = self.free.pop().inspect(|free| self.kept -= free.capacity());
        let mut buffer = match free.filter(|free| free.capacity() == bytes) {
            Some(free) => free,
            None => {
                let mut region = Region::anonymous(bytes).map_err(Failure::failed)?;
                region.take(bytes).expect("was mapped")
            }
        };
        buffer.set_len(len);
        Ok(Some(buffer))
    }

    /// Sends an answer to the peer that asks, or has it wait.
    pub(super) fn answer(&mut self, to: SocketAddr, answer: Buffer) -> Result<(), Failure> {
        let behind = !self.peer(to).waiting.is_empty();
        let refused =
            if behind { Some(answer) } else { self.send(to, answer)?.map(|it| it.payload) };
        if let Some(answer) = refused {
            self.peer(to).waiting.push_back((to.port(), answer));
        }
        Ok(())
    }

    /// Takes back what is back, sends what waits and can be sent, and gives up peers that take nothing.
    pub(super) fn go_on(&mut self) -> Result<(), Failure> {
        self.port.completions(&mut self.batch)?;
        let mut batch = mem::take(&mut self.batch);
        for back in batch.drain(..) {
            self.run.took_back(back.tally);
            if let Some(peer) = self.known.get_mut(&back.to.ip()) {
                peer.took = Instant::now();
            }
            self.put_down(back.to.ip(), back.payload);
        }
        self.batch = batch;
        let addresses = |known: &HashMap<IpAddr, Peer>, is_so: fn(&Peer) -> bool| -> Vec<IpAddr> {
            known.iter().filter(|(_, peer)| is_so(peer)).map(|(address, _)| *address).collect()
        };
        for peer in addresses(&self.known, |peer| !peer.waiting.is_empty()) {
            self.send_waiting(peer)?;
        }
        for peer in addresses(&self.known, |it| it.held > 0 && it.took.elapsed() >= PATIENCE) {
            self.say_unsent(peer, format_args!("it has taken none for {} s", PATIENCE.as_secs()));
            self.give_up(peer);
        }
        Ok(())
    }

    fn peer(&mut self, address: SocketAddr) -> &mut Peer {
        self.known.get_mut(&address.ip()).expect("it asks, or some wait for it")
    }

    fn send_waiting(&mut self, address: IpAddr) -> Result<(), Failure> {
        let mut tries = TRIES.min(self.known[&address].waiting.len());
        while tries > 0
            && let Some((port, answer)) =
                self.known.get_mut(&address).and_then(|peer| peer.waiting.pop_front())
        {
            let to = SocketAddr::new(address, port);
            let Some(refused) = self.send(to, answer)? else { continue };
            let waiting = &mut self.peer(to).waiting;
            if !matches!(refused.error, Error::Congested(_)) {
                // So it is for all of its ports.
                waiting.push_front((port, refused.payload));
                break;
            }
            waiting.push_back((port, refused.payload));
            tries -= 1;
        }
        Ok(())
    }

    /// Returns an answer that is refused for now.
    fn send(&mut self, to: SocketAddr, answer: Buffer) -> Result<Option<Refused<Buffer>>, Failure> {
        let sent = match &self.known[&to.ip()].own {
            Some(own) => {
                let sent = own.send(to, answer, 0, Mode::Copy);
                own.completions(usize::MAX, &mut self.batch)?;
                sent
            }
            None => self.port.send(to, answer, 0),
        };
        match sent {
            Ok(()) => Ok(None),
            Err(refused) if refused.error.is_temporary() => Ok(Some(refused)),
            Err(refused) => {
                self.say_unsent(to, refused.error);
                self.put_down(to.ip(), refused.payload);
                Ok(None)
            }
        }
    }

    /// The buffer of an answer that is over is there for the next.
    fn put_down(&mut self, peer: IpAddr, answer: Buffer) {
        let bytes = answer.capacity();
        self.held -= bytes;
        if let Some(peer) = self.known.get_mut(&peer) {
            // It may have been given up, and have asked again, while this one was under way.
            peer.held = peer.held.saturating_sub(bytes);
        }
        if self.kept + bytes <= KEPT {
            self.kept += bytes;
            self.free.push(answer);
        }
    }

    /// Gives up the peer that asked longest ago, if there is no place for another.
    fn make_place(&mut self) {
        if self.known.len() >= KNOWN {
            let asked = self.known.iter().map(|(address, peer)| (peer.asked, *address)).min();
            asked.into_iter().for_each(|(_, address)| self.give_up(address));
        }
    }

    /// Forgets a peer. What is under way to it ends with its socket, or comes back.
    fn give_up(&mut self, address: IpAddr) {
        if let Some(peer) = self.known.remove(&address) {
            self.held -= peer.waiting.iter().map(|(_, answer)| answer.capacity()).sum::<usize>();
            self.port.cancel(address);
        }
    }

    fn say_unsent(&self, to: impl Display, why: impl Display) {
        if let Some(line) = self.unsent.now(|| format!("an answer to {to} is not sent: {why}")) {
            output::say(line);
        }
    }
}
