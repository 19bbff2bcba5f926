//! What passes between two hosts: connections made, bytes moved, frames taken and handed in.

use std::net::IpAddr;
use std::rc::Rc;

use handoff_rds::protocol::{Body, ConnectionId, Expect, Reason};
use handoff_rds::wire::{CongestionMap, EXTENSIONS_LEN, FLAG_CONGESTION_MAP, HEADER_LEN};

use crate::network::{End, Tcp, WINDOW};
use crate::world::{FAULTS, Happening, World, address, number};

impl World {
    pub(crate) fn find(&self, host: usize, id: ConnectionId) -> Option<(usize, usize)> {
        let incarnation = self.nodes[host].incarnation;
        for (at, tcp) in self.connections.iter().enumerate().rev() {
            for (which, end) in tcp.ends.iter().enumerate() {
                if (end.host, end.incarnation, end.id) == (host, incarnation, Some(id)) {
                    return Some((at, which));
                }
            }
        }
        None
    }

    pub(crate) fn connect(&mut self, host: usize, id: ConnectionId, peer: IpAddr, lane: u8) {
        let to = number(peer);
        let ends = [
            End::new(host, self.nodes[host].incarnation, Some(id)),
            End::new(to, self.nodes[to].incarnation, None),
        ];
        // The lane stands where the source port would tell it.
        let mut tcp = Tcp { ends, cut: false };
        tcp.ends[0].written = u64::from(lane);
        self.connections.push(tcp);
        self.schedule(500, Happening::Arrives(self.connections.len() - 1));
    }

    pub(crate) fn arrives(&mut self, tcp: usize) {
        let lane = std::mem::take(&mut self.connections[tcp].ends[0].written);
        let [from, to] = [0, 1].map(|end| self.connections[tcp].ends[end].host);
        let Some(id) = self.connections[tcp].ends[0].id else { return };
        let alive = self.connections[tcp]
            .ends
            .iter()
            .all(|end| end.incarnation == self.nodes[end.host].incarnation);
        if self.connections[tcp].cut || !alive {
            return self.cut(tcp);
        }
        self.nodes[from].host.connected(id);
        let source_port = 40_000 + lane as u16;
        match self.nodes[to].host.accepted(address(from), source_port) {
            Ok(accepted) => self.connections[tcp].ends[1].id = Some(accepted),
            Err(Reason::WakeUp | Reason::Undrained) => self.cut(tcp),
            Err(other) => panic!("{other}"),
        }
        self.drive(from);
        self.drive(to);
    }

    /// Takes frames from the host as long as there is room, and puts bytes on their way.
    pub(crate) fn write(&mut self, tcp: usize, end: usize) {
        let this = &mut self.connections[tcp].ends[end];
        let host = this.host;
        if let Some(id) = this.id {
            while this.outgoing.len() < 4096 {
                let Some(write) = self.nodes[host].host.next_write(id) else { break };
                let mut header = write.header;
                if self.plain && header[24] == FLAG_CONGESTION_MAP {
                    header[HEADER_LEN - EXTENSIONS_LEN..].fill(0);
                }
                let before = this.outgoing.len();
                this.outgoing.extend(header);
                match write.body {
                    Body::Empty => {}
                    Body::Map(ref map) => {
                        let outdated = self.plain && self.now < FAULTS && self.random.chance(30);
                        let node = &mut self.nodes[host];
                        self.seen.outdated += u64::from(outdated && node.told != **map);
                        if !outdated {
                            node.told = CongestionMap::clone(map);
                        }
                        this.outgoing.extend(node.told.as_bytes());
                    }
                    Body::Message(message) => {
                        let payload = self.nodes[host].host.payload(message).expect("lent");
                        this.outgoing.extend(Rc::as_ref(payload));
                    }
                }
                this.written += (this.outgoing.len() - before) as u64;
                if let Body::Message(message) = write.body {
                    this.loans.push_back((this.written, message));
                }
            }
        }
        if self.connections[tcp].cut {
            return;
        }
        loop {
            let unread = self.connections[tcp].ends[1 - end].unread.len();
            let this = &mut self.connections[tcp].ends[end];
            let room = WINDOW.saturating_sub(unread + this.bytes_on_the_way());
            let most = this.outgoing.len().min(room);
            if most == 0 {
                return self.finish(tcp, end);
            }
            let len = 1 + self.random.below(most.min(9000) as u64) as usize;
            let segment = this.outgoing.drain(..len).collect();
            this.on_the_way.push_back(segment);
            this.arrival = (self.now + 50 + self.random.below(1500)).max(this.arrival + 1);
            let at = this.arrival;
            self.schedule_at(at, Happening::Segment(tcp, end));
        }
    }

    /// An end that has shut down its sending side has nothing more to send.
    pub(crate) fn finish(&mut self, tcp: usize, end: usize) {
        let this = &self.connections[tcp].ends[end];
        if this.finished && this.outgoing.is_empty() {
            let at = this.arrival.max(self.now) + 1;
            self.schedule_at(at, Happening::Finished(tcp, 1 - end));
        }
    }

    /// What the other end has sent was the last. Kernels then close: what they had not put on the way
    /// is lost, and what is on the way is read.
    pub(crate) fn finished(&mut self, tcp: usize, end: usize) {
        let this = &self.connections[tcp].ends[end];
        let (host, former) = (this.host, this.incarnation != self.nodes[this.host].incarnation);
        if self.connections[tcp].cut || former {
            return;
        }
        self.read(tcp, end);
        self.end_closed(tcp, end, Some(Happening::Finished(tcp, end)));
        let this = &mut self.connections[tcp].ends[end];
        if this.id.is_none() && !std::mem::replace(&mut this.finished, true) {
            this.outgoing.clear();
            self.finish(tcp, end);
        }
        self.drive(host);
    }

    pub(crate) fn segment(&mut self, tcp: usize, end: usize) {
        if self.connections[tcp].cut {
            return;
        }
        let Some(segment) = self.connections[tcp].ends[end].on_the_way.pop_front() else { return };
        let there = &mut self.connections[tcp].ends[1 - end];
        if there.incarnation != self.nodes[there.host].incarnation {
            return;
        }
        there.arrived += segment.len() as u64;
        there.unread.extend(segment);
        let (host, arrived) = (there.host, there.arrived);
        // Acknowledged on arrival; the acknowledgement may be lost with the connection.
        let at = self.now + 100 + self.random.below(4000);
        self.schedule_at(at, Happening::Acknowledged(tcp, end, arrived));
        self.read(tcp, 1 - end);
        self.drive(host);
        self.write(tcp, end);
    }

    /// Hands in what has arrived; `false` where the host does not take all of it now.
    pub(crate) fn read(&mut self, tcp: usize, end: usize) -> bool {
        let all = self.take_in(tcp, end);
        let this = &mut self.connections[tcp].ends[end];
        if all
            && let Some(id) = this.id
            && std::mem::take(&mut this.awaited)
        {
            self.nodes[this.host].host.caught_up(id);
        }
        all
    }

    fn take_in(&mut self, tcp: usize, end: usize) -> bool {
        let this = &mut self.connections[tcp].ends[end];
        let Some(id) = this.id else { return true };
        let host = &mut self.nodes[this.host].host;
        loop {
            match host.expect(id) {
                Expect::Header => {
                    let Some(bytes) = this.read(HEADER_LEN) else { return true };
                    host.header(id, bytes.as_slice().try_into().expect("as asked for"));
                }
                Expect::Payload(len) => {
                    let Some(bytes) = this.read(len) else { return true };
                    host.payload_received(id, bytes);
                }
                Expect::Skip(len) => {
                    if this.read(len).is_none() {
                        return true;
                    }
                    host.skipped(id);
                }
                Expect::Map => {
                    let Some(bytes) = this.read(8192) else { return true };
                    host.map(id, bytes.as_slice().try_into().expect("as asked for"));
                }
                Expect::Nothing => return this.unread.is_empty(),
            }
        }
    }

    /// An end's socket is gone; its payloads are let go of, at once or later. `again` happens where what
    /// has arrived cannot be taken in yet; without it the host has closed it.
    pub(crate) fn end_closed(&mut self, tcp: usize, end: usize, again: Option<Happening>) {
        let this = &mut self.connections[tcp].ends[end];
        let (host, incarnation) = (this.host, this.incarnation);
        if let Some(again) = again
            && let Some(id) = this.id
            && self.nodes[host].host.expect(id) == Expect::Nothing
            && !this.unread.is_empty()
        {
            // What has arrived is taken in before, so that waits for room.
            return self.schedule(5000, again);
        }
        let Some(id) = this.id.take() else { return };
        for (_, message) in std::mem::take(&mut this.loans) {
            self.schedule(10_000, Happening::Released(host, incarnation, message));
        }
        if again.is_some() {
            self.nodes[host].host.closed(id);
        }
    }
}
