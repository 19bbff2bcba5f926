//! What runs on the hosts: senders that try again what a congested port refused, and receivers.

use handoff_rds::Error;
use handoff_rds::protocol::Message;

use crate::ledger::Stream;
use crate::world::{Random, World, address};

/// What an application wants to send at most.
const MAX_WAITING: usize = 8;

/// A message that an application wants to send.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    source: u16,
    to: usize,
    port: u16,
    len: usize,
}

impl World {
    pub(crate) fn send_any(&mut self, from: usize) {
        let to = self.random.below(self.nodes.len() as u64) as usize;
        if to == from {
            return;
        }
        let pick =
            |random: &mut Random, ports: &[u16]| ports[random.below(ports.len() as u64) as usize];
        let source = pick(&mut self.random, &self.nodes[from].ports);
        let port = pick(&mut self.random, &self.nodes[to].ports);
        let most = if self.random.chance(20) { 4096 } else { 300 };
        let len = self.random.below(most) as usize;
        self.send(from, Wanted { source, to, port, len });
    }

    pub(crate) fn send(&mut self, from: usize, wanted: Wanted) {
        let Wanted { source, to, port, len } = wanted;
        let payload = self.ledger.payload(len);
        let (len, cookie) = (payload.len(), self.ledger.next_cookie());
        let node = &mut self.nodes[from];
        let message = Message { from: source, to: address(to), port, payload, len, cookie };
        match node.host.send(message) {
            Ok(_) => {
                let stream = Stream { from, incarnation: node.incarnation, source, to, port };
                self.ledger.accepted(stream, node.known[to]);
            }
            Err(refused) => {
                assert!(refused.error.is_temporary(), "{}", refused.error);
                match refused.error {
                    Error::Full { .. } => assert!(node.host.statistics().queued_bytes > 30_000),
                    _ if node.waiting.len() < MAX_WAITING => node.waiting.push(wanted),
                    _ => {}
                }
            }
        }
    }

    pub(crate) fn application_reads(&mut self, host: usize) {
        for at in 0..self.nodes[host].ports.len() {
            let node = &mut self.nodes[host];
            let port = node.ports[at];
            let many = if node.slow { 1 + self.random.below(20) } else { u64::MAX };
            for _ in 0..many {
                let Some(delivered) = self.nodes[host].host.receive(port) else { break };
                assert_eq!(delivered.payload.len(), delivered.len);
                let incarnations = self.incarnations();
                self.ledger.delivered((host, port), &incarnations, &delivered.payload, !self.plain);
                self.seen.delivered += 1;
            }
        }
    }
}
