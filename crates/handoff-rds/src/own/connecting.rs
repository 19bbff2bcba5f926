//! Connections: made, accepted, and both from ports that encode their lane.

use std::fmt::Display;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::{Duration, Instant};

use futures_lite::future::yield_now;
use handoff::{Driver, File};
use handoff_sys::process::Process;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use socket2::{Domain, SockAddr, Type};

use super::engine::Shared;
use super::link::{Link, abort, unread};
use crate::error::{Error, Result};
use crate::protocol::{ConnectionId, Reason, Role};
use crate::wire::{MAX_LANES, PORT};

/// Source ports that are tried, from a random one on.
const SOURCE_PORTS: std::ops::Range<u16> = 32_768..60_000;

/// The most connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// How long to retry a taken port, and the first and the longest pause between.
const STAYS_TAKEN: Duration = Duration::from_secs(30);
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// After a failure to accept that says nothing of when it ends.
const AGAIN: Duration = Duration::from_millis(250);

/// What peers connect to.
pub(super) struct Listener {
    made_by: Process,
    socket: socket2::Socket,
    file: File,
}

impl Listener {
    /// Whether a connection waits to be accepted.
    fn has_waiting(&self) -> bool {
        let mut looked_at = [PollFd::new(&self.socket, PollFlags::IN)];
        poll(&mut looked_at, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }
}

impl Drop for Listener {
    /// A request of the ring keeps the socket for a while, which would keep the port. A child leaves it to its parent.
    fn drop(&mut self) {
        if self.made_by.is_this() {
            abort(&self.socket);
        }
    }
}

fn stream(address: IpAddr) -> io::Result<socket2::Socket> {
    let socket =
        socket2::Socket::new(Domain::for_address((address, 0).into()), Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Opens the port. [`Error::NotPossible`] if it is taken.
pub(super) fn listen(driver: &Driver, own: SocketAddr) -> Result<Listener> {
    let socket = stream(own.ip()).map_err(Error::io("open a socket"))?;
    socket.set_reuse_address(true).map_err(Error::io("set up a socket"))?;
    let bound = socket.bind(&SockAddr::from(own)).and_then(|()| socket.listen(BACKLOG));
    if let Err(error) = bound {
        let reason = match error.raw_os_error() {
            Some(libc::EADDRINUSE) => format!(
                "{own} is taken: by another program, perhaps one that was just killed, or by the kernel's own RDS, \
                 which listens wherever its module rds_tcp is loaded, and is then taken for us by peers that reconnect; remedy: use \
                 the kernel's sockets, unload the module (modprobe -r rds_tcp), or listen on another port \
                 (--listen-port of `handoff rds`, Engine::listening_at) to which a packet filter leads \
                 connections to this one"
            ),
            Some(libc::EACCES | libc::EPERM) => {
                format!("listening on {own} is not permitted: {error}")
            }
            _ => return Err(Error::io("listen for RDS peers")(error)),
        };
        return Err(Error::NotPossible(reason));
    }
    let second = socket.try_clone().map_err(Error::io("have a socket twice"))?;
    let file = driver.file(second).map_err(|error| Error::NotPossible(error.to_string()))?;
    Ok(Listener { made_by: Process::this(), socket, file })
}

/// Listens for peers, once the port is free. The kernel keeps the port of a killed process until it has torn
/// down its ring.
async fn listener(shared: &Shared) -> Option<&Listener> {
    if let Some(listener) = shared.listener.get() {
        return Some(listener);
    }
    let (own, begin) = (shared.own, Instant::now());
    let (mut pause, longest) = PAUSES;
    loop {
        // A driver that is gone takes everything else along.
        shared.driver.sleep(pause).await.ok()?;
        match listen(&shared.driver, own) {
            Ok(listener) => {
                tracing::info!(%own, "the port is free, and listened on");
                let listener = shared.listener.get_or_init(|| listener);
                shared.news.tell();
                return Some(listener);
            }
            Err(error) if begin.elapsed() >= STAYS_TAKEN => {
                tracing::warn!(%error, "peers with smaller addresses cannot connect");
                return None;
            }
            Err(_) => pause = (pause * 2).min(longest),
        }
    }
}

/// Accepts connections.
pub(super) async fn accept_all(shared: Rc<Shared>) {
    let Some(listener) = listener(&shared).await else { return };
    loop {
        let waited = match listener.file.readable() {
            Ok(readable) => readable.await,
            Err(error) => Err(error),
        };
        if let Err(error) = waited {
            return shared.fail(Error::NotPossible(error.to_string()));
        }
        let accepted = accept_one(&shared, listener);
        shared.tell();
        // The connection still waits, so the kernel would tell of it again at once.
        if accepted == Accepted::NotNow && shared.driver.sleep(AGAIN).await.is_err() {
            return;
        }
    }
}

/// Accepts all connections that wait, since one that this peer has made may be among them; not those that come
/// meanwhile, which may never end. Between two of them earlier connections are read, since some may wait only for
/// that.
pub(super) async fn accept_waiting(shared: Rc<Shared>, peer: IpAddr) {
    if let Some(listener) = shared.listener.get() {
        // The kernel lets one more wait than it was told.
        for _ in 0..=BACKLOG {
            if accept_one(&shared, listener) != Accepted::One {
                break;
            }
            shared.tell();
            yield_now().await;
        }
    }
    shared.host().accepted_all(peer);
    shared.tell();
}

/// What became of a connection that may wait.
#[derive(PartialEq, Eq)]
enum Accepted {
    One,
    /// There was none, or it was gone.
    None,
    /// There is no room for it: mostly, no descriptor.
    NotNow,
}

fn accept_one(shared: &Rc<Shared>, listener: &Listener) -> Accepted {
    // A link needs two descriptors. A connection that is accepted and has only one would be dropped, with what has
    // come on it: its peer does not send again what TCP has acknowledged.
    let accepted = listener.socket.try_clone().and_then(|_second| listener.socket.accept());
    match accepted {
        Ok((socket, from)) => {
            if let Some(from) = from.as_socket() {
                accepted_from(shared, socket, from);
            }
            Accepted::One
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Accepted::None,
        Err(error) => match error.raw_os_error() {
            Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) => {
                // This is found out also where none waits.
                if !listener.has_waiting() {
                    return Accepted::None;
                }
                refused(shared, None, &error);
                Accepted::NotNow
            }
            // What is wrong with one connection is told here too.
            _ => {
                tracing::info!(%error, "a connection is not accepted");
                Accepted::None
            }
        },
    }
}

/// A connection is not taken, of this peer if we know that.
fn refused(shared: &Shared, peer: Option<IpAddr>, why: &dyn Display) {
    shared.refusals.note(peer, why, Instant::now());
    shared.clock.changed.tell();
}

fn accepted_from(shared: &Rc<Shared>, socket: socket2::Socket, from: SocketAddr) {
    let peer = from.ip().to_canonical();
    let admits = shared.admits.borrow().clone();
    if admits.is_some_and(|admits| !admits(from)) {
        abort(&socket);
        return;
    }
    let accepted = shared.host().accepted(peer, from.port());
    match accepted {
        Ok(id) => up(shared, id, peer, socket),
        Err(reason) => {
            abort(&socket);
            // The smaller address connects; a call from the larger one is no refusal.
            if reason != Reason::WakeUp {
                refused(shared, Some(peer), &reason);
            }
        }
    }
}

/// Makes it a link, if that can be.
fn up(shared: &Rc<Shared>, id: ConnectionId, peer: IpAddr, socket: socket2::Socket) {
    match Link::new(&shared.driver, id, socket, shared.sending, &shared.inquiries) {
        Ok(link) => shared.serve(link),
        Err(error) => {
            refused(shared, Some(peer), &error);
            shared.host().closed(id);
        }
    }
}

/// Connects; as the server, only to ask the peer for a connection.
pub(super) async fn connect(shared: Rc<Shared>, id: ConnectionId, peer: IpAddr, lane: u8) {
    let made = attempt(&shared, id, peer, lane).await;
    let wanted = shared.attempts.borrow_mut().remove(&id).is_some();
    match made {
        // The host has abandoned it.
        Ok(socket) if !wanted => abort(&socket),
        Ok(socket) => {
            let socket = Rc::into_inner(socket).expect("nobody else has it");
            shared.host().connected(id);
            up(&shared, id, peer, socket);
        }
        Err(error) => {
            tracing::debug!(%peer, lane, %error, "a connection is not made");
            shared.host().closed(id);
        }
    }
    shared.tell();
}

async fn attempt(
    shared: &Rc<Shared>,
    id: ConnectionId,
    peer: IpAddr,
    lane: u8,
) -> io::Result<Rc<socket2::Socket>> {
    let lanes = u16::from(MAX_LANES);
    let count = (SOURCE_PORTS.end - SOURCE_PORTS.start) / lanes;
    // The hasher's keys are random.
    let first = RandomState::new().build_hasher().finish() as u16 % count;
    for next in 0..count {
        let port = SOURCE_PORTS.start + (first + next) % count * lanes + u16::from(lane);
        let socket = stream(shared.address)?;
        match socket.bind(&SockAddr::from(SocketAddr::new(shared.address, port))) {
            Err(error) if error.raw_os_error() == Some(libc::EADDRINUSE) => continue,
            bound => bound?,
        }
        let started = socket.connect(&SockAddr::from(SocketAddr::new(peer, PORT)));
        match started {
            Err(error) if error.raw_os_error() == Some(libc::EADDRNOTAVAIL) => continue,
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => return Err(error),
            _ => {}
        }
        let file = shared.driver.file(socket.try_clone()?).map_err(io::Error::other)?;
        let socket = Rc::new(socket);
        shared.attempts.borrow_mut().insert(id, socket.clone());
        file.writable().map_err(io::Error::other)?.await.map_err(io::Error::other)?;
        let error = socket.take_error()?;
        let only_asks = Role::of(shared.address, peer) == Some(Role::Server);
        // A connection reset as soon as it was up has not failed: the peer does not resend what TCP has acknowledged
        // on it.
        if let Some(error) = error.filter(|_| only_asks || unread(&socket) == 0) {
            return Err(error);
        }
        if only_asks {
            // The peer closes it when it has understood.
            file.readable().map_err(io::Error::other)?.await.map_err(io::Error::other)?;
            return Err(Errno::CONNRESET.into());
        }
        return Ok(socket);
    }
    Err(Errno::ADDRINUSE.into())
}
