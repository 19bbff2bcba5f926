//! Several places to listen at, of TCP and of Unix sockets, and a target of either.
//!
//! Contracts:
//! - if systemd has opened sockets for this process, those are listened on, all of them, whatever else was named;
//! - threads share a Unix socket, and one of systemd's; over TCP each has a socket of its own;
//! - the file of a Unix socket goes when the command ends; one of systemd's stays;
//! - `--from` is about addresses: who may open the file of a Unix socket is let in.

use std::ffi::OsStr;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::time::Duration;

use handoff::{Client, Driver, RingUse, UnixAddress, UnixKind, UnixListener};
use handoff_command::allow_list::{self, AllowList};
use handoff_command::failure::Failed as _;
use handoff_command::{Failure, service};
use ipnet::IpNet;
use socket2::{Domain, SockRef, Type};

use crate::address::{Address, AddressError, Endpoint};
use crate::deadline::Deadline;
use crate::reach::{self, Family, Listener};

/// Where to listen, as written on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// An address and a port.
    Tcp(Endpoint),
    /// `unix:/path` or `unix:@name`.
    Unix(UnixAddress),
}

/// The name of a Unix socket, if the text is one.
fn unix_name(text: &OsStr) -> Option<Result<UnixAddress, String>> {
    let name = text.as_bytes().strip_prefix(b"unix:")?;
    let made = match name.strip_prefix(b"@") {
        Some(name) => UnixAddress::abstract_name(name),
        None => UnixAddress::path(OsStr::from_bytes(name)),
    };
    Some(made.map_err(|error| format!("\"{}\": {error}", text.to_string_lossy())))
}

impl Place {
    /// Takes `unix:...` apart, and everything else by `tcp`.
    ///
    /// # Errors
    ///
    /// What makes the text none.
    pub fn parse(
        text: &OsStr,
        tcp: impl FnOnce(&OsStr) -> Result<Endpoint, String>,
    ) -> Result<Self, String> {
        match unix_name(text) {
            Some(name) => name.map(Self::Unix),
            None => tcp(text).map(Self::Tcp),
        }
    }

    /// As [`parse`](Self::parse), with `tcp-listen://addr:port` for TCP.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn by_scheme(text: &OsStr) -> Result<Self, String> {
        Self::parse(text, |text| match Address::parse(text).map_err(|AddressError(why)| why)? {
            Address::Listen(endpoint) => Ok(endpoint),
            other => Err(format!(
                "LISTEN is {other}; it must be tcp-listen://[addr]:port, unix:/path or unix:@name"
            )),
        })
    }
}

/// Where to connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// An address.
    Tcp(SocketAddr),
    /// The name of a Unix socket.
    Unix(UnixAddress),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(name) => name.fmt(f),
        }
    }
}

impl Target {
    /// Connects within a time.
    ///
    /// # Errors
    ///
    /// As of [`reach::connect_to`].
    pub async fn connect(
        &self,
        driver: &Driver,
        time: Duration,
    ) -> handoff::Result<handoff::Socket> {
        match self {
            Self::Tcp(address) => reach::connect_to(driver, *address, time).await,
            Self::Unix(name) => {
                driver.timeout(time, driver.connect_unix(name, UnixKind::Stream)?).await?
            }
        }
    }
}

/// A target as written on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Goal {
    /// A host and a port.
    Tcp(Endpoint),
    /// `unix:/path` or `unix:@name`.
    Unix(UnixAddress),
}

impl Goal {
    /// Takes `tcp://host:port` or the name of a Unix socket apart.
    ///
    /// # Errors
    ///
    /// A text that is neither.
    pub fn parse(text: &OsStr) -> Result<Self, Failure> {
        if let Some(name) = unix_name(text) {
            return name.map(Self::Unix).map_err(Failure::usage);
        }
        match Address::parse(text).map_err(Failure::usage)? {
            Address::Connect(endpoint) => Ok(Self::Tcp(endpoint)),
            other => Err(Failure::usage(format!(
                "TARGET is {other}; it must be tcp://host:port, unix:/path or unix:@name"
            ))),
        }
    }

    /// Its addresses now.
    ///
    /// # Errors
    ///
    /// As of [`reach::resolve`].
    pub fn find(&self, family: Family, deadline: Deadline<'_>) -> Result<Vec<Target>, Failure> {
        match self {
            Self::Tcp(endpoint) => {
                let found = reach::resolve(endpoint, family, deadline)?;
                Ok(found.into_iter().map(Target::Tcp).collect())
            }
            Self::Unix(name) => Ok(vec![Target::Unix(name.clone())]),
        }
    }
}

/// What a thread listens on.
pub struct Listening {
    tcp: Vec<Listener>,
    unix: Vec<OwnedFd>,
    allow_list: AllowList,
}

/// The files of Unix sockets, which go with this. It belongs to the command, not to a thread that accepts.
pub struct SocketFiles {
    _listeners: Vec<UnixListener>,
}

impl Listening {
    /// Listens at all places, or on what systemd passes.
    ///
    /// # Errors
    ///
    /// As of [`Listener::bind`]; a name that somebody has.
    pub fn bind(
        places: &[Place],
        family: Family,
        from: &[IpNet],
        deadline: Deadline<'_>,
    ) -> Result<(Self, SocketFiles), Failure> {
        let passed = service::sockets()?;
        if passed.is_empty() {
            return Self::listen_at(places, family, from, deadline);
        }
        let (mut tcp, mut unix) = (Vec::new(), Vec::new());
        for socket in passed {
            match is_unix(&socket) {
                true => unix.push(socket),
                false => tcp.push(Listener::passed(socket.into(), from)?),
            }
        }
        let allow_list = AllowList::new(from);
        Ok((Self { tcp, unix, allow_list }, SocketFiles { _listeners: Vec::new() }))
    }

    /// As [`bind`](Self::bind), at these places in any case.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn listen_at(
        places: &[Place],
        family: Family,
        from: &[IpNet],
        deadline: Deadline<'_>,
    ) -> Result<(Self, SocketFiles), Failure> {
        let (mut tcp, mut unix, mut files) = (Vec::new(), Vec::new(), Vec::new());
        let allow_list = AllowList::new(from);
        let mut binder = None;
        for place in places {
            match place {
                Place::Tcp(endpoint) => {
                    tcp.push(Listener::listen_at(endpoint, family, from, deadline)?);
                }
                Place::Unix(name) => {
                    if binder.is_none() {
                        // It accepts nothing; threads do that by their own drivers.
                        let driver = Driver::builder().ring(RingUse::Avoid).build();
                        binder = Some(driver.map_err(Failure::not_possible)?);
                    }
                    let driver = binder.as_ref().expect("it was just made");
                    let listener = driver.listen_unix(name, UnixKind::Stream).map_err(|error| {
                        Failure::failed(format!("can't listen on {name}: {error}"))
                    })?;
                    unix.push(duplicate(&listener)?);
                    files.push(listener);
                }
            }
        }
        Ok((Self { tcp, unix, allow_list }, SocketFiles { _listeners: files }))
    }

    /// The same places, for another thread.
    ///
    /// # Errors
    ///
    /// When there is no descriptor for it.
    pub fn beside(&self) -> Result<Self, Failure> {
        Ok(Self {
            tcp: self.tcp.iter().map(Listener::beside).collect::<Result<_, _>>()?,
            unix: self.unix.iter().map(duplicate).collect::<Result<_, _>>()?,
            allow_list: self.allow_list.clone(),
        })
    }

    /// Has a driver accept.
    ///
    /// # Errors
    ///
    /// When the driver has no room for that.
    pub fn on(self, driver: &Driver) -> Result<(handoff::Listeners, AllowList), Failure> {
        let mut all = handoff::Listeners::default();
        for listener in self.tcp {
            all.add(listener.on(driver)?.0);
        }
        for listener in self.unix {
            all.add(driver.listen_unix_on(listener).map_err(Failure::failed)?);
        }
        Ok((all, self.allow_list))
    }

    /// The addresses of TCP, with the ports that listeners on port 0 were given.
    ///
    /// # Errors
    ///
    /// None that a bound socket gives.
    pub fn addresses(&self) -> Result<Vec<SocketAddr>, Failure> {
        self.tcp.iter().map(Listener::address).collect()
    }

    /// Says at which places it listens, such as `listening on tcp://127.0.0.1:80 and unix:/run/app.sock`.
    ///
    /// # Errors
    ///
    /// None that a bound socket gives.
    pub fn said(&self, scheme: &str) -> Result<String, Failure> {
        let mut places = Vec::new();
        for address in self.addresses()? {
            places.push(format!("{scheme}://{address}"));
        }
        for listener in &self.unix {
            let name = UnixAddress::local(listener);
            places.push(name.failed("finding the name listened at")?.to_string());
        }
        Ok(format!("listening on {}", places.join(" and ")))
    }

    /// Says that anyone may come, where that is so.
    ///
    /// # Errors
    ///
    /// None that a bound socket gives.
    pub fn warn(&self, from: &[IpNet], what: &str) -> Result<(), Failure> {
        self.addresses()?.into_iter().for_each(|address| allow_list::warn(address, from, what));
        Ok(())
    }

    /// The same, with what to type instead.
    ///
    /// # Errors
    ///
    /// None that a bound socket gives.
    pub fn warn_with(&self, from: &[IpNet], what: &str, instead: &str) -> Result<(), Failure> {
        for address in self.addresses()? {
            allow_list::warn_with(address, from, what, instead);
        }
        Ok(())
    }
}

/// Whether a client may come: by Unix sockets all who can connect may.
pub fn lets_in(allow_list: &AllowList, client: Client) -> bool {
    client.address().is_none_or(|address| allow_list.lets_in(address))
}

fn is_unix(socket: &OwnedFd) -> bool {
    let socket = SockRef::from(socket);
    socket.domain().is_ok_and(|domain| domain == Domain::UNIX)
        && socket.r#type().is_ok_and(|kind| kind == Type::STREAM)
        && socket.is_listener().unwrap_or_default()
}

fn duplicate(listener: &impl AsFd) -> Result<OwnedFd, Failure> {
    listener.as_fd().try_clone_to_owned().failed("sharing a listener among threads")
}
