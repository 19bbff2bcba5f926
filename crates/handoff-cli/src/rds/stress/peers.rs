//! Answers on their way to peers: a peer that takes none delays none of the others'.
//!
//! Contracts:
//! - one of the kernel's sockets has one send buffer for all that it sends to, so each peer is answered from a
//!   socket of its own;
//! - an answer is tried at once, behind those that wait for the same port of the peer. The answers that wait for a
//!   peer hold at most three times the bytes that they leave free of [`ROOM`]; others are dropped;
//! - a peer that takes none for [`PATIENCE`] loses those that wait. Whoever misses an answer asks again;
//! - at most [`KNOWN`] peers are known. The one that asked longest ago makes room for another.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use handoff::{Buffer, Driver};
use handoff_bench::seldom::Seldom;
use handoff_rds::Completion;

use super::super::port::{Host, Port};
use super::shared::Run;
use crate::{Failure, output};

/// Bytes of all answers that wait.
const ROOM: usize = 256 << 20;
/// What a short answer takes: its pages, and what the kernel keeps of a mapping.
const LEAST: usize = 8 << 10;
/// Who has taken no answer for so long has most likely given them up.
const PATIENCE: Duration = Duration::from_secs(10);
/// For each of the kernel's sockets a program has two descriptors, and 1,024 in all unless it may have more.
const KNOWN: usize = 256;

/// Why an answer is dropped.
const TOO_FEW: &str = "others wait, and it takes too few";

/// The peers of an answering side.
pub(super) struct Peers<'a> {
    run: &'a Run<'a>,
    host: &'a Host,
    driver: &'a Driver,
    /// Takes the requests, and answers peers that have no port of their own.
    port: Port,
    known: HashMap<IpAddr, Peer>,
    /// Bytes of all that wait.
    held: usize,
    unsent: Seldom,
    batch: Vec<Completion<Buffer>>,
    /// Buffers that are back.
    free: Vec<Buffer>,
}

struct Peer {
    own: Option<Port>,
    /// By its ports, of which some may be congested.
    waiting: BTreeMap<u16, VecDeque<Buffer>>,
    /// Bytes of those.
    held: usize,
    asked: Instant,
    /// When it took an answer, or had none to take.
    took: Instant,
}

impl<'a> Peers<'a> {
    pub(super) fn new(run: &'a Run<'a>, host: &'a Host, driver: &'a Driver, port: Port) -> Self {
        Self {
            run,
            host,
            driver,
            port,
            known: HashMap::new(),
            held: 0,
            unsent: Seldom::new(|count| format!("{count} more answers were not sent"), output::say),
            batch: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Where requests come.
    pub(super) fn port(&self) -> &Port {
        &self.port
    }

    /// A buffer that is back, if there is one.
    pub(super) fn free(&mut self) -> Option<Buffer> {
        self.free.pop()
    }

    /// Notes that a peer asks for so many bytes. Returns whether they may be sent to it, now or later.
    pub(super) fn asks(&mut self, from: SocketAddr, len: usize) -> Result<bool, Failure> {
        let now = Instant::now();
        if let Some(peer) = self.known.get_mut(&from.ip()) {
            peer.asked = now;
        } else {
            self.make_place();
            let own = self.host.bind_for_answers(self.driver)?;
            let waiting = BTreeMap::new();
            let peer = Peer { own, waiting, held: 0, asked: now, took: now };
            self.known.insert(from.ip(), peer);
        }
        let may = self.known[&from.ip()].held == 0 || self.has_room(from.ip(), len);
        if !may {
            self.say_unsent(from, TOO_FEW);
        }
        Ok(may)
    }

    /// Sends an answer to a peer that [asks](Self::asks), or has it wait.
    pub(super) fn answer(&mut self, to: SocketAddr, answer: Buffer) -> Result<(), Failure> {
        let waits = self.known[&to.ip()].waiting.contains_key(&to.port());
        let refused = if waits { Some(answer) } else { self.send(to, answer)? };
        let Some(answer) = refused else { return Ok(()) };
        if !self.has_room(to.ip(), answer.len()) {
            self.say_unsent(to, TOO_FEW);
            self.free.push(answer);
            return Ok(());
        }
        let bytes = charge(&answer);
        let peer = self.known.get_mut(&to.ip()).expect("it asks");
        if peer.held == 0 {
            peer.took = Instant::now();
        }
        (self.held, peer.held) = (self.held + bytes, peer.held + bytes);
        peer.waiting.entry(to.port()).or_default().push_back(answer);
        Ok(())
    }

    /// Takes back what is back, and sends what waits and can be sent.
    pub(super) fn go_on(&mut self) -> Result<(), Failure> {
        self.port.completions(&mut self.batch)?;
        for back in self.batch.drain(..) {
            self.run.took_back(back.tally);
            self.free.push(back.payload);
        }
        if self.held == 0 {
            return Ok(());
        }
        let addresses = |(address, peer): (&IpAddr, &Peer)| {
            let ports = peer.waiting.keys();
            ports.map(|port| SocketAddr::new(*address, *port)).collect::<Vec<_>>()
        };
        for to in self.known.iter().flat_map(addresses).collect::<Vec<_>>() {
            self.send_waiting(to)?;
        }
        for peer in self.known.values_mut() {
            if peer.held > 0 && peer.took.elapsed() >= PATIENCE {
                peer.waiting.clear();
                self.held -= std::mem::take(&mut peer.held);
            }
        }
        Ok(())
    }

    fn send_waiting(&mut self, to: SocketAddr) -> Result<(), Failure> {
        let peer = self.known.get_mut(&to.ip()).expect("some wait for it");
        let mut waiting = peer.waiting.remove(&to.port()).expect("some wait for it");
        let mut taken = 0;
        while let Some(answer) = waiting.pop_front() {
            let bytes = charge(&answer);
            if let Some(refused) = self.send(to, answer)? {
                waiting.push_front(refused);
                break;
            }
            taken += bytes;
        }
        let peer = self.known.get_mut(&to.ip()).expect("it was there");
        if taken > 0 {
            peer.took = Instant::now();
        }
        (self.held, peer.held) = (self.held - taken, peer.held - taken);
        if !waiting.is_empty() {
            peer.waiting.insert(to.port(), waiting);
        }
        Ok(())
    }

    /// Returns an answer that can't be sent now.
    fn send(&mut self, to: SocketAddr, answer: Buffer) -> Result<Option<Buffer>, Failure> {
        let own = self.known[&to.ip()].own.as_ref();
        match own.unwrap_or(&self.port).send(to, answer, 0) {
            Ok(()) => {
                if let Some(own) = own {
                    own.completions(&mut self.batch)?;
                }
                Ok(None)
            }
            Err(refused) if refused.error.is_temporary() => Ok(Some(refused.payload)),
            Err(refused) => {
                self.say_unsent(to, refused.error);
                self.free.push(refused.payload);
                Ok(None)
            }
        }
    }

    /// Whether so many bytes more may wait for this peer.
    fn has_room(&self, peer: IpAddr, len: usize) -> bool {
        let more = len.max(LEAST);
        let left = ROOM.saturating_sub(self.held + more);
        self.known[&peer].held + more <= 3 * left
    }

    /// Forgets the peer that asked longest ago, if there is no place for another.
    fn make_place(&mut self) {
        if self.known.len() < KNOWN {
            return;
        }
        let asked = self.known.iter().map(|(address, peer)| (peer.asked, *address)).min();
        let gone = asked.and_then(|(_, address)| self.known.remove(&address));
        self.held -= gone.map_or(0, |gone| gone.held);
    }

    fn say_unsent(&self, to: SocketAddr, why: impl Display) {
        if let Some(line) = self.unsent.now(|| format!("an answer to {to} is not sent: {why}")) {
            output::say(line);
        }
    }
}

/// What an answer takes of the room.
fn charge(answer: &Buffer) -> usize {
    answer.len().max(LEAST)
}
