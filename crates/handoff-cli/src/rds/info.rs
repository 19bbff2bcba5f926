//! `handoff rds info`: what the kernel reports about its RDS.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use handoff_command::{Context, Failure, output};
use handoff_net::rds::failure;
use handoff_rds::kernel::{Bound, Connection, Counter, Information, Queue};
use serde::Serialize;

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
struct Socket {
    #[serde(flatten)]
    bound: Bound,
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

pub(super) fn run(context: &Context) -> Result<(), Failure> {
    let info = gather(&Information::open().map_err(failure)?)?;
    if context.json { output::json(&info) } else { output::text(&info.text()) }
}

fn gather(kernel: &Information) -> Result<Info, Failure> {
    let mut unread: BTreeMap<SocketAddr, Amount> = BTreeMap::new();
    for message in kernel.messages(Queue::Unread).map_err(failure)? {
        unread.entry(message.local).or_default().add(message.len);
    }
    let sockets = kernel.sockets().map_err(failure)?.into_iter().map(|bound| Socket {
        unread: unread.get(&bound.address).copied().unwrap_or_default(),
        bound,
    });
    let mut ways: BTreeMap<(SocketAddr, SocketAddr), [Amount; 2]> = BTreeMap::new();
    for (number, queue) in [Queue::Waiting, Queue::Unacknowledged].into_iter().enumerate() {
        for message in kernel.messages(queue).map_err(failure)? {
            ways.entry((message.local, message.peer)).or_default()[number].add(message.len);
        }
    }
    let queues = ways.into_iter().map(|((from, to), [waiting, unacknowledged])| Way {
        from,
        to,
        waiting,
        unacknowledged,
    });
    Ok(Info {
        connections: kernel.connections().map_err(failure)?,
        sockets: sockets.collect(),
        queues: queues.collect(),
        counters: kernel.counters().map_err(failure)?,
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
        for Socket { bound, unread } in &self.sockets {
            text += &format!(
                "{}  buffers {} to send, {} to receive, unread {}\n",
                bound.address,
                bound.send_buffer,
                bound.receive_buffer,
                unread.text()
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
