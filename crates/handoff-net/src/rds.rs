//! One port of either engine, waited for on a driver.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::pin::pin;
use std::thread;
use std::time::{Duration, Instant};

use futures_util::future::select;
use handoff::{Buffer, Driver, Executor, File};
use handoff_command::allow_list::{self, AllowArgs, AllowList};
use handoff_command::descriptors;
use handoff_command::{Failure, output};
use handoff_rds::kernel::{self, Mode};
use handoff_rds::own::{self, Engine};
use handoff_rds::protocol::Limits;
use handoff_rds::wire::{KERNEL_MESSAGE_LIMIT, PORT};
use handoff_rds::{Completion, Error, Received, Refused};
use ipnet::IpNet;

/// Bytes under way by default.
pub const UNDER_WAY: usize = 8 << 20;
/// The largest size that can be requested for a socket's buffer.
const LARGEST_BUFFER: usize = 1 << 30;
/// Bytes that one of the kernel's sockets holds before it tells its peers to wait, if allowed; as our own
/// engine.
const HELD: usize = 4 << 20;
/// How long the kernel may take to close a port of a program that was killed: it ends the program's rings, which hold the
/// port's socket, after the program itself.
const CLOSING: Duration = Duration::from_secs(2);
/// Between looks whether it has.
const LOOK: Duration = Duration::from_millis(20);

/// Engines, as they are called on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum EngineName {
    /// The kernel's if it has RDS over TCP, otherwise ours
    Auto,
    /// The kernel's RDS sockets
    Kernel,
    /// Ours, in user space over TCP
    Own,
}

/// The engine, and who may connect to ours, as every command of RDS takes them.
#[derive(Debug, clap::Args)]
pub struct Serving {
    /// Engine to use; --listen-port and --from ask for ours
    #[arg(long, value_enum, default_value_t = EngineName::Auto)]
    pub engine: EngineName,

    /// TCP port that our engine listens on, if the host's kernel has rds_tcp; a packet filter must redirect
    /// port 16385 to it
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub listen_port: Option<u16>,

    /// Who may connect, besides those that this side sends to.
    #[command(flatten)]
    pub allowed: AllowArgs,
}

impl Serving {
    /// The engine that is asked for.
    fn wanted(&self) -> Result<EngineName, Failure> {
        let own = [
            (self.listen_port.is_some(), "--listen-port", "listens on its own port"),
            (!self.allowed.from.is_empty(), "--from", "lets all peers connect"),
        ];
        match own.iter().find(|(given, ..)| *given) {
            Some((_, option, why)) if self.engine == EngineName::Kernel => Err(Failure::usage(
                format!("the kernel's RDS {why}: {option} goes with --engine own"),
            )),
            Some(_) => Ok(EngineName::Own),
            None => Ok(self.engine),
        }
    }

    /// What ports are made of, at an address of this host. `peers` are those that this side sends to; one that sends to
    /// nobody of its own accord hears whoever may connect.
    ///
    /// # Errors
    ///
    /// As of [`Host::new`], and options that do not go with each other.
    pub fn host(
        &self,
        driver: &Driver,
        address: IpAddr,
        peers: &[IpAddr],
        copy: bool,
        under_way: usize,
    ) -> Result<(Host, Option<String>), Failure> {
        let own = (address, self.listen_port.unwrap_or(PORT)).into();
        let from = &self.allowed.from;
        let allow_list = match (from.is_empty(), peers.is_empty()) {
            (true, false) => AllowList::only(peers.iter().copied()),
            (true, true) => AllowList::new(&[]),
            (false, _) => {
                let peers = peers.iter().map(|peer| IpNet::from(peer.to_canonical()));
                AllowList::new(&from.iter().copied().chain(peers).collect::<Vec<_>>())
            }
        };
        let (host, passed_over) =
            Host::new(driver, self.wanted()?, own, allow_list, copy, under_way)?;
        host.announce(passed_over.as_deref());
        if peers.is_empty() {
            allow_list::warn_of_rds(matches!(host, Host::Kernel { .. }), own, from);
        }
        Ok((host, passed_over))
    }
}

/// What ports are made of.
pub enum Host {
    /// The kernel's sockets.
    Kernel {
        /// Where ports are bound.
        address: IpAddr,
        /// Bytes that may be under way from each port.
        under_way: usize,
    },
    /// Our engine.
    Own(Engine),
}

impl Host {
    /// The engine that was asked for, and why not the kernel's where that was left open. Ours listens at `own`,
    /// and lets `allow_list` connect. `under_way` bytes may be under way from each
    /// of the kernel's ports, if it allows it, or to each peer of our own.
    ///
    /// # Errors
    ///
    /// No engine, or not the one that was asked for.
    pub fn new(
        driver: &Driver,
        name: EngineName,
        own: SocketAddr,
        allow_list: AllowList,
        copy: bool,
        under_way: usize,
    ) -> Result<(Self, Option<String>), Failure> {
        let (address, mut passed_over) = (own.ip(), None);
        // A peer of ours may have two for each of several connections on eight lanes, one of the kernel's two for its
        // answers.
        descriptors::allow_all();
        if name != EngineName::Own {
            match kernel::Socket::<Buffer>::bind((address, 0).into()) {
                Ok(_) => return Ok((Self::Kernel { address, under_way }, None)),
                Err(Error::NotPossible(reason)) if name == EngineName::Auto => {
                    passed_over = Some(reason);
                }
                Err(error) => return Err(failure(error)),
            }
        }
        let sending = if copy { handoff::Engine::Copy } else { handoff::Engine::Auto };
        let mut limits = Limits::default();
        limits.queued = limits.queued.max(under_way as u64);
        let engine = Engine::listening_at(driver, own, limits, sending).map_err(failure)?;
        engine.admit(move |peer| allow_list.lets_in(peer));
        Ok((Self::Own(engine), passed_over))
    }

    /// The engine's name, as reports have it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Kernel { .. } => "rds-kernel",
            Self::Own(_) => "rds-own",
        }
    }

    /// Says on stderr what serves, and what is wrong.
    pub fn announce(&self, passed_over: Option<&str>) {
        let why = passed_over.map(|why| format!(" ({why})")).unwrap_or_default();
        output::say(format_args!("engine {}{why}", self.name()));
        if let Self::Own(engine) = self
            && let Some(reason) = engine.not_listening()
        {
            output::say(format_args!(
                "until the port is free, peers with smaller addresses cannot be reached: {reason}"
            ));
        }
    }

    /// Makes the engine serve its ports as long as the executor runs.
    pub fn serve(&self, executor: &Executor) {
        if let Self::Own(engine) = self {
            let run = engine.run();
            executor
                .spawn(async { output::say(format_args!("the engine has ended: {}", run.await)) })
                .detach();
        }
    }

    /// A free port; the kernel chooses one itself.
    ///
    /// # Errors
    ///
    /// As [`bind`](Self::bind).
    pub fn bind_free(&self, driver: &Driver, copy: bool) -> Result<Port, Failure> {
        if let Self::Kernel { .. } = self {
            return self.bind(driver, 0, copy);
        }
        let mut last = None;
        for port in 20_000..30_000 {
            match self.bind(driver, port, copy) {
                Ok(port) => return Ok(port),
                Err(error) => last = Some(error),
            }
        }
        Err(last.expect("some were tried"))
    }

    /// A socket to answer one peer from, if a port's bytes under way are limited for all peers together. It takes next
    /// to nothing that somebody sends to it.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn bind_for_answers(&self) -> Result<Option<Box<kernel::Socket<Buffer>>>, Failure> {
        let Self::Kernel { address, under_way } = self else { return Ok(None) };
        let socket = Box::new(kernel::Socket::bind((*address, 0).into()).map_err(failure)?);
        socket.set_send_buffer((*under_way).min(LARGEST_BUFFER)).map_err(failure)?;
        socket.set_receive_buffer(0).map_err(failure)?;
        Ok(Some(socket))
    }

    /// Binds a port; with `copy` the kernel copies what is sent.
    ///
    /// # Errors
    ///
    /// A port that is taken, and the engine's refusals.
    pub fn bind(&self, driver: &Driver, port: u16, copy: bool) -> Result<Port, Failure> {
        match self {
            Self::Own(engine) => Ok(Port::Own(engine.bind(port).map_err(failure)?)),
            Self::Kernel { address, under_way } => {
                let socket = Box::new(bind_once_closed((*address, port).into())?);
                socket.set_send_buffer((*under_way).min(LARGEST_BUFFER)).map_err(failure)?;
                socket.set_receive_buffer(HELD).map_err(failure)?;
                let second = socket.as_fd().try_clone_to_owned().map_err(Failure::failed)?;
                let readable = driver.file(second).map_err(Failure::failed)?;
                let mode = if copy { Mode::Copy } else { Mode::Lend };
                Ok(Port::Kernel { socket, readable, mode })
            }
        }
    }
}

/// Why messages are limited to this.
pub fn limit(longest: usize) -> &'static str {
    match longest < KERNEL_MESSAGE_LIMIT {
        true => "a message is no longer than the kernel's send buffer (net.core.wmem_max)",
        false => "RDS has no longer messages",
    }
}

/// One port of either engine.
pub enum Port {
    /// A socket of the kernel's.
    Kernel {
        /// The socket.
        socket: Box<kernel::Socket<Buffer>>,
        /// The same socket, to wait for.
        readable: File,
        /// Whether it lends or copies.
        mode: Mode,
    },
    /// A port of our engine.
    Own(own::Socket),
}

/// Binds a socket of the kernel's, and waits up to [`CLOSING`] if another has the port.
fn bind_once_closed(address: SocketAddr) -> Result<kernel::Socket<Buffer>, Failure> {
    let begin = Instant::now();
    loop {
        match kernel::Socket::bind(address) {
            Ok(socket) => return Ok(socket),
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::AddrInUse => {
                if begin.elapsed() >= CLOSING {
                    return Err(Failure::failed(format!(
                        "RDS port {} of {} is taken by another program: choose another port",
                        address.port(),
                        address.ip()
                    )));
                }
                thread::sleep(LOOK);
            }
            Err(error) => return Err(failure(error)),
        }
    }
}

impl Port {
    /// Bytes of the longest message.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn longest(&self) -> Result<usize, Failure> {
        match self {
            Self::Kernel { socket, .. } => {
                Ok(socket.send_buffer().map_err(failure)?.min(KERNEL_MESSAGE_LIMIT))
            }
            Self::Own(_) => Ok(KERNEL_MESSAGE_LIMIT),
        }
    }

    /// As [`Port::send`]; the kernel copies the bytes, and does not report when they are acknowledged.
    ///
    /// # Errors
    ///
    /// As [`Port::send`].
    pub fn send_copied(
        &self,
        to: SocketAddr,
        payload: Buffer,
        cookie: u32,
    ) -> Result<(), Refused<Buffer>> {
        match self {
            Self::Kernel { socket, .. } => socket.send(to, payload, cookie, Mode::Copy),
            Self::Own(socket) => socket.send(to, payload, cookie),
        }
    }

    /// Lends a message to the engine.
    ///
    /// # Errors
    ///
    /// The engine's refusal, with the payload.
    pub fn send(
        &self,
        to: SocketAddr,
        payload: Buffer,
        cookie: u32,
    ) -> Result<(), Refused<Buffer>> {
        match self {
            Self::Kernel { socket, mode, .. } => socket.send(to, payload, cookie, *mode),
            Self::Own(socket) => socket.send(to, payload, cookie),
        }
    }

    /// The next message, if there is one.
    ///
    /// # Errors
    ///
    /// The engine's.
    pub fn receive(&self) -> Result<Option<Received>, Failure> {
        match self {
            Self::Kernel { socket, .. } => Ok(socket.receive().map_err(failure)?),
            Self::Own(socket) => Ok(socket.try_receive()),
        }
    }

    /// Adds the messages that are back to `batch`, and counts them.
    ///
    /// # Errors
    ///
    /// The engine's.
    pub fn completions(&self, batch: &mut Vec<Completion<Buffer>>) -> Result<usize, Failure> {
        match self {
            Self::Kernel { socket, .. } => {
                Ok(socket.completions(usize::MAX, batch).map_err(failure)?)
            }
            Self::Own(socket) => Ok(socket.try_completions(usize::MAX, batch)),
        }
    }

    /// Gives up what our engine has under way to a peer.
    pub fn cancel(&self, to: IpAddr) {
        if let Self::Own(socket) = self {
            socket.cancel(Some(to));
        }
    }

    /// Messages of the kernel's engine that are back, because they were copied, and that the peer may not
    /// have: they end with the port.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn unacknowledged(&self) -> Result<usize, Failure> {
        match self {
            Self::Kernel { socket, .. } => Ok(socket.unacknowledged().map_err(failure)?),
            // Its messages come back acknowledged.
            Self::Own(_) => Ok(0),
        }
    }

    /// Waits until something may have changed, or `time` says that it is time to look.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub async fn changed(&self, time: impl Future<Output = ()>) -> Result<(), Failure> {
        let time = pin!(time);
        match self {
            Self::Kernel { readable, .. } => {
                let readable = readable.readable().map_err(Failure::failed)?;
                select(readable, time).await;
            }
            Self::Own(socket) => {
                select(pin!(socket.changed()), time).await;
            }
        }
        Ok(())
    }
}

/// The failure of a subcommand by an error of the library.
pub fn failure(error: Error) -> Failure {
    match error {
        Error::NotPossible(_) | Error::Memlock { .. } => Failure::not_possible(error),
        Error::Invalid(_) | Error::MessageTooLong { .. } => Failure::usage(error),
        other => Failure::failed(other),
    }
}
