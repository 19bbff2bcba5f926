//! `handoff rds info`: what the kernel reports about its RDS.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use handoff_rds::kernel::{Information, Queue};
use serde::Serialize;

use crate::{Context, Failure, output};

const EXAMPLES: &str = "\
Each connection has one line for each of its lanes. A socket with more unread bytes than its
receive buffer is congested: it has told its peers to wait.

Examples:
  handoff rds info                      connections, sockets, queues and counters
  handoff rds info --json               the same for a program";

/// Arguments of `handoff rds info`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct InfoArgs {}

#[derive(Serialize)]
struct Info {
    connections: Vec<Connection>,
    sockets: Vec<Socket>,
    queues: Vec<Way>,
    counters: Vec<Counter>,
}

#[derive(Serialize)]
struct Connection {
    local: IpAddr,
    peer: IpAddr,
    connected: bool,
    next_sent: u64,
    next_expected: u64,
}

#[derive(Serialize)]
struct Socket {
    address: SocketAddr,
    send_buffer: u32,
    receive_buffer: u32,
    unread: Amount,
}

/// What is on its way from one of our ports to one of a peer's.
#[derive(Serialize)]
struct Way {
    from: SocketAddr,
    to: SocketAddr,
    waiting: Amount,
    unacknowledged: Amount,
}

#[derive(Clone, Copy, Default, Serialize)]
struct Amount {
    messages: u64,
    bytes: u64,
}

impl Amount {
    fn add(&mut self, len: u32) {
        self.messages += 1;
        self.bytes += u64::from(len);
    }

    fn text(self) -> String {
        format!("{} messages of {} bytes", self.messages, self.bytes)
    }
}

#[derive(Serialize)]
struct Counter {
    name: String,
    value: u64,
}

pub(super) fn run(context: &Context) -> Result<(), Failure> {
    let info = gather(&Information::open()?)?;
    if context.json { output::json(&info) } else { output::text(&info.text()) }
}

fn gather(kernel: &Information) -> Result<Info, Failure> {
    let connections = kernel.connections()?.into_iter().map(|it| Connection {
        local: it.local,
        peer: it.peer,
        connected: it.connected,
        next_sent: it.next_sent,
        next_expected: it.next_expected,
    });
    let mut unread: BTreeMap<SocketAddr, Amount> = BTreeMap::new();
    for message in kernel.messages(Queue::Unread)? {
        unread.entry(message.local).or_default().add(message.len);
    }
    let sockets = kernel.sockets()?.into_iter().map(|it| Socket {
        address: it.address,
        send_buffer: it.send_buffer,
        receive_buffer: it.receive_buffer,
        unread: unread.get(&it.address).copied().unwrap_or_default(),
    });
    let mut ways: BTreeMap<(SocketAddr, SocketAddr), [Amount; 2]> = BTreeMap::new();
    for (number, queue) in [Queue::Waiting, Queue::Unacknowledged].into_iter().enumerate() {
        for message in kernel.messages(queue)? {
            ways.entry((message.local, message.peer)).or_default()[number].add(message.len);
        }
    }
    let queues = ways.into_iter().map(|((from, to), [waiting, unacknowledged])| Way {
        from,
        to,
        waiting,
        unacknowledged,
    });
    let counters = kernel.counters()?.into_iter();
    Ok(Info {
        connections: connections.collect(),
        sockets: sockets.collect(),
        queues: queues.collect(),
        counters: counters.map(|it| Counter { name: it.name, value: it.value }).collect(),
    })
}

impl Info {
    fn text(&self) -> String {
        let mut text = String::new();
        for it in &self.connections {
            let state = if it.connected { "up" } else { "down" };
            text += &format!(
                "{} -> {}  {state}  next sent {}, next expected {}\n",
                it.local, it.peer, it.next_sent, it.next_expected
            );
        }
        for it in &self.sockets {
            text += &format!(
                "{}  buffers {} to send, {} to receive, unread {}\n",
                it.address,
                it.send_buffer,
                it.receive_buffer,
                it.unread.text()
            );
        }
        for it in &self.queues {
            text += &format!(
                "{} -> {}  waiting {}, unacknowledged {}\n",
                it.from,
                it.to,
                it.waiting.text(),
                it.unacknowledged.text()
            );
        }
        for it in &self.counters {
            text += &format!("{:<32} {}\n", it.name, it.value);
        }
        text
    }
}
