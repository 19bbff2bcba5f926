//! `--send-to`: the sending host's part, which does what the receiving host tells it.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs as _},
    sync::Arc,
    time::Duration,
};

use handoff_command::{Context, Failure, Stop};
use handoff_sys::hangup;
use rustix::thread::{CpuSet, sched_getaffinity};

use crate::{
    network::{
        TIMEOUT,
        card::DEFAULT_PORT,
        far::FarEnd as _,
        pattern::Pattern,
        sender::Sender,
        talk::{Answer, Hello, Order, Silence, Talk},
    },
    processor::ran_and_waited,
};

/// The longest wait for a connection; the receiving host waits longer for its answer.
const FOR_A_CONNECTION: Duration = TIMEOUT;

/// The connections of this host, by the numbers that the receiving host gives them.
struct Senders {
    host: IpAddr,
    pattern: Arc<Pattern>,
    processors: CpuSet,
    all: HashMap<u64, Sender>,
}

/// Does what the receiving host asks until that host's table is complete.
pub(crate) fn run(target: &str, context: &Context) -> Result<(), Failure> {
    let address = address(target).map_err(Failure::Usage)?;
    let stream = TcpStream::connect_timeout(&address, FOR_A_CONNECTION).map_err(|error| {
        let cause = match error.kind() {
            io::ErrorKind::ConnectionRefused => {
                "start `handoff bench recv --nic IFACE` there first, which takes one sender"
            }
            _ => "take the address that the receiving host says",
        };
        Failure::Failed(format!("cannot connect to {address}: {error}: {cause}"))
    })?;
    let failed = |error: io::Error| Failure::Failed(error.to_string());
    let mut talk = Talk::new(stream, context.stop.flag()).map_err(failed)?;
    let greeted = talk.say(&Hello::ours()).and_then(|()| talk.hear(Some(TIMEOUT)));
    match greeted.map_err(|silence| silent(address, &silence, &context.stop))? {
        Answer::Done(_) => {
            hangup::say(format_args!("sending to {address} until its table is complete"));
        }
        Answer::Failed(why) => return Err(Failure::Failed(why)),
    }
    let processors = sched_getaffinity(None).map_err(|errno| failed(errno.into()))?;
    let (host, pattern) = (address.ip(), Pattern::new());
    let mut senders = Senders { host, pattern, processors, all: HashMap::new() };
    loop {
        let order = talk.hear(None).map_err(|silence| silent(address, &silence, &context.stop))?;
        let answer = senders.carry_out(order).map_or_else(Answer::Failed, Answer::Done);
        talk.say(&answer).map_err(|silence| silent(address, &silence, &context.stop))?;
        if order == Order::Leave {
            return Ok(());
        }
    }
}

/// The address to connect to; `target` is a name, or an IPv4 or IPv6 address.
fn address(target: &str) -> Result<SocketAddr, String> {
    if let Ok(address) = target.parse() {
        return Ok(address);
    }
    if let Ok(ip) = target.parse::<IpAddr>() {
        return Ok((ip, DEFAULT_PORT).into());
    }
    let found = match target.contains(':') {
        true => target.to_socket_addrs(),
        false => (target, DEFAULT_PORT).to_socket_addrs(),
    };
    let found = found.map(|mut all| all.next());
    found.ok().flatten().ok_or_else(|| {
        format!("--send-to {target}: no such host: an address or a name, and perhaps :PORT")
    })
}

/// The failure that tells why the talk ended early.
fn silent(address: SocketAddr, silence: &Silence, stop: &Stop) -> Failure {
    match silence {
        Silence::Stopped => stop.failure(),
        Silence::Gone => Failure::Failed(format!(
            "{address} has ended the talk: its bench ended before its table was complete, has another \
             sender already, or does not let this host in (--from)"
        )),
        other => Failure::Failed(format!("{address}: {other}")),
    }
}

impl Senders {
    fn carry_out(&mut self, order: Order) -> Result<u64, String> {
        match order {
            Order::Connect { connection, port } => {
                let to = SocketAddr::new(self.host, port);
                let line = |error: io::Error| {
                    format!("the sending host cannot connect to port {port}: {error}")
                };
                let near = match TcpStream::connect_timeout(&to, FOR_A_CONNECTION) {
                    Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return Ok(0),
                    near => near.map_err(line)?,
                };
                let sender = Sender::new(near, Arc::clone(&self.pattern), self.processors);
                self.all.insert(connection, sender.map_err(line)?);
                Ok(1)
            }
            Order::Begin { connection } => {
                self.sender(connection)?.begin();
                Ok(0)
            }
            Order::Rest { connection } => Ok(self.sender(connection)?.rest()),
            Order::Acknowledged { connection } => self.sender(connection)?.acknowledged(),
            Order::Ran { connection } => Ok(self.ran_and_waited(connection)?.0.as_nanos() as u64),
            Order::Waited { connection } => {
                Ok(self.ran_and_waited(connection)?.1.as_nanos() as u64)
            }
            Order::End { connection } => {
                self.all.remove(&connection);
                Ok(0)
            }
            Order::Leave => Ok(0),
        }
    }

    fn ran_and_waited(&self, connection: u64) -> Result<(Duration, Duration), String> {
        Ok(ran_and_waited(&self.sender(connection)?.task()))
    }

    fn sender(&self, connection: u64) -> Result<&Sender, String> {
        let sender = self.all.get(&connection).ok_or("the sending host has no such connection")?;
        sender.failure().map_or(Ok(sender), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_addresses_or_names_and_ports() {
        for (target, found) in [
            ("10.0.0.2", "10.0.0.2:4000"),
            ("10.0.0.2:5000", "10.0.0.2:5000"),
            ("fd00::2", "[fd00::2]:4000"),
            ("[fd00::2]:5000", "[fd00::2]:5000"),
        ] {
            assert_eq!(address(target).unwrap().to_string(), found);
        }
        assert!(address("localhost:5000").unwrap().ip().is_loopback());
        for wrong in ["no such host", "localhost:x", ""] {
            assert!(address(wrong).unwrap_err().contains("no such host"), "{wrong}");
        }
    }
}
