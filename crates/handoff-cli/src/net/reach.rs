//! Connections: finding the peer, connecting to it, waiting for it.
//!
//! Contracts:
//! - every wait ends with the time-out or with the stop, whichever is first;
//! - all addresses of a name are tried, in the order that the system gives, and the error names each.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use ipnet::IpNet;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, acceptfrom_with};
use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};

use super::address::Endpoint;
use super::patience::Patience;
use super::visitors::Visitors;
use crate::Failure;

/// A host that is gone is noticed after this long without a sign of life, and then five probes.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Which addresses may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    Any,
    V4,
    V6,
}

impl Family {
    /// As the options -4 and -6 say.
    pub(crate) fn of(v4: bool, v6: bool) -> Self {
        match (v4, v6) {
            (true, _) => Self::V4,
            (_, true) => Self::V6,
            _ => Self::Any,
        }
    }

    fn allows(self, address: IpAddr) -> bool {
        match self {
            Self::Any => true,
            Self::V4 => address.is_ipv4(),
            Self::V6 => address.is_ipv6(),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Any => "",
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }
}

/// Finds the addresses of a name.
///
/// # Errors
///
/// An unknown name, one without an address of the family, the time-out, the stop.
pub(crate) fn resolve(
    endpoint: &Endpoint,
    family: Family,
    patience: Patience<'_>,
) -> Result<Vec<SocketAddr>, Failure> {
    let literal = endpoint.host.parse::<IpAddr>().ok();
    if let Some(address) = literal.filter(|address| !family.allows(*address)) {
        return Err(Failure::usage(format!(
            "{address} is no {} address, and only those are allowed (-4, -6)",
            family.name()
        )));
    }
    let asked = (endpoint.host.clone(), endpoint.port);
    let asking = move || asked.to_socket_addrs().map(Iterator::collect::<Vec<_>>);
    let Some(answer) = patience.detached(asking)? else {
        return Err(Failure::failed(format!(
            "finding the address of \"{}\" took too long (--connect-timeout)",
            endpoint.host
        )));
    };
    let mut all = answer.map_err(|error| {
        Failure::failed(format!("unknown host \"{}\": {}", endpoint.host, resolver_words(&error)))
    })?;
    all.retain(|address| family.allows(address.ip()));
    if all.is_empty() {
        return Err(Failure::failed(format!(
            "\"{}\" has no {} address",
            endpoint.host,
            family.name()
        )));
    }
    Ok(all)
}

/// The resolver's message without the name of its call.
fn resolver_words(error: &io::Error) -> String {
    let text = error.to_string();
    text.strip_prefix("failed to lookup address information: ").unwrap_or(&text).to_owned()
}

/// Connects to the peer, `streams` times to the address that answered first.
///
/// # Errors
///
/// When no address answers in time.
pub(crate) fn connect(
    endpoint: &Endpoint,
    family: Family,
    streams: u16,
    patience: Patience<'_>,
) -> Result<Vec<TcpStream>, Failure> {
    let addresses = resolve(endpoint, family, patience)?;
    let mut errors = Vec::new();
    for address in addresses {
        match connect_to(address, patience)? {
            Ok(first) => {
                let mut all = vec![first];
                for _ in 1..streams {
                    let next = connect_to(address, patience)?.map_err(|error| {
                        Failure::failed(format!("connecting once more to {address}: {error}"))
                    })?;
                    all.push(next);
                }
                return Ok(all);
            }
            Err(error) => errors.push(format!("{address}: {error}")),
        }
    }
    Err(Failure::failed(format!("can't connect to tcp://{endpoint}: {}", errors.join("; "))))
}

fn connect_to(
    address: SocketAddr,
    patience: Patience<'_>,
) -> Result<io::Result<TcpStream>, Failure> {
    let socket = match begin(address) {
        Ok(socket) => socket,
        Err(error) => return Ok(Err(error)),
    };
    if !patience.wait(&socket, PollFlags::OUT)? {
        let error =
            io::Error::new(io::ErrorKind::TimedOut, "no answer in time (--connect-timeout)");
        return Ok(Err(error));
    }
    Ok(finish(socket))
}

/// Begins to connect; what comes of it is there when the socket can be written to.
///
/// # Errors
///
/// What is known to fail at once.
pub(crate) fn begin(address: SocketAddr) -> io::Result<Socket> {
    let kind = Type::STREAM.nonblocking();
    let socket = Socket::new(Domain::for_address(address), kind, Some(Protocol::TCP))?;
    match socket.connect(&address.into()) {
        Err(error) if error.raw_os_error() != Some(Errno::INPROGRESS.raw_os_error()) => Err(error),
        _ => Ok(socket),
    }
}

/// Whether it is known already what came of a connection that was begun, as mostly on the same machine.
pub(crate) fn is_settled(socket: &Socket) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(socket, PollFlags::OUT)], Some(&now)).is_ok_and(|ready| ready > 0)
}

/// The connection that was begun.
///
/// # Errors
///
/// Why there is none.
pub(crate) fn finish(socket: Socket) -> io::Result<TcpStream> {
    match socket.take_error()? {
        Some(error) => Err(error),
        None => prepare(&socket).map(|()| socket.into()),
    }
}

/// Settings of every connection.
fn prepare(socket: &Socket) -> io::Result<()> {
    // Headers go out with the payload that follows; what is left to wait for is nothing.
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_keepalive(
        &TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / 5).with_retries(5),
    )
}

/// A socket that waits for the peer.
pub(crate) struct Listener {
    socket: Socket,
    pub(crate) visitors: Visitors,
}

impl Listener {
    /// Listens, for those of these addresses, or all where none are given.
    ///
    /// # Errors
    ///
    /// An address that is not this machine's, a port in use, a name that is unknown.
    pub(crate) fn bind(
        endpoint: &Endpoint,
        family: Family,
        from: &[IpNet],
        patience: Patience<'_>,
    ) -> Result<Self, Failure> {
        let addresses = if endpoint.host.is_empty() {
            let v4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, endpoint.port));
            let v6 = SocketAddr::from((Ipv6Addr::UNSPECIFIED, endpoint.port));
            match family {
                // One socket serves both, where the machine has IPv6.
                Family::Any => vec![v6, v4],
                Family::V4 => vec![v4],
                Family::V6 => vec![v6],
            }
        } else {
            resolve(endpoint, family, patience)?
        };
        let mut errors = Vec::new();
        for address in addresses {
            match Self::listen(address, family) {
                Ok(socket) => return Ok(Self { socket, visitors: Visitors::new(from) }),
                Err(error) => errors.push(format!("{address}: {error}")),
            }
        }
        Err(Failure::failed(format!(
            "can't listen on tcp-listen://{endpoint}: {}",
            errors.join("; ")
        )))
    }

    fn listen(address: SocketAddr, family: Family) -> io::Result<Socket> {
        let kind = Type::STREAM.nonblocking();
        let socket = Socket::new(Domain::for_address(address), kind, Some(Protocol::TCP))?;
        // What it accepts has these from it.
        prepare(&socket)?;
        if address.is_ipv6() {
            socket.set_only_v6(family == Family::V6 || !address.ip().is_unspecified())?;
        }
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        socket.listen(128)?;
        Ok(socket)
    }

    /// The address, with the port that a listener on port 0 was given.
    ///
    /// # Errors
    ///
    /// None that a bound socket gives.
    pub(crate) fn address(&self) -> Result<SocketAddr, Failure> {
        self.socket
            .local_addr()
            .map(|address| address.as_socket())
            .and_then(|address| address.ok_or_else(|| io::ErrorKind::Unsupported.into()))
            .map_err(|error| Failure::failed(format!("finding the address listened on: {error}")))
    }

    /// Takes the next connection.
    ///
    /// # Errors
    ///
    /// The time-out, the stop.
    pub(crate) fn accept(
        &self,
        patience: Patience<'_>,
    ) -> Result<(TcpStream, SocketAddr), Failure> {
        loop {
            if !patience.wait(&self.socket, PollFlags::IN)? {
                return Err(Failure::failed("nobody connected in time (--connect-timeout)"));
            }
            match self.try_accept() {
                Ok(Some(accepted)) => return Ok(accepted),
                Ok(None) => {}
                Err(error) => {
                    return Err(Failure::failed(format!("accepting a connection: {error}")));
                }
            }
        }
    }

    /// Takes a connection that is there, and whose address may connect.
    ///
    /// # Errors
    ///
    /// What accept(2) fails with, other than for a connection that is gone by then.
    pub(crate) fn try_accept(&self) -> io::Result<Option<(TcpStream, SocketAddr)>> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        match acceptfrom_with(&self.socket, flags) {
            Ok((socket, peer)) => {
                let peer: Option<SocketAddr> = peer.and_then(|peer| peer.try_into().ok());
                let peer = peer.unwrap_or_else(|| (Ipv4Addr::UNSPECIFIED, 0).into());
                if !self.visitors.may_come(peer.ip()) {
                    self.visitors.turned_away(peer, "it is none of those that --from lets in");
                    return Ok(None);
                }
                Ok(Some((socket.into(), peer)))
            }
            // The peer gave up between the two calls, or another process was quicker.
            Err(Errno::WOULDBLOCK | Errno::CONNABORTED) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The descriptor that can be read when there is a connection.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
