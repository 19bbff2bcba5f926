//! A socket attached to a driver, for sending and receiving.

pub(crate) mod connect;
pub(crate) mod group;
pub(crate) mod lane;
pub(crate) mod listen;
pub(crate) mod listeners;
pub(crate) mod message;
pub(crate) mod options;
pub(crate) mod receive;
pub(crate) mod receive_dma_buf;
mod receive_into;
pub(crate) mod receive_mapped;
pub(crate) mod send;
pub(crate) mod unix;

use std::future::{Future, pending, poll_fn};
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::task::{Context, Poll};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::ioctl_fionbio;
use socket2::{Domain, Protocol, SockAddr, SockRef};

use crate::engine::msg_zerocopy;
use crate::error::{Error, Result};
use crate::mechanism::Engine;
use crate::op::chooser::{Choice, Chooser};
use crate::op::{Attached, Direction, SendStats, SocketKind, SocketShared, Waiting};
use crate::reactor::Reactor;
use crate::ring::Io;
use crate::transfer::Readiness;
use crate::unix::UnixKind;

/// A connected or bound socket of any family, used through its driver.
///
/// Clones are handles on the same attachment. Its descriptor closes when the last handle is dropped and no send or
/// receive is under way; the connection ends when lent buffers are back, too. A connection whose peer then takes next to
/// nothing is reset after a time ([`DriverBuilder::linger`](crate::DriverBuilder::linger)).
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use handoff::{Driver, Region};
///
/// let driver = Driver::new()?;
/// let mut region = Region::anonymous(1 << 16)?;
/// let socket = driver.socket(std::net::TcpStream::connect("192.0.2.1:9000")?)?;
/// driver.block_on(async {
///     let request = region.take(100).expect("there is room");
///     let answer = region.take(4096).expect("there is room");
///     println!("{} bytes asked", socket.send(request)?.await?.sent?);
///     println!("{} bytes answered", socket.receive_into(answer)?.await?.result?);
///     Ok::<_, Box<dyn std::error::Error>>(())
/// })??;
/// # Ok(()) }
/// ```
pub struct Socket {
    pub(crate) shared: Rc<SocketShared>,
    pub(crate) driver: Rc<Reactor>,
}

impl Clone for Socket {
    fn clone(&self) -> Self {
        Self::of(Rc::clone(&self.driver), Rc::clone(&self.shared))
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let shared = &self.shared;
        shared.handles.update(|handles| handles - 1);
        if shared.keeps_order() && shared.handles.get() == 0 && self.driver.core.is_here() {
            self.driver.core.leave_stream(shared);
        }
    }
}

impl Socket {
    /// A handle.
    fn of(driver: Rc<Reactor>, shared: Rc<SocketShared>) -> Self {
        shared.handles.update(|handles| handles + 1);
        Self { shared, driver }
    }

    pub(crate) fn attach(driver: Rc<Reactor>, fd: OwnedFd) -> Result<Self> {
        let zero_copy = check_zero_copy(&fd).map(|()| zero_copy_engine(&driver.core.io));
        let chooser = Chooser::new(zero_copy, tells_copies(&driver.core.io));
        let shared = SocketShared::new(&driver.core.io, fd, chooser)?;
        Ok(Self::of(driver, Rc::new(shared)))
    }

    /// As [`attach`](Self::attach) for a socket known to be TCP.
    fn attach_tcp(driver: Rc<Reactor>, fd: OwnedFd, ipv6: bool) -> Self {
        let chooser =
            Chooser::new(Ok(zero_copy_engine(&driver.core.io)), tells_copies(&driver.core.io));
        let kind = SocketKind { stream: true, ipv6, udp: false, unix: false, packets: false };
        let shared = SocketShared::of_kind(&driver.core.io, fd, chooser, kind);
        Self::of(driver, Rc::new(shared))
    }

    /// As [`attach`](Self::attach) for a Unix socket of a known kind.
    pub(crate) fn attach_unix(driver: Rc<Reactor>, fd: OwnedFd, kind: UnixKind) -> Self {
        let chooser = Chooser::new(Err(UNIX_COPIES.to_owned()), tells_copies(&driver.core.io));
        let (stream, packets) = (kind == UnixKind::Stream, kind == UnixKind::Seqpacket);
        let kind = SocketKind { stream, ipv6: false, udp: false, unix: true, packets };
        let shared = SocketShared::of_kind(&driver.core.io, fd, chooser, kind);
        Self::of(driver, Rc::new(shared))
    }

    /// Ends a direction, or both, for every handle on the connection. The peer sees the end behind the
    /// bytes that the kernel has taken. Sends that the kernel has not taken whole by now fail. The peer of a TLS connection
    /// takes this for an end (close-notify) only if all sends went whole.
    ///
    /// # Errors
    ///
    /// When the socket is not connected. `WouldBlock` if a TLS connection has no room to say its end: wait until it is
    /// [writable](Self::writable), and shut it down again.
    pub fn shutdown(&self, how: Shutdown) -> Result<()> {
        self.driver.core.check_here()?;
        #[cfg(feature = "tls")]
        if how != Shutdown::Read {
            self.shared.close_cipher()?;
        }
        SockRef::from(&self.shared.endpoint.fd)
            .shutdown(how)
            .map_err(|error| Error::io("shutting a connection down", error))
    }

    /// Ends the connection at once, for every handle on it: its peer gets a reset, and bytes that it has not taken are
    /// lost. Sends and receives under way fail, and the kernel lets go of lent buffers, however long its peer would have
    /// kept them: [`OnLoan`](crate::OnLoan) resolves with the driver's next turns. Does nothing to datagram sockets. The
    /// peer of a Unix socket gets what it has not read, and then the end: such sockets have no reset.
    ///
    /// ```no_run
    /// # async fn example(driver: &handoff::Driver, socket: &handoff::Socket, buffer: handoff::Buffer) -> Result<(), Box<dyn std::error::Error>> {
    /// let (sent, mut on_loan) = socket.send(buffer)?.split();
    /// sent.await?;
    /// // Its peer gets half a minute to take it.
    /// let half_a_minute = std::time::Duration::from_secs(30);
    /// if driver.timeout(half_a_minute, &mut on_loan).await.is_err() {
    ///     socket.abort();
    ///     println!("{} bytes are back", on_loan.await?.buffer.len());
    /// }
    /// # Ok(()) }
    /// ```
    pub fn abort(&self) {
        if self.shared.has_end() && self.driver.core.is_here() {
            self.shared.reset();
        }
    }

    /// Waits until the kernel has taken all bytes accepted for a stream: also those of sends whose futures were
    /// dropped, and of sends accepted meanwhile. So it does for a Unix socket's messages that name no destination. Other
    /// datagrams need no order, so this does not wait for them.
    ///
    /// # Errors
    ///
    /// [`Error::StreamBroken`] after a send that ended midway; [`Error::DriverGone`]; when a
    /// [lane](Self::lane) sends on the stream.
    pub fn flush(&self) -> impl Future<Output = Result<()>> + '_ {
        let mut waiting = Waiting::default();
        poll_fn(move |context| self.poll_flush(&mut waiting, context))
    }

    pub(crate) fn poll_flush(
        &self,
        waiting: &mut Waiting,
        context: &mut Context<'_>,
    ) -> Poll<Result<()>> {
        self.driver.core.check_here()?;
        let waker = context.waker().clone();
        let queue = self.shared.queue.borrow();
        if let Some(error) = queue.refusal() {
            return Poll::Ready(Err(error));
        }
        if queue.is_idle() {
            return Poll::Ready(Ok(()));
        }
        self.driver.core.check_driven()?;
        let before = queue.flushing.wait(waiting, waker);
        // A waker is dropped where it may use the socket.
        drop(queue);
        drop(before);
        Poll::Pending
    }

    /// Waits until there is something to receive, an end, or an error. Receives nothing.
    ///
    /// # Errors
    ///
    /// [`Error::DriverGone`].
    pub fn readable(&self) -> Result<Readiness> {
        self.await_readiness(Direction::AwaitRead)
    }

    /// Waits until the socket has room for bytes to send, or an error.
    ///
    /// # Errors
    ///
    /// [`Error::DriverGone`].
    pub fn writable(&self) -> Result<Readiness> {
        self.await_readiness(Direction::AwaitWrite)
    }

    /// Waits until the connection is broken: reset by the peer, or ended in both directions. Receives nothing. If the
    /// peer has ended only its own direction, this waits for ever.
    ///
    /// # Errors
    ///
    /// [`Error::DriverGone`].
    pub async fn broken(&self) -> Result<()> {
        self.await_readiness(Direction::AwaitEnd)?.await?;
        let mut asked = [PollFd::new(&self.shared.endpoint.fd, PollFlags::empty())];
        let told = poll(&mut asked, Some(&Timespec::default()));
        if told.is_ok_and(|told| told > 0) {
            return Ok(());
        }
        // The ring reports the end of one direction, too, and would do so again.
        pending().await
    }

    /// Makes the open socket non-blocking from now on (`O_NONBLOCK`, for all of its descriptors). A
    /// [`Route`](crate::Route) that splices needs that, and then need not ask the kernel each time, nor change the
    /// flag back. The driver waits for the socket as before. If somebody clears the flag afterwards, splices wait in
    /// the kernel.
    ///
    /// ```no_run
    /// # async fn example(driver: handoff::Driver, mut listener: handoff::Listener) -> handoff::Result<()> {
    /// let (socket, _) = listener.accept().await?;
    /// socket.never_block()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// What the kernel says about the flag.
    pub fn never_block(&self) -> Result<()> {
        ioctl_fionbio(&self.shared.endpoint.fd, true)
            .map_err(|error| Error::io("having a socket not block", error.into()))?;
        self.shared.never_blocks.set(true);
        self.shared.blocks_again.set(false);
        Ok(())
    }

    fn await_readiness(&self, direction: Direction) -> Result<Readiness> {
        let socket = Attached::Socket(Rc::clone(&self.shared));
        Readiness::begin(&self.driver, socket, true, direction)
    }

    /// Asks for an engine, or leaves the choice to the socket ([`Engine::Auto`], the default).
    ///
    /// # Errors
    ///
    /// When the engine cannot work on this socket or this kernel; the choice stays as it was.
    pub fn set_engine(&self, engine: Engine) -> Result<()> {
        self.shared.check_plain("a TLS connection sends by the engine that it was made with")?;
        let unavailable = |reason| Error::EngineUnavailable { engine: engine.name(), reason };
        match engine {
            Engine::UringZc => check_uring_zc(&self.driver.core.io, &self.shared.endpoint.fd),
            Engine::MsgZerocopy if self.shared.unix => Err(UNIX_COPIES.to_owned()),
            Engine::MsgZerocopy => msg_zerocopy::claim(&self.shared),
            Engine::Auto | Engine::Copy => Ok(()),
            Engine::KernelTls | Engine::UserTls => {
                Err("a connection becomes one of TLS by handoff::tls".to_owned())
            }
        }
        .map_err(unavailable)?;
        self.shared.lender.chooser.borrow_mut().wish(engine);
        Ok(())
    }

    /// What was sent so far, and what happened to it.
    pub fn send_stats(&self) -> SendStats {
        self.shared.lender.stats.get()
    }

    /// The engine that a send of `len` bytes takes now, and why.
    pub fn choice(&self, len: usize) -> Choice {
        let lender = &self.shared.lender;
        let choice = lender.chooser.borrow().explain(len);
        if !choice.engine.lends() || !self.driver.core.unclaimed.lends_no_more(lender) {
            return choice;
        }
        Choice {
            engine: Engine::Copy,
            reason: "as many buffers as may be are on loan and nobody waits for them \
                     (DriverBuilder::unclaimed_loans)"
                .to_owned(),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.endpoint.fd.as_fd()
    }
}

impl std::fmt::Debug for Socket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Socket").field("fd", &self.shared.endpoint.fd).finish_non_exhaustive()
    }
}

/// Why sends on Unix sockets copy.
const UNIX_COPIES: &str = "Unix sockets have no zero-copy send (neither SEND_ZC nor MSG_ZEROCOPY): the kernel copies once, \
                           into the queue that the peer reads";

/// An address of a socket, as the kernel reports it.
pub(crate) fn internet_address(told: io::Result<SockAddr>) -> Result<SocketAddr> {
    told.and_then(|address| address.as_socket().ok_or_else(|| io::ErrorKind::Unsupported.into()))
        .map_err(|error| Error::io("asking for the address of a socket", error))
}

/// The zero-copy engine for sends here.
fn zero_copy_engine(io: &Io) -> Engine {
    if io.has_ring() { Engine::UringZc } else { Engine::MsgZerocopy }
}

/// Whether the kernel reports what it copied of such sends: the error queue always does.
fn tells_copies(io: &Io) -> bool {
    !io.has_ring() || io.reports_usage
}

fn check_uring_zc(io: &Io, fd: &OwnedFd) -> Result<(), String> {
    match io.why_no_ring() {
        Some(reason) => Err(format!("there is no ring: {reason}")),
        None => check_zero_copy(fd),
    }
}

fn check_zero_copy(fd: &OwnedFd) -> Result<(), String> {
    let socket = SockRef::from(fd);
    let (domain, protocol) = (socket.domain().ok(), socket.protocol().ok().flatten());
    let inet = matches!(domain, Some(Domain::IPV4 | Domain::IPV6));
    if domain == Some(Domain::UNIX) {
        return Err(UNIX_COPIES.to_owned());
    }
    if inet && matches!(protocol, Some(Protocol::TCP | Protocol::UDP)) {
        Ok(())
    } else {
        Err("the kernel sends without copying on TCP and UDP sockets only".to_owned())
    }
}
