//! Hosts, their applications, the network between them, and faults.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::AddAssign;
use std::time::Duration;

use handoff::Tally;
use handoff_rds::protocol::{Event, Host, Limits, MessageId, Output, Reason};
use handoff_rds::wire::CongestionMap;

use crate::applications::Wanted;
use crate::ledger::{Ledger, Payload};
use crate::network::{End, Tcp};

/// Until when the applications send and faults happen, in microseconds.
pub(crate) const FAULTS: u64 = 100_000;
/// By when everything must be settled.
const TIMEOUT: u64 = 120_000_000;

/// What happened, to be sure that the simulation shows something.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) delivered: u64,
    pub(crate) cuts: u64,
    pub(crate) restarts: u64,
    pub(crate) retransmitted: u64,
    pub(crate) duplicates: u64,
    pub(crate) congested: u64,
    pub(crate) pauses: u64,
    pub(crate) lost_to_restarts: u64,
    /// Maps that were older than one written before.
    pub(crate) outdated: u64,
    pub(crate) renewals: u64,
}

impl AddAssign for Seen {
    fn add_assign(&mut self, other: Self) {
        self.delivered += other.delivered;
        self.cuts += other.cuts;
        self.restarts += other.restarts;
        self.retransmitted += other.retransmitted;
        self.duplicates += other.duplicates;
        self.congested += other.congested;
        self.pauses += other.pauses;
        self.lost_to_restarts += other.lost_to_restarts;
        self.outdated += other.outdated;
        self.renewals += other.renewals;
    }
}

/// SplitMix64.
pub(crate) struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Happening {
    /// A host's deadline may have come.
    Tick(usize),
    /// The connection, made by end 0, reaches the other side.
    Arrives(usize),
    /// The first segment on the way from an end arrives.
    Segment(usize, usize),
    /// An end learns what is acknowledged.
    Acknowledged(usize, usize, u64),
    /// An end learns that the other has sent its last.
    Finished(usize, usize),
    /// An end notices that the connection is dead.
    Noticed(usize, usize),
    /// A dead connection's socket lets go of a payload.
    Released(usize, u32, MessageId),
    Send(usize),
    Read(usize),
    Fault,
}

pub(crate) struct Node {
    pub(crate) host: Host<Payload, Vec<u8>>,
    pub(crate) incarnation: u32,
    pub(crate) ports: Vec<u16>,
    pub(crate) slow: bool,
    /// The incarnation of each host that this one knows of.
    pub(crate) known: Vec<u32>,
    /// What was refused because a port was congested, to be tried again.
    pub(crate) waiting: Vec<Wanted>,
    /// A map that was written before.
    pub(crate) told: CongestionMap,
}

pub(crate) struct World {
    pub(crate) random: Random,
    pub(crate) now: u64,
    order: u64,
    agenda: BinaryHeap<Reverse<(u64, u64, Happening)>>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) connections: Vec<Tcp>,
    pub(crate) ledger: Ledger,
    limits: Limits,
    /// Maps go without extensions, as those of kernels do.
    pub(crate) plain: bool,
    pub(crate) seen: Seen,
}

pub(crate) fn address(host: usize) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, host as u8 + 1).into()
}

pub(crate) fn number(address: IpAddr) -> usize {
    let IpAddr::V4(address) = address else { panic!("no such host: {address}") };
    usize::from(address.octets()[3]) - 1
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let limits = Limits {
            message: 4096,
            queued: 40_000,
            receive: 6_000,
            held: 16_000,
            lanes: 1 << random.below(4),
            peer_timeout: Duration::from_millis(500),
            ..Limits::default()
        };
        let count = 2 + random.below(3) as usize;
        let plain = random.chance(30);
        let mut world = Self {
            random,
            now: 0,
            order: 0,
            agenda: BinaryHeap::new(),
            nodes: Vec::new(),
            connections: Vec::new(),
            ledger: Ledger::default(),
            limits,
            plain,
            seen: Seen::default(),
        };
        for host in 0..count {
            let ports = (0..1 + world.random.below(3) as u16).map(|at| 4000 + at).collect();
            let slow = world.random.chance(40);
            let node = Node {
                host: world.host(host, 1),
                incarnation: 1,
                ports,
                slow,
                known: vec![1; count],
                waiting: Vec::new(),
                told: CongestionMap::new(),
            };
            world.nodes.push(node);
            world.bind(host);
            world.schedule(1000, Happening::Send(host));
            world.schedule(3000, Happening::Read(host));
        }
        world.schedule(25_000, Happening::Fault);
        world
    }

    fn host(&self, host: usize, incarnation: u32) -> Host<Payload, Vec<u8>> {
        let mut made =
            Host::new(address(host), incarnation * 16 + host as u32, self.limits.clone());
        made.advance(Duration::from_micros(self.now));
        made
    }

    fn bind(&mut self, host: usize) {
        let node = &mut self.nodes[host];
        node.ports.iter().for_each(|port| node.host.bind(*port).expect("a new host"));
    }

    /// Something between half and one and a half of `about` microseconds from now.
    pub(crate) fn schedule(&mut self, about: u64, what: Happening) {
        let at = self.now + about / 2 + self.random.below(about + 1);
        self.schedule_at(at, what);
    }

    pub(crate) fn schedule_at(&mut self, at: u64, what: Happening) {
        self.order += 1;
        self.agenda.push(Reverse((at, self.order, what)));
    }

    pub(crate) fn incarnations(&self) -> Vec<u32> {
        self.nodes.iter().map(|node| node.incarnation).collect()
    }

    pub(crate) fn run(mut self) -> Seen {
        while let Some(Reverse((at, _, what))) = self.agenda.pop() {
            self.now = at;
            if self.now > FAULTS && self.ledger.settled(&self.incarnations()) && self.all_done() {
                break;
            }
            assert!(self.now < TIMEOUT, "not settled after two minutes");
            self.happen(what);
        }
        self.ledger.audit(&self.incarnations(), !self.plain);
        for host in 0..self.nodes.len() {
            self.count(host);
        }
        self.seen
    }

    /// Whether nothing is unread anywhere, and nobody wants to send.
    fn all_done(&self) -> bool {
        let unread = |end: &End| end.id.is_some() && !end.unread.is_empty();
        let moving = |tcp: &Tcp| {
            tcp.ends.iter().any(|end| unread(end) || !end.on_the_way.is_empty() && !tcp.cut)
        };
        !self.connections.iter().any(moving)
            && self
                .nodes
                .iter()
                .all(|node| node.host.statistics().held_bytes == 0 && node.waiting.is_empty())
    }

    fn count(&mut self, host: usize) {
        let counted = self.nodes[host].host.statistics();
        self.seen.retransmitted += counted.retransmitted;
        self.seen.duplicates += counted.duplicates;
        self.seen.congested += counted.refused_congested;
        self.seen.pauses += counted.pauses;
        self.seen.lost_to_restarts += counted.lost_to_restarts;
        self.seen.renewals += counted.renewals;
        assert_eq!(counted.violations, 0);
    }

    fn happen(&mut self, what: Happening) {
        let faults = self.now < FAULTS;
        match what {
            Happening::Tick(host) => self.drive(host),
            Happening::Arrives(tcp) => self.arrives(tcp),
            Happening::Segment(tcp, end) => self.segment(tcp, end),
            Happening::Acknowledged(tcp, end, bytes) => {
                let cut = self.connections[tcp].cut;
                let end = &mut self.connections[tcp].ends[end];
                let Some(id) = end.id.filter(|_| !cut) else { return };
                if bytes <= end.acknowledged {
                    return;
                }
                end.acknowledged = bytes;
                let host = end.host;
                while end.loans.front().is_some_and(|(end, _)| *end <= bytes) {
                    let (_, message) = end.loans.pop_front().expect("just seen");
                    self.nodes[host].host.released(message, Tally::default());
                }
                self.nodes[host].host.acknowledged(id, bytes);
                self.drive(host);
            }
            Happening::Finished(tcp, end) => self.finished(tcp, end),
            Happening::Noticed(tcp, end) => {
                let host = self.connections[tcp].ends[end].host;
                self.read(tcp, end);
                self.end_closed(tcp, end, Some(what));
                self.drive(host);
            }
            Happening::Released(host, incarnation, message) => {
                if self.nodes[host].incarnation == incarnation {
                    self.nodes[host].host.released(message, Tally::default());
                    self.drive(host);
                }
            }
            Happening::Send(host) => {
                let waiting = std::mem::take(&mut self.nodes[host].waiting);
                waiting.into_iter().for_each(|wanted| self.send(host, wanted));
                if faults {
                    (0..self.random.below(6)).for_each(|_| self.send_any(host));
                }
                if faults || !self.nodes[host].waiting.is_empty() {
                    self.schedule(2000, Happening::Send(host));
                }
                self.drive(host);
            }
            Happening::Read(host) => {
                self.application_reads(host);
                let pause = if faults && self.nodes[host].slow { 40_000 } else { 2000 };
                self.schedule(pause, Happening::Read(host));
                self.drive(host);
            }
            Happening::Fault => {
                if faults {
                    self.fault();
                    self.schedule(25_000, Happening::Fault);
                }
            }
        }
    }

    fn fault(&mut self) {
        if self.random.chance(30) {
            let host = self.random.below(self.nodes.len() as u64) as usize;
            return self.restart(host);
        }
        let alive: Vec<usize> = (0..self.connections.len())
            .filter(|at| {
                let tcp = &self.connections[*at];
                !tcp.cut && tcp.ends.iter().any(|end| end.id.is_some())
            })
            .collect();
        let several = self.random.chance(20);
        for at in alive.iter().copied() {
            if several || self.random.below(alive.len() as u64) == 0 {
                self.seen.cuts += 1;
                self.cut(at);
            }
        }
    }

    /// Nothing passes any more; each end notices some time.
    pub(crate) fn cut(&mut self, tcp: usize) {
        if !std::mem::replace(&mut self.connections[tcp].cut, true) {
            for end in 0..2 {
                self.schedule(20_000, Happening::Noticed(tcp, end));
            }
        }
    }

    fn restart(&mut self, host: usize) {
        self.seen.restarts += 1;
        self.count(host);
        for at in 0..self.connections.len() {
            for end in 0..2 {
                let this = &mut self.connections[at].ends[end];
                if this.host == host && this.incarnation == self.nodes[host].incarnation {
                    this.id = None;
                    self.cut(at);
                }
            }
        }
        let incarnation = self.nodes[host].incarnation + 1;
        self.nodes[host].known = self.incarnations();
        self.nodes[host].incarnation = incarnation;
        self.nodes[host].host = self.host(host, incarnation);
        self.nodes[host].waiting.clear();
        self.nodes[host].told = CongestionMap::new();
        self.bind(host);
    }

    /// Does what the host asks for, looks after it, and comes back at its deadline.
    pub(crate) fn drive(&mut self, host: usize) {
        self.nodes[host].host.advance(Duration::from_micros(self.now));
        while let Some(output) = self.nodes[host].host.poll() {
            match output {
                Output::Connect { connection, peer, lane } => {
                    self.connect(host, connection, peer, lane)
                }
                Output::Ready(id) => {
                    if let Some((tcp, end)) = self.find(host, id) {
                        self.write(tcp, end);
                    }
                }
                Output::Resume(id) => {
                    if let Some((tcp, end)) = self.find(host, id) {
                        self.read(tcp, end);
                        // The window has opened.
                        self.write(tcp, 1 - end);
                    }
                }
                // Nothing waits to be accepted.
                Output::Accept(peer) => self.nodes[host].host.accepted_all(peer),
                Output::CatchUp(id) => {
                    if let Some((tcp, end)) = self.find(host, id) {
                        self.connections[tcp].ends[end].awaited = true;
                        self.read(tcp, end);
                    }
                }
                Output::Finish(id) => {
                    if let Some((tcp, end)) = self.find(host, id) {
                        self.connections[tcp].ends[end].finished = true;
                        self.finish(tcp, end);
                    }
                }
                Output::Drain(id) => {
                    if let Some((tcp, end)) = self.find(host, id) {
                        self.cut(tcp);
                        // What waits for room is closed when the death is noticed.
                        if self.read(tcp, end) {
                            self.end_closed(tcp, end, Some(Happening::Noticed(tcp, end)));
                        }
                    }
                }
                Output::Close { connection, reason, .. } => {
                    assert!(
                        matches!(reason, Reason::Asked | Reason::Silent | Reason::FormerLife),
                        "{reason}"
                    );
                    if let Some((tcp, end)) = self.find(host, connection) {
                        self.end_closed(tcp, end, None);
                        self.cut(tcp);
                    }
                }
            }
        }
        let node = &mut self.nodes[host];
        while let Some(event) = node.host.event() {
            if let Event::Restarted { peer, generation, .. } = event {
                node.known[number(peer)] = generation / 16;
            }
        }
        let mut batch = Vec::new();
        for port in &node.ports {
            let completions = node.host.completions(*port).expect("bound");
            let waiting = completions.peek().len();
            let most = 1 + self.random.below(8) as usize;
            assert_eq!(completions.take(most, &mut batch), most.min(waiting));
        }
        for completion in batch {
            self.ledger.completed(completion.cookie, completion.payload, completion.end);
        }
        let node = &self.nodes[host];
        let counted = node.host.statistics();
        assert!(counted.held_bytes <= self.limits.held + 2 * self.limits.message as u64);
        let most = self.limits.queued + self.limits.message as u64;
        assert!(counted.queued_bytes <= most * self.nodes.len() as u64);
        if let Some(deadline) = node.host.deadline() {
            let at = (deadline.as_micros() as u64 + 1).max(self.now + 1);
            // Not one more for each thing that happens.
            if self.random.chance(20) || at > self.now + 1000 {
                self.schedule_at(at, Happening::Tick(host));
            }
        }
    }
}
