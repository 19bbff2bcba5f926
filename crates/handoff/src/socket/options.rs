//! Options of sockets: set before a connection is made, and on sockets that are attached.
//!
//! Minimum kernel: 4.2 (`IP_BIND_ADDRESS_NO_PORT`). Capability: none, but CAP_NET_ADMIN (CAP_NET_RAW from Linux 5.17 on)
//! for `mark` and for `priority` above 6, CAP_NET_ADMIN for a longer `busy_poll` than the socket has, and CAP_NET_RAW for
//! another `device` than none.
//!
//! Contracts:
//! - what is asked of a connect or listener is set before its first packet;
//! - an option that the kernel refuses is named, and one that it would round to nothing is refused.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::rc::Rc;
use std::time::Duration;

use handoff_sys::tcp;
use socket2::{Domain, Protocol, SockRef, TcpKeepalive, Type};

use super::connect::Connecting;
use super::listen::Listener;
use super::{Socket, internet_address};
use crate::error::{Error, Result};
use crate::reactor::Reactor;

/// Connections that wait to be accepted, unless the options say otherwise: as many as the kernel allows by default.
const BACKLOG: u32 = 4096;

/// Options of a socket. What is `None` stays as it is.
///
/// [`Driver::connect_with`](crate::Driver::connect_with) and [`Driver::listen_at`](crate::Driver::listen_at) set them
/// before anything is sent, [`Socket::set_options`] on a socket that is there. [`Socket::options`] tells what a socket has.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
///
/// use handoff::{Driver, SocketOptions};
///
/// let driver = Driver::new()?;
/// let mut options = SocketOptions::default();
/// options.nodelay = Some(true);
/// options.user_timeout = Some(Duration::from_secs(20));
/// options.keepalive_idle = Some(Duration::from_secs(60));
/// options.bind = Some("127.0.0.2:0".parse()?);
/// let listener = driver.listen_at("127.0.0.1:0".parse()?, &SocketOptions::default())?;
/// let connecting = driver.connect_with(listener.local_addr()?, &options)?;
/// let socket = driver.block_on(connecting)??;
/// assert_eq!(socket.options()?.nodelay, Some(true));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SocketOptions {
    /// Whether TCP sends small segments at once (`TCP_NODELAY`).
    pub nodelay: Option<bool>,
    /// How long close(2) waits for the peer to take what was sent, in whole seconds; `Some(None)`: it does not wait. With
    /// 0 the connection is reset (`SO_LINGER`). [`DriverBuilder::linger`](crate::DriverBuilder::linger) is another bound: of
    /// connections that nobody holds.
    pub linger: Option<Option<Duration>>,
    /// Whether TCP asks an idle peer if it is still there (`SO_KEEPALIVE`). Any of the following three switches it on.
    pub keepalive: Option<bool>,
    /// How long a connection is idle before the first question, in whole seconds (`TCP_KEEPIDLE`).
    pub keepalive_idle: Option<Duration>,
    /// The time between questions, in whole seconds (`TCP_KEEPINTVL`).
    pub keepalive_interval: Option<Duration>,
    /// After so many questions without an answer the connection is broken (`TCP_KEEPCNT`).
    pub keepalive_count: Option<u32>,
    /// After this time without an acknowledgement the connection is broken, in milliseconds; zero: as the system has it
    /// (`TCP_USER_TIMEOUT`). Buffers that a stalled peer keeps on loan come back then.
    pub user_timeout: Option<Duration>,
    /// Bytes of the send buffer (`SO_SNDBUF`). The kernel doubles it, for what is around payload, and tells the double.
    pub send_buffer: Option<usize>,
    /// Bytes of the receive buffer (`SO_RCVBUF`), in the same way. It then no longer grows by itself.
    pub receive_buffer: Option<usize>,
    /// How long a receive that finds nothing polls the device, in microseconds (`SO_BUSY_POLL`).
    pub busy_poll: Option<Duration>,
    /// Priority of the packets (`SO_PRIORITY`).
    pub priority: Option<u32>,
    /// Mark of the packets, for routing and filters (`SO_MARK`).
    pub mark: Option<u32>,
    /// The only device that packets come and go by (`SO_BINDTODEVICE`); empty: any.
    pub device: Option<String>,
    /// The address to connect from. With port 0 the kernel chooses the port when it knows the peer
    /// (`IP_BIND_ADDRESS_NO_PORT`), so that as many connections as there are ports go to each peer. For connects only.
    pub bind: Option<SocketAddr>,
    /// Whether several listeners share the address, and each gets a part of the connections (`SO_REUSEPORT`). For
    /// listeners only, and before they listen.
    pub reuse_port: Option<bool>,
    /// The most connections that wait to be accepted; default 4096, at most `net.core.somaxconn`. For listeners only.
    pub backlog: Option<u32>,
}

/// What an option is, and the kernel's answer.
fn failed(action: &'static str) -> impl Fn(io::Error) -> Error {
    move |error| Error::io(action, error)
}

/// Sets an option that was given.
fn set<T: Copy>(
    value: Option<T>,
    action: &'static str,
    set: impl FnOnce(T) -> io::Result<()>,
) -> Result<()> {
    value.map_or(Ok(()), |value| set(value).map_err(failed(action)))
}

/// The time in the option's unit, which has at most so many.
fn whole(time: Duration, unit: Duration, what: &'static str) -> Result<()> {
    let units = time.as_nanos() / unit.as_nanos();
    let fits = time.is_zero() || units > 0 && units <= i32::MAX as u128;
    if fits { Ok(()) } else { Err(Error::Invalid(what)) }
}

impl SocketOptions {
    /// Refuses what the kernel would round to something else.
    fn check(&self) -> Result<()> {
        const SECOND: Duration = Duration::from_secs(1);
        const MILLISECOND: Duration = Duration::from_millis(1);
        const MICROSECOND: Duration = Duration::from_micros(1);
        let checks = [
            (
                self.linger.flatten(),
                SECOND,
                "linger is 0, or at least a second (SocketOptions::linger)",
            ),
            (self.keepalive_idle, SECOND, "keepalive_idle is at least a second"),
            (self.keepalive_interval, SECOND, "keepalive_interval is at least a second"),
            (self.user_timeout, MILLISECOND, "user_timeout is 0, or at least a millisecond"),
            (self.busy_poll, MICROSECOND, "busy_poll is 0, or at least a microsecond"),
        ];
        checks
            .into_iter()
            .try_for_each(|(time, unit, what)| time.map_or(Ok(()), |time| whole(time, unit, what)))
    }

    /// Sets what any socket has, before or while it is connected.
    fn apply(&self, socket: &impl AsFd) -> Result<()> {
        self.check()?;
        let socket = SockRef::from(socket);
        set(self.send_buffer, "setting SO_SNDBUF", |it| socket.set_send_buffer_size(it))?;
        set(self.receive_buffer, "setting SO_RCVBUF", |it| socket.set_recv_buffer_size(it))?;
        set(self.linger, "setting SO_LINGER", |it| socket.set_linger(it))?;
        set(self.nodelay, "setting TCP_NODELAY", |it| socket.set_tcp_nodelay(it))?;
        set(self.user_timeout, "setting TCP_USER_TIMEOUT", |it| {
            socket.set_tcp_user_timeout(Some(it))
        })?;
        let mut alive = TcpKeepalive::new();
        if let Some(time) = self.keepalive_idle {
            alive = alive.with_time(time);
        }
        if let Some(time) = self.keepalive_interval {
            alive = alive.with_interval(time);
        }
        if let Some(count) = self.keepalive_count {
            alive = alive.with_retries(count);
        }
        let timed = self.keepalive_idle.is_some()
            || self.keepalive_interval.is_some()
            || self.keepalive_count.is_some();
        set(
            timed.then_some(&alive),
            "setting TCP_KEEPIDLE, TCP_KEEPINTVL and TCP_KEEPCNT",
            |it| socket.set_tcp_keepalive(it),
        )?;
        set(self.keepalive, "setting SO_KEEPALIVE", |it| socket.set_keepalive(it))?;
        set(self.busy_poll, "setting SO_BUSY_POLL", |it| {
            socket.set_busy_poll(it.as_micros() as u32)
        })?;
        set(self.priority, "setting SO_PRIORITY", |it| socket.set_priority(it))?;
        set(self.mark, "setting SO_MARK", |it| socket.set_mark(it))?;
        let device = self.device.as_deref().map(|name| Some(name.as_bytes()));
        let device = device.map(|name| name.filter(|name| !name.is_empty()));
        set(device, "setting SO_BINDTODEVICE", |it| socket.bind_device(it))
    }

    /// What a socket has; `None` for what its kind has not.
    fn of(socket: &impl AsFd) -> Result<Self> {
        let socket = SockRef::from(socket);
        let is_tcp = socket.protocol().ok().flatten() == Some(Protocol::TCP);
        let asked = || -> io::Result<Self> {
            let mut options = Self {
                linger: Some(socket.linger()?),
                keepalive: Some(socket.keepalive()?),
                send_buffer: Some(socket.send_buffer_size()?),
                receive_buffer: Some(socket.recv_buffer_size()?),
                busy_poll: socket.busy_poll().ok().map(|it| Duration::from_micros(it.into())),
                priority: Some(socket.priority()?),
                mark: socket.mark().ok(),
                device: socket
                    .device()?
                    .map(|name| String::from_utf8_lossy(&name).into_owned())
                    .or_else(|| Some(String::new())),
                ..Self::default()
            };
            if is_tcp {
                options.nodelay = Some(socket.tcp_nodelay()?);
                options.keepalive_idle = Some(socket.tcp_keepalive_time()?);
                options.keepalive_interval = Some(socket.tcp_keepalive_interval()?);
                options.keepalive_count = Some(socket.tcp_keepalive_retries()?);
                options.user_timeout = Some(socket.tcp_user_timeout()?.unwrap_or_default());
            }
            Ok(options)
        };
        asked().map_err(failed("asking for the options of a socket"))
    }

    /// Whether any option is given that only a connect or only a listener has.
    fn of_no_socket(&self) -> Option<&'static str> {
        let Self { bind, reuse_port, backlog, .. } = self;
        (bind.is_some() || reuse_port.is_some() || backlog.is_some()).then_some(
            "bind, reuse_port and backlog are for what is still to connect or to listen: give them to \
             Driver::connect_with or Driver::listen_at",
        )
    }
}

impl Socket {
    /// As [`Driver::connect_with`](crate::Driver::connect_with).
    pub(crate) fn connect_with(
        driver: &Rc<Reactor>,
        address: SocketAddr,
        options: &SocketOptions,
    ) -> Result<Connecting> {
        if options.reuse_port.is_some() || options.backlog.is_some() {
            return Err(Error::Invalid("reuse_port and backlog are for listeners"));
        }
        let socket = Self::tcp(driver, address)?;
        options.apply(&socket)?;
        if let Some(source) = options.bind {
            if source.port() == 0 {
                tcp::bind_address_no_port(socket.as_fd())
                    .map_err(failed("setting IP_BIND_ADDRESS_NO_PORT"))?;
            }
            SockRef::from(&socket).bind(&source.into()).map_err(failed("binding a socket"))?;
        }
        socket.connect(address)
    }
}

impl Listener {
    /// As [`Driver::listen_at`](crate::Driver::listen_at).
    pub(crate) fn open_at(
        driver: &Rc<Reactor>,
        address: SocketAddr,
        options: &SocketOptions,
    ) -> Result<Self> {
        if options.bind.is_some() {
            return Err(Error::Invalid("bind is for connects: a listener has its address"));
        }
        let made =
            socket2::Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP));
        let socket = made.map_err(|error| {
            Error::descriptor("making a socket", error.raw_os_error().unwrap_or(libc::EIO))
        })?;
        options.apply(&socket)?;
        socket.set_reuse_address(true).map_err(failed("setting SO_REUSEADDR"))?;
        set(options.reuse_port, "setting SO_REUSEPORT", |it| socket.set_reuse_port(it))?;
        socket.bind(&address.into()).map_err(failed("binding a listener"))?;
        let backlog = options.backlog.unwrap_or(BACKLOG).min(i32::MAX as u32);
        socket.listen(backlog as i32).map_err(failed("listening"))?;
        Self::open(driver, TcpListener::from(socket))
    }
}

impl Socket {
    /// Sets the options that are given. Where the kernel refuses one, others may be set.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] names the option that the kernel refuses; [`Error::Invalid`] for options of connects and listeners.
    pub fn set_options(&self, options: &SocketOptions) -> Result<()> {
        self.driver.core.check_here()?;
        if let Some(reason) = options.of_no_socket() {
            return Err(Error::Invalid(reason));
        }
        options.apply(self)
    }

    /// The options that the socket has, as the kernel tells them. Those that its kind has not are `None`.
    ///
    /// # Errors
    ///
    /// The kernel's error about the socket.
    pub fn options(&self) -> Result<SocketOptions> {
        SocketOptions::of(self)
    }

    /// The address of this end.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] also where it is no internet address.
    pub fn local_addr(&self) -> Result<SocketAddr> {
        internet_address(SockRef::from(&self.shared.endpoint.fd).local_addr())
    }
}
