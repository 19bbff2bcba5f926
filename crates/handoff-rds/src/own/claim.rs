//! An address's only engine.
//!
//! A second one would share the first one's address, which is all that peers know it by: they would take it for a
//! restart, give up what they had sent to the first, and read the connections of both as one host's.
//!
//! So an engine claims its address by the abstract name of a Unix socket. Like the address, that name is the network
//! namespace's. It is free again as soon as its process has ended, however that ends: no ring uses the socket, while one
//! may keep the TCP port for longer. And it holds for engines on different ports, and where the kernel's RDS has the port.
//!
//! Any local process can take the name, and thereby keep an engine from the address. It needs no name for that: it can
//! connect to peers from the address, which they take for this engine as well.

use std::fmt;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::process;
use std::thread;
use std::time::{Duration, Instant};

use handoff_sys::unix;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};

use crate::error::{Error, Result};

/// How long a process that is being ended may keep its claim: the kernel frees its memory before.
const ENDING: Duration = Duration::from_secs(2);
/// Between looks whether it has ended.
const LOOK: Duration = Duration::from_millis(20);
/// Questions that the socket takes, as many as the system allows. Nobody answers them, and each stays until the engine
/// ends.
const QUESTIONS: i32 = i32::MAX;

/// While it exists, no other engine in the network namespace gets the address.
pub(super) struct Claim {
    _socket: OwnedFd,
}

impl Claim {
    /// Claims it; waits a moment if another process has it, which may be about to end.
    pub(super) fn of(address: IpAddr) -> Result<Self> {
        let begin = Instant::now();
        let refused = |holder: Holder| {
            let address = address.to_canonical();
            Err(Error::AddressInUse { address, holder: holder.to_string() })
        };
        if let Some(claim) = Self::take(address)? {
            return Ok(claim);
        }
        let holder = Holder::of(address);
        if holder.is_this_process() {
            return refused(holder);
        }
        while begin.elapsed() < ENDING {
            thread::sleep(LOOK);
            if let Some(claim) = Self::take(address)? {
                return Ok(claim);
            }
        }
        refused(Holder::of(address))
    }

    /// `None` if somebody has it.
    fn take(address: IpAddr) -> Result<Option<Self>> {
        let taken = open().and_then(|socket| {
            bind(&socket, &name(address)?)?;
            listen(&socket, QUESTIONS)?;
            Ok(socket)
        });
        match taken {
            Ok(socket) => Ok(Some(Self { _socket: socket })),
            Err(Errno::ADDRINUSE) => Ok(None),
            Err(error) => {
                Err(Error::io("claim the engine's address by a Unix socket")(error.into()))
            }
        }
    }
}

fn open() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

fn name(address: IpAddr) -> rustix::io::Result<SocketAddrUnix> {
    SocketAddrUnix::new_abstract_name(format!("handoff-rds {}", address.to_canonical()).as_bytes())
}

/// The process with the claim, as far as the kernel tells.
struct Holder(io::Result<unix::Credentials>);

impl Holder {
    /// By the credentials that its socket got when it listened.
    fn of(address: IpAddr) -> Self {
        let asked = open().and_then(|socket| {
            connect(&socket, &name(address)?)?;
            Ok(socket)
        });
        Self(asked.map_err(io::Error::from).and_then(|socket| unix::peer(socket.as_fd())))
    }

    fn is_this_process(&self) -> bool {
        self.0.as_ref().is_ok_and(|holder| holder.pid as u32 == process::id())
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Ok(_) if self.is_this_process() => f.write_str("this process"),
            Ok(unix::Credentials { pid: 0, uid, .. }) => {
                write!(f, "a process of user {uid} in another PID namespace")
            }
            Ok(unix::Credentials { pid, .. }) => {
                write!(f, "process {pid}")?;
                match fs::read_to_string(format!("/proc/{pid}/comm")) {
                    Ok(command) => write!(f, " ({})", command.trim_end().escape_debug()),
                    Err(_) => Ok(()),
                }
            }
            Err(error) => {
                write!(f, "a process that cannot be asked for ({error}; `ss -xlp` may tell)")
            }
        }
    }
}
