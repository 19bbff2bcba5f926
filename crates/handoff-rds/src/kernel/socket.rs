//! Opening, waiting, completions, closing.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use handoff_probe::{State as Standing, System};
use handoff_sys::process::Process;
use handoff_sys::rds::{self, PF_RDS};
use handoff_sys::zerocopy;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;
use rustix::net::sockopt;
use socket2::{Domain, SockAddr, Type};

use super::information::{Queue, messages};
use super::locality::Locality;
use super::slots::Slots;
use crate::completion::{Completion, Completions};
use crate::error::{Error, Result};
use crate::payload::Payload;

/// A socket bound to an address and a port. `P` owns the bytes of a message, see [`Payload`].
///
/// ```no_run
/// use std::time::Duration;
/// use handoff_rds::kernel::{Mode, Socket};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let socket: Socket<Vec<u8>> = Socket::bind("192.0.2.1:4000".parse()?)?;
/// socket.send("192.0.2.2:4000".parse()?, vec![7; 65_536], 42, Mode::Lend)?;
/// socket.wait_readable(Duration::from_secs(1))?;
/// let mut batch = Vec::new();
/// socket.completions(100, &mut batch)?; // each with the cookie, the payload and its end
/// while let Some(message) = socket.receive()? {
///     println!("{} bytes from {}", message.payload.len(), message.from);
/// }
/// socket.close(Duration::from_secs(1))?;
/// # Ok(())
/// # }
/// ```
///
/// It belongs to the process that opened it: a child of fork(2) can neither send nor receive by it, and its drop there
/// leaves messages and completions to the parent.
pub struct Socket<P: Payload> {
    made_by: Process,
    pub(super) socket: socket2::Socket,
    pub(super) local: SocketAddr,
    pub(super) locality: Locality,
    pub(super) receiving: Mutex<()>,
    state: Mutex<State<P>>,
}

pub(super) struct State<P> {
    pub(super) slots: Slots<P>,
    pub(super) completions: Completions<P>,
    pub(super) statistics: Statistics,
}

/// A socket's counters.
///
/// [`Socket::statistics`] returns them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Messages sent without a copy.
    pub lent: u64,
    /// Their bytes.
    pub lent_bytes: u64,
    /// Messages copied.
    pub copied: u64,
    /// Their bytes.
    pub copied_bytes: u64,
    /// Lent messages that came back.
    pub returned: u64,
    /// System calls that only read completions.
    pub reaps: u64,
    /// Messages refused because the port at the peer was congested.
    pub refused_congested: u64,
    /// Messages refused because the send buffer was full.
    pub refused_full: u64,
    /// Messages received.
    pub received: u64,
    /// Their bytes.
    pub received_bytes: u64,
}

/// What was left when a socket was closed.
///
/// [`Socket::close`] returns it.
#[derive(Debug)]
pub struct Closed<P> {
    /// Completions that were not taken.
    pub completions: Vec<Completion<P>>,
    /// Messages that peers had not acknowledged, and that the kernel gives up.
    pub unacknowledged: usize,
    /// Payloads that the kernel still held; they are leaked.
    pub leaked: usize,
}

impl<P: Payload> Socket<P> {
    /// Opens a socket at one of this host's addresses; port 0 chooses one.
    ///
    /// # Errors
    ///
    /// [`Error::NotPossible`] if the kernel has no RDS over TCP, with what would help.
    pub fn bind(local: SocketAddr) -> Result<Self> {
        let socket = socket2::Socket::new(Domain::from(PF_RDS), Type::SEQPACKET, None)
            .map_err(not_possible("socket(PF_RDS)"))?;
        rds::choose_tcp(socket.as_fd()).map_err(not_possible("SO_RDS_TRANSPORT"))?;
        zerocopy::enable(socket.as_fd()).map_err(not_possible("SO_ZEROCOPY"))?;
        socket.set_nonblocking(true).map_err(Error::io("make an RDS socket non-blocking"))?;
        socket.bind(&SockAddr::from(local)).map_err(Error::io("bind an RDS socket"))?;
        let bound = socket.local_addr().map_err(Error::io("ask for an RDS socket's address"))?;
        let local = bound.as_socket().ok_or(Error::Invalid("RDS has IPv4 and IPv6 addresses"))?;
        let locality = Locality::new(local.ip()).map_err(Error::io("open a socket for routes"))?;
        let state = State {
            slots: Slots::new(),
            completions: Completions::default(),
            statistics: Statistics::default(),
        };
        Ok(Self {
            made_by: Process::this(),
            socket,
            local,
            locality,
            receiving: Mutex::new(()),
            state: Mutex::new(state),
        })
    }

    /// Whether the socket is of this process.
    pub(super) fn check_here(&self) -> Result<()> {
        if self.made_by.is_this() {
            return Ok(());
        }
        Err(Error::Invalid("the socket was opened by another process: open one after fork(2)"))
    }

    /// The address and port.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State<P>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets whether messages to a peer are copied, in any [`Mode`](super::Mode); messages to addresses of
    /// the socket's own namespace always are. For peers in other namespaces of the same host, see [the
    /// module](super).
    pub fn copy_to(&self, peer: IpAddr, copy: bool) {
        self.locality.name(peer, copy);
    }

    /// Sets the size of the send buffer: the bytes under way in all, and the longest message. Without
    /// CAP_NET_ADMIN the kernel allows no more than `net.core.wmem_max`.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn set_send_buffer(&self, bytes: usize) -> Result<()> {
        // The kernel sets twice the requested size, and RDS counts half of it.
        let set = match sockopt::set_socket_send_buffer_size_force(&self.socket, bytes) {
            Err(Errno::PERM) => sockopt::set_socket_send_buffer_size(&self.socket, bytes),
            set => set,
        };
        set.map_err(|errno| Error::io("set the send buffer's size")(errno.into()))
    }

    /// Bytes of the send buffer.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn send_buffer(&self) -> Result<usize> {
        let doubled = self.socket.send_buffer_size();
        Ok(doubled.map_err(Error::io("ask for the send buffer's size"))? / 2)
    }

    /// Sets the size of the receive buffer: the bytes held before peers are told that the port is
    /// congested. Without CAP_NET_ADMIN the kernel allows no more than `net.core.rmem_max`.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn set_receive_buffer(&self, bytes: usize) -> Result<()> {
        let set = match sockopt::set_socket_recv_buffer_size_force(&self.socket, bytes) {
            Err(Errno::PERM) => sockopt::set_socket_recv_buffer_size(&self.socket, bytes),
            set => set,
        };
        set.map_err(|errno| Error::io("set the receive buffer's size")(errno.into()))
    }

    /// Waits until a message or a completion may be there; `false` when the time is over. May return
    /// early, for instance because some peer's congestion has changed.
    ///
    /// # Errors
    ///
    /// The kernel's, and interruption by a signal.
    pub fn wait_readable(&self, timeout: Duration) -> Result<bool> {
        self.wait(PollFlags::IN, timeout)
    }

    /// Waits until there is room in the send buffer; `false` when the time is over.
    ///
    /// # Errors
    ///
    /// As [`Socket::wait_readable`].
    pub fn wait_writable(&self, timeout: Duration) -> Result<bool> {
        self.wait(PollFlags::OUT, timeout)
    }

    fn wait(&self, what: PollFlags, timeout: Duration) -> Result<bool> {
        let mut polled = [PollFd::new(&self.socket, what)];
        match poll(&mut polled, Some(&timespec(timeout)?)) {
            Ok(ready) => Ok(ready > 0),
            Err(errno) => Err(Error::io("wait for an RDS socket")(errno.into())),
        }
    }

    /// Reads the kernel's completions until there are `enough`, and returns the state with them.
    fn reap(&self, enough: usize) -> Result<MutexGuard<'_, State<P>>> {
        loop {
            let state = self.state();
            if state.completions.len() >= enough || state.slots.lent() == 0 {
                return Ok(state);
            }
            drop(state);
            if !self.read_completions()? {
                return Ok(self.state());
            }
        }
    }

    /// Moves completions to the end of `batch`, at most `most`, and returns how many. Does not wait.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn completions(&self, most: usize, batch: &mut Vec<Completion<P>>) -> Result<usize> {
        Ok(self.reap(most)?.completions.take(most, batch))
    }

    /// Writes the cookies of waiting completions, oldest first, as far as there is room, leaves the
    /// completions in place, and returns their number. Does not wait.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn peek_completions(&self, cookies: &mut [u32]) -> Result<usize> {
        let state = self.reap(usize::MAX)?;
        let waiting = state.completions.peek();
        let count = waiting.len();
        for (place, completion) in cookies.iter_mut().zip(waiting) {
            *place = completion.cookie;
        }
        Ok(count)
    }

    /// Messages whose payloads the kernel holds.
    pub fn lent(&self) -> usize {
        self.state().slots.lent()
    }

    /// What was counted.
    pub fn statistics(&self) -> Statistics {
        self.state().statistics
    }

    /// How many messages the kernel has taken, lent or copied, that their peers' TCP has not acknowledged.
    /// A message sent meanwhile may count twice.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn unacknowledged(&self) -> Result<usize> {
        let ours = |queue| {
            let there = messages(self.as_fd(), queue)?;
            // The kernel's list has no scope for link-local addresses.
            let own = |local: SocketAddr| {
                (local.ip(), local.port()) == (self.local.ip(), self.local.port())
            };
            Ok::<_, Error>(there.iter().filter(|message| own(message.local)).count())
        };
        let count = ours(Queue::Waiting)? + ours(Queue::Unacknowledged)?;
        // A send moves a message from the first queue to the second, and only the end of a connection moves
        // it back: another look then finds it.
        if count > 0 { Ok(count) } else { ours(Queue::Waiting) }
    }

    /// Waits at most `timeout` until peers have acknowledged all messages and all payloads are back, then
    /// ends the socket.
    ///
    /// # Errors
    ///
    /// The kernel's; the socket is closed as if dropped.
    pub fn close(self, timeout: Duration) -> Result<Closed<P>> {
        let deadline = Instant::now() + timeout;
        let action = "wait for an RDS socket's acknowledgements";
        let changes = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|errno| Error::io(action)(errno.into()))?;
        // An acknowledgement wakes waiters, but leaves nothing to see: so one event each time.
        let each = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
        epoll::add(&changes, &self.socket, epoll::EventData::new_u64(0), each)
            .map_err(|errno| Error::io(action)(errno.into()))?;
        loop {
            let leaked = self.reap(usize::MAX)?.slots.lent();
            let unacknowledged = self.unacknowledged()?;
            let left = deadline.saturating_duration_since(Instant::now());
            if (leaked, unacknowledged) == (0, 0) || left.is_zero() {
                let mut completions = Vec::new();
                self.state().completions.take(usize::MAX, &mut completions);
                return Ok(Closed { completions, unacknowledged, leaked });
            }
            let mut events = [epoll::Event { flags: each, data: epoll::EventData::new_u64(0) }];
            match epoll::wait(&changes, &mut events, Some(&timespec(left)?)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(Error::io(action)(errno.into())),
            }
        }
    }
}

impl<P: Payload> AsFd for Socket<P> {
    /// For waiting; readable when a message or a completion is there.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl<P: Payload> Drop for Socket<P> {
    fn drop(&mut self) {
        // In a child, the kernel holds none of its memory.
        if !self.made_by.is_this() {
            return;
        }
        let lent = match self.reap(usize::MAX) {
            Ok(state) => state.slots.lent(),
            Err(_) => self.lent(),
        };
        if lent > 0 {
            tracing::warn!(
                socket = %self.local, payloads = lent,
                "an RDS socket ends while the kernel holds payloads, which are leaked: close it first"
            );
            self.state().slots.leak();
        }
    }
}

fn timespec(timeout: Duration) -> Result<Timespec> {
    let long = Error::Invalid("a time-out of more seconds than there are numbers");
    Timespec::try_from(timeout).map_err(|_| long)
}

/// For `map_err`: what the kernel lacks, as the probe explains it.
pub(super) fn not_possible(action: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |error| {
        let lacking =
            handoff_probe::system(System::Rds).into_iter().find(|it| it.state != Standing::Yes);
        let why =
            lacking.map(|it| [it.reason, it.remedy].into_iter().flatten().collect::<Vec<_>>());
        match why {
            Some(why) => Error::NotPossible(format!(
                "the kernel's RDS cannot be used: {}",
                why.join("; remedy: ")
            )),
            None => Error::Io { action, source: error },
        }
    }
}
