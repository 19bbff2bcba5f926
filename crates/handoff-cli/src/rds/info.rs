//! `handoff rds info`: what the kernel tells of its RDS.

use std::net::IpAddr;

use handoff_rds::kernel::Socket;
use serde::Serialize;

use crate::{Context, Failure, output};

const EXAMPLES: &str = "\
Examples:
  handoff rds info                      counters of the system, connections of this network namespace
  handoff rds info 192.0.2.1 --json     by a socket at that address; the default is 127.0.0.1";

/// Arguments of `handoff rds info`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct InfoArgs {
    /// An address of this host
    #[arg(value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub address: IpAddr,
}

#[derive(Serialize)]
struct Info {
    connections: Vec<Connection>,
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
struct Counter {
    name: String,
    value: u64,
}

pub(super) fn run(args: &InfoArgs, context: &Context) -> Result<(), Failure> {
    let socket: Socket<Vec<u8>> = Socket::bind((args.address, 0).into())?;
    let connections = socket.connections()?.into_iter().map(|it| Connection {
        local: it.local,
        peer: it.peer,
        connected: it.connected,
        next_sent: it.next_sent,
        next_expected: it.next_expected,
    });
    let counters = socket.counters()?.into_iter();
    let info = Info {
        connections: connections.collect(),
        counters: counters.map(|it| Counter { name: it.name, value: it.value }).collect(),
    };
    if context.json {
        return output::json(&info);
    }
    let mut text = String::new();
    for it in &info.connections {
        let state = if it.connected { "up" } else { "down" };
        text += &format!(
            "{} -> {}  {state}  next sent {}, next expected {}\n",
            it.local, it.peer, it.next_sent, it.next_expected
        );
    }
    for it in &info.counters {
        text += &format!("{:<32} {}\n", it.name, it.value);
    }
    output::text(&text)
}
