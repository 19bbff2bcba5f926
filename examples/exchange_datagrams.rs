//! User memory to reliable datagrams: a message is lent to the kernel's RDS, comes back by its cookie once
//! the peer has it, and gets an answer.
//!
//! `exchange-datagrams ADDRESS:PORT` answers; `exchange-datagrams ADDRESS:PORT PEER:PORT` asks.

use std::error::Error;
use std::time::Duration;

use handoff_rds::kernel::{Mode, Socket};

const TIMEOUT: Duration = Duration::from_secs(10);
const COOKIE: u32 = 42;
const BYTES: usize = 32 << 10;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let socket: Socket<Vec<u8>> = match arguments.first() {
        Some(address) => Socket::bind(address.parse()?)?,
        None => return Err("usage: exchange-datagrams ADDRESS:PORT [PEER:PORT]".into()),
    };
    println!("bound to {}", socket.local_addr());
    let asked = arguments.get(1).map(|peer| peer.parse()).transpose()?;
    if let Some(peer) = asked {
        socket.send(peer, vec![7; BYTES], COOKIE, Mode::Lend).map_err(|refused| refused.error)?;
    }
    let (mut received, mut returned) = (None, Vec::new());
    while received.is_none() || (asked.is_some() && returned.is_empty()) {
        if !socket.wait_readable(TIMEOUT)? {
            return Err("nothing came".into());
        }
        received = received.or(socket.receive()?);
        socket.completions(1, &mut returned)?;
    }
    let message = received.ok_or("nothing came")?;
    println!("{} bytes from {}", message.payload.len(), message.from);
    match returned.first() {
        Some(completion) => println!("the message with cookie {} is back", completion.cookie),
        None => {
            socket
                .send(message.from, message.payload, 0, Mode::Copy)
                .map_err(|refused| refused.error)?;
            if socket.close(TIMEOUT)?.unacknowledged > 0 {
                return Err("the answer did not reach the peer".into());
            }
        }
    }
    Ok(())
}
