//! Connections: finding the peer, connecting to it, waiting for it.
//!
//! Contracts:
//! - every wait ends with the time-out or with the stop, whichever is first;
//! - all addresses of a name are tried, in the order that the system gives, and the error names each.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::time::Duration;

use handoff::Driver;
use handoff_command::allow_list::{AllowArgs, AllowList};
use handoff_command::descriptors::BACKLOG;
use handoff_command::failure::Failed as _;
use handoff_command::{Failure, service};
use ipnet::IpNet;
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

use crate::address::Endpoint;
use crate::deadline::Deadline;

/// A host that is gone is noticed after this long without a sign of life, and then five probes.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Addresses, as every command that reaches peers over TCP takes them.
#[derive(Debug, clap::Args)]
pub struct Addresses {
    /// Who may connect.
    #[command(flatten)]
    pub allowed: AllowArgs,

    /// Use IPv4 only
    #[arg(short = '4', conflicts_with = "v6")]
    pub v4: bool,

    /// Use IPv6 only
    #[arg(short = '6')]
    pub v6: bool,
}

impl Addresses {
    /// The family that the options leave.
    pub fn family(&self) -> Family {
        match (self.v4, self.v6) {
            (true, _) => Family::V4,
            (_, true) => Family::V6,
            _ => Family::Any,
        }
    }

    /// The networks that may connect; none given means all.
    pub fn from(&self) -> &[IpNet] {
        &self.allowed.from
    }
}

/// Which addresses may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Both.
    Any,
    /// IPv4 only.
    V4,
    /// IPv6 only.
    V6,
}

impl Family {
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
pub fn resolve(
    endpoint: &Endpoint,
    family: Family,
    deadline: Deadline<'_>,
) -> Result<Vec<SocketAddr>, Failure> {
    let literal = endpoint.host.parse::<IpAddr>().ok();
    if let Some(address) = literal.filter(|address| !family.allows(*address)) {
        return Err(Failure::usage(format!(
            "{address} is no {} address, and only those are allowed (-4, -6)",
            family.name()
        )));
    }
    if let Some(IpAddr::V6(address)) = literal.filter(|address| is_link_local(*address)) {
        return Err(Failure::usage(format!(
            "{address} is an address of every link: name the interface, as in [{address}%eth0]"
        )));
    }
    let asked = endpoint.clone();
    match deadline.detached(move || look_up(&asked, family))? {
        Some(answer) => answer.map_err(Failure::failed),
        None => Err(Failure::failed(format!(
            "finding the address of \"{}\" took too long (--connect-timeout)",
            endpoint.host
        ))),
    }
}

/// Asks the system for the addresses of a name, which may take long.
///
/// # Errors
///
/// An unknown name, one without an address of the family.
pub fn look_up(endpoint: &Endpoint, family: Family) -> Result<Vec<SocketAddr>, String> {
    let Endpoint { host, port } = endpoint;
    let answer = (host.as_str(), *port).to_socket_addrs();
    let mut all: Vec<_> = answer
        .map_err(|error| format!("unknown host \"{host}\": {}", resolver_words(&error)))?
        .collect();
    all.retain(|address| family.allows(address.ip()));
    if all.is_empty() {
        return Err(format!("\"{host}\" has no {} address", family.name()));
    }
    Ok(all)
}

/// Whether it means a host only together with an interface.
fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
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
pub fn connect(
    driver: &Driver,
    endpoint: &Endpoint,
    family: Family,
    streams: u16,
    deadline: Deadline<'_>,
) -> Result<Vec<handoff::Socket>, Failure> {
    let addresses = resolve(endpoint, family, deadline)?;
    let mut errors = Vec::new();
    for address in addresses {
        let reach = || deadline.block_on(driver, |left| connect_to(driver, address, left));
        match reach()? {
            Ok(first) => {
                let mut all = vec![first];
                for _ in 1..streams {
                    all.push(reach()?.map_err(|error| {
                        let error = why(&error);
                        Failure::failed(format!("connecting once more to {address}: {error}"))
                    })?);
                }
                return Ok(all);
            }
            Err(error) => errors.push(format!("{address}: {}", why(&error))),
        }
    }
    Err(Failure::failed(format!("can't connect to tcp://{endpoint}: {}", errors.join("; "))))
}

/// Connects to one address.
///
/// # Errors
///
/// Why there is no connection, the time-out among that; [`why`] has the words.
pub async fn connect_to(
    driver: &Driver,
    address: SocketAddr,
    time: Duration,
) -> handoff::Result<handoff::Socket> {
    let connecting = driver.connect(address)?;
    let socket = driver.timeout(time, connecting).await??;
    prepare(SockRef::from(&socket))
        .map_err(|source| handoff::Error::Io { action: "preparing a connection", source })?;
    Ok(socket)
}

/// Why an address can't be reached.
pub fn why(error: &handoff::Error) -> String {
    match error {
        handoff::Error::Io { source, .. } => source.to_string(),
        handoff::Error::TimedOut { .. } => "no answer in time (--connect-timeout)".to_owned(),
        error => error.to_string(),
    }
}

/// Settings of every connection.
fn prepare(socket: SockRef<'_>) -> io::Result<()> {
    // Headers go out with the payload that follows; what is left to wait for is nothing.
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_keepalive(
        &TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / 5).with_retries(5),
    )
}

/// A socket that waits for the peer.
pub struct Listener {
    socket: Socket,
    allow_list: AllowList,
    /// Whether systemd has opened it.
    passed: bool,
}

impl Listener {
    /// Listens, for those of these addresses, or all where none are given. If systemd has opened a socket
    /// for this process, that is the one, whatever the endpoint.
    ///
    /// # Errors
    ///
    /// An address that is not this machine's, a port in use, a name that is unknown, a socket that does not
    /// listen.
    pub fn bind(
        endpoint: &Endpoint,
        family: Family,
        from: &[IpNet],
        deadline: Deadline<'_>,
    ) -> Result<Self, Failure> {
        if let Some(passed) = service::socket()? {
            return Self::passed(passed.into(), from);
        }
        Self::listen_at(endpoint, family, from, deadline)
    }

    /// As [`bind`](Self::bind), at the endpoint in any case.
    pub(crate) fn listen_at(
        endpoint: &Endpoint,
        family: Family,
        from: &[IpNet],
        deadline: Deadline<'_>,
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
            resolve(endpoint, family, deadline)?
        };
        let mut errors = Vec::new();
        for address in addresses {
            match Self::listen(address, family, false) {
                Ok(socket) => {
                    return Ok(Self { socket, allow_list: AllowList::new(from), passed: false });
                }
                Err(error) => errors.push(format!("{address}: {error}")),
            }
        }
        Err(Failure::failed(format!("can't listen on {endpoint}: {}", errors.join("; "))))
    }

    pub(crate) fn passed(socket: Socket, from: &[IpNet]) -> Result<Self, Failure> {
        let listens = socket.is_listener().unwrap_or_default()
            && socket.local_addr().is_ok_and(|address| address.as_socket().is_some());
        if !listens {
            return Err(Failure::usage(
                "a socket that systemd passes does not listen for TCP: ListenStream= in its .socket unit takes a \
                 port or ADDR:PORT",
            ));
        }
        prepare(SockRef::from(&socket))
            .and_then(|()| socket.set_nonblocking(true))
            .failed("preparing the socket that systemd passes")?;
        Ok(Self { socket, allow_list: AllowList::new(from), passed: true })
    }

    /// The same for a later wait, if systemd has passed the socket; it stays open meanwhile.
    ///
    /// # Errors
    ///
    /// When there is no descriptor for it.
    pub fn passed_again(&self) -> Result<Option<Self>, Failure> {
        self.passed.then(|| self.beside()).transpose()
    }

    /// Listens once more at the same address, for another thread: the kernel spreads connections over both. A
    /// socket of systemd's is shared instead, as only its user may listen there.
    ///
    /// # Errors
    ///
    /// When there is no descriptor for it.
    pub fn beside(&self) -> Result<Self, Failure> {
        if self.passed {
            let socket =
                self.socket.try_clone().failed("sharing the socket that systemd passes")?;
            return Ok(Self { socket, allow_list: self.allow_list.clone(), passed: true });
        }
        let address = self.address()?;
        let only_v6 = address.is_ipv6() && self.socket.only_v6().unwrap_or_default();
        let family = if only_v6 { Family::V6 } else { Family::Any };
        // The first was bound without, so that a port in use is one.
        let socket =
            self.socket.set_reuse_port(true).and_then(|()| Self::listen(address, family, true));
        let socket = socket.map_err(|error| {
            Failure::failed(format!("listening on {address} with several threads: {error}"))
        })?;
        Ok(Self { socket, allow_list: self.allow_list.clone(), passed: false })
    }

    fn listen(address: SocketAddr, family: Family, shared: bool) -> io::Result<Socket> {
        let kind = Type::STREAM.nonblocking();
        let socket = Socket::new(Domain::for_address(address), kind, Some(Protocol::TCP))?;
        // Accepted sockets inherit these.
        prepare(SockRef::from(&socket))?;
        if address.is_ipv6() {
            socket.set_only_v6(family == Family::V6 || !address.ip().is_unspecified())?;
        }
        socket.set_reuse_address(true)?;
        socket.set_reuse_port(shared)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        Ok(socket)
    }

    /// Has a driver accept.
    ///
    /// # Errors
    ///
    /// When the driver has no room for that.
    pub fn on(self, driver: &Driver) -> Result<(handoff::Listener, AllowList), Failure> {
        let listener = driver.listen(self.socket.into()).map_err(Failure::failed)?;
        Ok((listener, self.allow_list))
    }

    /// The address, with the port that a listener on port 0 was given.
    ///
    /// # Errors
    ///
    /// None that a bound socket gives.
    pub fn address(&self) -> Result<SocketAddr, Failure> {
        self.socket
            .local_addr()
            .map(|address| address.as_socket())
            .and_then(|address| address.ok_or_else(|| io::ErrorKind::Unsupported.into()))
            .map_err(|error| Failure::failed(format!("finding the address listened on: {error}")))
    }

    /// Takes one connection, and listens no more.
    ///
    /// # Errors
    ///
    /// The time-out, the stop, what accept(2) fails with.
    pub fn accept_one(
        self,
        driver: &Driver,
        deadline: Deadline<'_>,
    ) -> Result<handoff::Socket, Failure> {
        let (mut listener, allow_list) = self.on(driver)?;
        let accepted = deadline.block_on(driver, async |left| {
            let accepting = async {
                loop {
                    let (socket, peer) = listener.accept().await?;
                    if allow_list.lets_in(peer) {
                        return Ok(socket);
                    }
                }
            };
            driver.timeout(left, accepting).await.and_then(|accepted| accepted)
        });
        match accepted? {
            Ok(socket) => Ok(socket),
            Err(handoff::Error::TimedOut { .. }) => {
                Err(Failure::failed("nobody connected in time (--connect-timeout)"))
            }
            Err(error) => Err(Failure::failed(error)),
        }
    }
}
