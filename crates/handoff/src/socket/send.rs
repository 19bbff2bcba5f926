//! Sending: lent buffers, small copied headers, destinations, groups.
//!
//! Minimum kernel, capability and return signal are those of the engine that serves the send; see
//! [`Engine`](crate::Engine). Nothing waits here: a send is accepted or refused at once.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use super::Socket;
use super::group::Group;
use crate::core::Core;
#[cfg(feature = "tls")]
use crate::engine::tls;
use crate::engine::{order, sending};
use crate::error::{Error, Result};
use crate::handle::{Awaited, Cancel, Handle};
use crate::mechanism::Engine;
#[cfg(all(feature = "tls", feature = "tokio"))]
use crate::memory::Buffer;
use crate::op::ancillary::{MAX_DESCRIPTORS, Passing};
use crate::op::chooser::Pick;
use crate::op::layout::{MAX_HEADER, MAX_PIECES};
use crate::op::loan::{Extent, Payload, Refused, Returned};
use crate::op::{BackTo, SendOp};
use crate::reactor::Reactor;
use crate::receipt::Receipt;
use crate::ring::Key;
use crate::unix::UnixAddress;

/// The most buffers in one send on a stream.
const MAX_STREAM_PIECES: usize = 64 * MAX_PIECES;

impl Socket {
    /// Lends a buffer, or a vector of buffers, to be sent whole.
    ///
    /// # Errors
    ///
    /// Gives the buffer back when the send is not accepted: too many operations under way, or a
    /// stream that an earlier send left broken. [`Sent`] reports later errors.
    pub fn send<B: Payload>(&self, buffer: B) -> Result<Sending<B>, Refused<B>> {
        self.message(buffer).send()
    }

    /// Tells the peer of a TLS connection that nothing follows, behind the sends accepted before, when there is room for
    /// that.
    #[cfg(all(feature = "tls", feature = "tokio"))]
    pub(crate) fn close_behind(&self) {
        let nothing = self.message(Buffer::from(Vec::new()));
        // A stream that accepts no send has no proper end.
        if let Ok(key) = nothing.accept(|op| op.closes = true) {
            let driver = Rc::clone(&self.driver);
            drop((Sent::new(Rc::clone(&driver), key), OnLoan::<Buffer>(Handle::new(driver, key))));
        }
    }

    /// Starts a message that needs more options than [`send`](Self::send) has.
    pub fn message<B: Payload>(&self, buffer: B) -> Message<'_, B> {
        Message {
            socket: self,
            buffer,
            header: &[],
            address: None,
            segment: None,
            more: false,
            borrowed: &[],
            descriptors: Vec::new(),
        }
    }
}

/// A message before it is sent.
///
/// ```no_run
/// # async fn example(socket: &handoff::Socket, buffer: handoff::Buffer) -> Result<(), Box<dyn std::error::Error>> {
/// let sending = socket.message(buffer).header(b"the length").to("192.0.2.1:4000".parse()?).send()?;
/// println!("{} bytes", sending.await?.sent?);
/// # Ok(()) }
/// ```
#[must_use = "nothing is sent before `send` or `send_in`"]
pub struct Message<'a, B> {
    socket: &'a Socket,
    buffer: B,
    header: &'a [u8],
    address: Option<Destination<'a>>,
    segment: Option<usize>,
    more: bool,
    borrowed: &'a [BorrowedFd<'a>],
    descriptors: Vec<OwnedFd>,
}

/// Where a datagram goes.
#[derive(Clone, Copy, Debug)]
enum Destination<'a> {
    Internet(SocketAddr),
    Unix(&'a UnixAddress),
}

impl<'a, B: Payload> Message<'a, B> {
    /// Puts up to [`MAX_HEADER`](crate::MAX_HEADER) copied bytes before the lent ones: in the same
    /// datagram, or directly before them on the stream.
    pub fn header(mut self, bytes: &'a [u8]) -> Self {
        self.header = bytes;
        self
    }

    /// Says that another send follows at once on this stream: the kernel keeps the end of this one for a packet
    /// with the next, for 200 ms at most. Use it for short bytes, which are copied; lent bytes do not wait.
    pub fn more(mut self) -> Self {
        self.more = self.socket.shared.stream;
        self
    }

    /// Sends to `address`, on a datagram socket.
    pub fn to(mut self, address: SocketAddr) -> Self {
        self.address = Some(Destination::Internet(address));
        self
    }

    /// As [`to`](Self::to), on a Unix datagram socket. Sends that name a destination keep no order among each other where
    /// they have to wait; those on a connected socket do.
    pub fn to_unix(mut self, address: &'a UnixAddress) -> Self {
        self.address = Some(Destination::Unix(address));
        self
    }

    /// Sends descriptors with the message, on a Unix socket: the receiver gets its own, of the same open files. Each is
    /// duplicated now. At most 253 go with a message, and on a stream they go with its first byte.
    ///
    /// A receiver that does not ask for them ([`Socket::receive_message`]) gets the bytes only, and the kernel closes the
    /// descriptors.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::os::fd::AsFd;
    ///
    /// use handoff::{Buffer, Driver, UnixKind};
    ///
    /// let driver = Driver::new()?;
    /// let (near, far) = driver.unix_pair(UnixKind::Stream)?;
    /// let file = std::fs::File::open("/dev/null")?;
    /// driver.block_on(async {
    ///     let borrowed = [file.as_fd()];
    ///     let message = near.message(Buffer::from(b"a file".to_vec())).descriptors(&borrowed);
    ///     message.send().map_err(|refused| refused.error)?.await?.sent?;
    ///     let receiving = far.receive_message(Buffer::from(vec![0; 64]), 1);
    ///     let message = receiving.map_err(|refused| refused.error)?.await?;
    ///     assert_eq!((message.result?, message.descriptors.len()), (6, 1));
    ///     Ok::<_, handoff::Error>(())
    /// })??;
    /// # Ok(()) }
    /// ```
    pub fn descriptors(mut self, borrowed: &'a [BorrowedFd<'a>]) -> Self {
        self.borrowed = borrowed;
        self
    }

    /// As [`descriptors`](Self::descriptors), without duplicates. They are closed here when the kernel has taken the
    /// message, and when it is refused, cancelled or fails.
    pub fn give_descriptors(mut self, owned: Vec<OwnedFd>) -> Self {
        self.descriptors = owned;
        self
    }

    /// Sends the bytes as datagrams of `bytes` each; the last may be shorter (UDP segmentation offload). The
    /// kernel or the NIC cuts messages of up to 60 KiB and 64 datagrams. A header is the beginning of the first
    /// datagram.
    ///
    /// If a datagram fails, those before it are sent, and the receipt counts their bytes. A datagram too long
    /// for the path fails with [`Error::MessageTooLong`], which names the path's MTU if the socket is
    /// connected.
    ///
    /// ```
    /// use handoff::{Buffer, Driver};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let driver = Driver::new()?;
    /// let (near, far) = (std::net::UdpSocket::bind("127.0.0.1:0")?, std::net::UdpSocket::bind("127.0.0.1:0")?);
    /// near.connect(far.local_addr()?)?;
    /// let socket = driver.socket(near)?;
    /// let message = socket.message(Buffer::from(vec![7; 3000])).segment(1200);
    /// let sending = message.send().map_err(|refused| refused.error)?;
    /// assert_eq!(driver.block_on(async { sending.await })??.sent?, 3000);
    /// for len in [1200, 1200, 600] {
    ///     assert_eq!(far.recv(&mut [0; 2000])?, len);
    /// }
    /// # Ok(()) }
    /// ```
    pub fn segment(mut self, bytes: usize) -> Self {
        self.segment = Some(bytes);
        self
    }

    /// Lends the buffer and accepts the send.
    ///
    /// # Errors
    ///
    /// As [`Socket::send`].
    #[inline]
    pub fn send(self) -> Result<Sending<B>, Refused<B>> {
        let driver = Rc::clone(&self.socket.driver);
        let key = self.accept(|_| {})?;
        Ok(Sending {
            sent: Sent::new(Rc::clone(&driver), key),
            loan: OnLoan(Handle::new(driver, key)),
        })
    }

    /// As [`send`](Self::send), but the buffer returns together with all of `group`.
    ///
    /// # Errors
    ///
    /// As [`Socket::send`], and when the group belongs to another driver than the socket.
    #[inline]
    pub fn send_in(self, group: &mut Group<B>) -> Result<Sent, Refused<B>> {
        let driver = Rc::clone(&self.socket.driver);
        if !group.is_of(&driver) {
            let error = Error::Invalid("the group belongs to another driver than the socket");
            return Err(Refused { buffer: self.buffer, error });
        }
        let group = group.key();
        let key = self.accept(|op| {
            op.lent.back_to = BackTo::Group(group);
            driver.core.groups.borrow_mut().join(group);
        })?;
        Ok(Sent::new(driver, key))
    }

    /// Whether this message can carry a buffer of the kernel.
    #[cold]
    fn check_lease(&self, extent: Extent) -> Result<()> {
        let shared = &self.socket.shared;
        extent.check_home(|| self.socket.driver.core.io.ring_id())?;
        shared.check_plain("a lease cannot be sent over TLS: read it into memory first")?;
        if !shared.stream && !self.header.is_empty() {
            return Err(Error::Invalid(
                "a header can't go before a lease in one datagram: send it by itself",
            ));
        }
        if shared.lender.chooser.borrow().is_wished(Engine::MsgZerocopy) {
            return Err(Error::Invalid(
                "MSG_ZEROCOPY takes user memory only: a lease goes by the engines uring-zc and copy",
            ));
        }
        Ok(())
    }

    /// Whether the message can go as several datagrams.
    #[cold]
    fn check_segment(&self, bytes: usize, extent: Extent) -> Result<()> {
        if !self.socket.shared.udp {
            return Err(Error::Invalid("only a UDP socket sends a buffer as several datagrams"));
        }
        if !(1..=65_507).contains(&bytes) {
            return Err(Error::Invalid("a buffer goes as datagrams of 1 to 65507 bytes each"));
        }
        if extent.home.is_some() {
            return Err(Error::Invalid("a lease goes as one datagram: send parts of it"));
        }
        Ok(())
    }

    /// Whether the socket can send to such an address.
    #[cold]
    fn check_destination(&self, destination: Destination<'_>) -> Result<()> {
        let why = match (destination, self.socket.shared.unix) {
            (Destination::Unix(address), true) if address.is_unnamed() => {
                "nobody has no name: a message goes to a path or an abstract name"
            }
            (Destination::Internet(_), false) | (Destination::Unix(_), true) => return Ok(()),
            (Destination::Internet(_), true) => {
                "a Unix socket sends to names of Unix sockets: use Message::to_unix"
            }
            (Destination::Unix(_), false) => "only a Unix socket sends to a name of one",
        };
        Err(Error::Invalid(why))
    }

    /// Whether the message can carry descriptors.
    #[cold]
    fn check_descriptors(&self, extent: Extent) -> Result<()> {
        let shared = &self.socket.shared;
        let why = if shared.is_ciphered() {
            "TLS carries bytes only: pass descriptors before it begins"
        } else if !shared.unix {
            "only a Unix socket passes descriptors"
        } else if self.borrowed.len() + self.descriptors.len() > MAX_DESCRIPTORS {
            "a message carries 253 descriptors at most"
        } else if shared.stream && extent.bytes + self.header.len() == 0 {
            "on a stream descriptors go with a byte: send at least one"
        } else if extent.home.is_some() {
            "descriptors go with user memory only: send them before the lease"
        } else {
            return Ok(());
        };
        Err(Error::Invalid(why))
    }

    /// Takes the descriptors together, duplicating those of others.
    #[cold]
    fn passing(&mut self) -> Result<Box<Passing>> {
        let mut all = std::mem::take(&mut self.descriptors);
        for borrowed in self.borrowed {
            let duplicate = borrowed.try_clone_to_owned().map_err(|error| {
                let errno = error.raw_os_error().unwrap_or(libc::EIO);
                Error::descriptor("duplicating a descriptor to pass", errno)
            });
            all.push(duplicate?);
        }
        Ok(Box::new(Passing::new(all)))
    }

    /// Whether any descriptors go with the message.
    fn passes(&self) -> bool {
        !self.borrowed.is_empty() || !self.descriptors.is_empty()
    }

    /// Why the message cannot be accepted; `None` if it can.
    #[inline(always)]
    fn refusal(&self, extent: Extent) -> Option<Error> {
        let shared = &self.socket.shared;
        if self.header.len() > MAX_HEADER {
            return Some(Error::Invalid(
                "a header before a lent payload is at most 64 bytes (MAX_HEADER)",
            ));
        }
        if extent.home.is_some()
            && let Err(error) = self.check_lease(extent)
        {
            return Some(error);
        }
        if let Some(bytes) = self.segment
            && let Err(error) = self.check_segment(bytes, extent)
        {
            return Some(error);
        }
        if let Some(destination) = self.address
            && let Err(error) = self.check_destination(destination)
        {
            return Some(error);
        }
        if self.passes()
            && let Err(error) = self.check_descriptors(extent)
        {
            return Some(error);
        }
        if shared.packets && extent.bytes + self.header.len() == 0 {
            return Some(Error::Invalid(
                "an empty message on a seqpacket socket looks like the end to its receiver: send at least a byte",
            ));
        }
        let most = if shared.stream { MAX_STREAM_PIECES } else { MAX_PIECES - 1 };
        if extent.pieces > most {
            return Some(Error::Invalid(
                "a datagram takes at most 1023 buffers, a send on a stream 65536",
            ));
        }
        let room = self.socket.driver.core.check_room();
        room.err().or_else(|| shared.queue.borrow().refusal())
    }

    /// Not inlined, so that the callers' handles need not go through memory.
    #[inline(never)]
    fn accept(mut self, adapt: impl FnOnce(&mut SendOp)) -> Result<Key, Refused<B>> {
        let shared = &self.socket.shared;
        let driver = &*self.socket.driver;
        let extent = self.buffer.extent();
        if let Some(error) = self.refusal(extent) {
            return Err(Refused { buffer: self.buffer, error });
        }
        let passing = match self.passes().then(|| self.passing()).transpose() {
            Ok(passing) => passing,
            Err(error) => return Err(Refused { buffer: self.buffer, error }),
        };
        let size = extent.bytes + self.header.len();
        // The cost of copying from a lease says nothing about user memory.
        let mut pick = shared.lender.chooser.borrow_mut().pick(size, || {
            extent.home.is_none()
                && (!shared.stream || shared.queue.borrow().is_idle())
                && driver.core.is_quiet()
                // Its work is not this thread's.
                && !driver.core.io.is_polled
        });
        if pick.engine.lends() && driver.core.unclaimed.lends_no_more(&shared.lender) {
            if !shared.lender.chooser.borrow().is_free() {
                let error = Error::Busy { limit: driver.core.unclaimed.share() };
                return Err(Refused { buffer: self.buffer, error });
            }
            pick = Pick { engine: Engine::Copy, timed: false };
        }
        let mut records = driver.core.records.borrow_mut();
        let socket = Rc::clone(shared);
        let header_len = self.header.len();
        let (key, op, layout) =
            records.insert_send(|| SendOp::new(socket, pick.engine, size, header_len));
        op.lent.lend(self.buffer.into_loan());
        if let Some(bytes) = self.segment {
            op.segment = bytes as u16;
        }
        op.more = self.more;
        op.passing = passing;
        #[cfg(feature = "tls")]
        {
            op.by_slot = tls::goes_by_slot(&driver.core, op);
        }
        adapt(op);
        if !self.header.is_empty() {
            layout.set_header(self.header);
        }
        if let Some(address) = self.address {
            layout.set_address(match address {
                Destination::Internet(address) => address.into(),
                Destination::Unix(address) => address.as_socket_address().clone(),
            });
            op.addressed = true;
        }
        if pick.timed {
            let cost = driver.time(|| order::accept(&driver.core, records, shared, key));
            let settled = driver.core.records.borrow_mut().send(key).is_settled();
            // A send that waits for room says nothing about the cost of copying.
            if let (true, Some(nanos)) = (settled, cost) {
                shared.lender.chooser.borrow_mut().timed(size, pick.engine, nanos);
            }
        } else {
            order::accept(&driver.core, records, shared, key);
        }
        Ok(key)
    }
}

impl<B> fmt::Debug for Message<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message").field("address", &self.address).finish_non_exhaustive()
    }
}

/// An accepted send: two events to wait for, together or apart.
///
/// Await it for both. If you drop it, the send goes on, and its buffer is dropped when it comes back. It ends with an
/// error only where [`OnLoan`] does.
///
/// ```no_run
/// # async fn example(socket: &handoff::Socket, buffer: handoff::Buffer) -> Result<(), Box<dyn std::error::Error>> {
/// let (sent, on_loan) = socket.send(buffer)?.split();
/// println!("the kernel took {} bytes", sent.await?);
/// let returned = on_loan.await?;
/// println!("and gave {} back", returned.buffer.len());
/// # Ok(()) }
/// ```
#[must_use = "the buffer is dropped when it comes back and nobody waits for it"]
#[derive(Debug)]
pub struct Sending<B: Payload> {
    sent: Sent,
    loan: OnLoan<B>,
}

impl<B: Payload> Sending<B> {
    /// Takes the two events apart: the kernel took the bytes, and the buffer is free again.
    pub fn split(self) -> (Sent, OnLoan<B>) {
        (self.sent, self.loan)
    }

    /// Cancels the send if this, or its future or [`Sent`], is dropped before the kernel has taken all
    /// bytes.
    pub fn cancel_on_drop(mut self) -> Self {
        self.sent.cancels = true;
        self
    }
}

/// The result of a send.
///
/// ```no_run
/// # async fn example(socket: &handoff::Socket, buffer: handoff::Buffer) -> Result<(), Box<dyn std::error::Error>> {
/// let finished = socket.send(buffer)?.await?;
/// println!("{} bytes sent, {}", finished.sent?, finished.receipt.outcome());
/// let buffer_for_the_next = finished.buffer;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Finished<B> {
    /// Bytes that the kernel took, header included, or the error.
    pub sent: Result<usize>,
    /// The buffer.
    pub buffer: B,
    /// What happened to the bytes.
    pub receipt: Receipt,
}

impl<B: Payload> IntoFuture for Sending<B> {
    type Output = Result<Finished<B>>;
    type IntoFuture = Finishing<B>;

    fn into_future(self) -> Finishing<B> {
        Finishing { sent: self.sent, loan: self.loan, result: None }
    }
}

/// The future of both events of a send. It ends with an error only where [`OnLoan`] does.
///
/// ```no_run
/// # async fn example(driver: &handoff::Driver, socket: &handoff::Socket, buffer: handoff::Buffer) -> Result<(), Box<dyn std::error::Error>> {
/// let sending = socket.send(buffer)?.into_future();
/// let finished = driver.cancel_after(std::time::Duration::from_secs(1), sending).await?;
/// println!("{:?}, and the buffer is back: {}", finished.sent, finished.buffer.len());
/// # Ok(()) }
/// ```
#[must_use = "futures do nothing unless polled"]
#[derive(Debug)]
pub struct Finishing<B: Payload> {
    sent: Sent,
    loan: OnLoan<B>,
    result: Option<Result<usize>>,
}

impl<B: Payload> Cancel for Finishing<B> {
    /// As of [`Sent`]; the buffer comes back as usual.
    fn cancel(&self) {
        self.sent.cancel();
    }
}

impl<B: Payload> Future for Finishing<B> {
    type Output = Result<Finished<B>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if this.result.is_none() {
            match Pin::new(&mut this.sent).poll(context) {
                Poll::Ready(result) => this.result = Some(result),
                Poll::Pending => return Poll::Pending,
            }
        }
        let Returned { buffer, receipt } = ready!(Pin::new(&mut this.loan).poll(context))?;
        let sent = this.result.take().expect("the result came before the buffer");
        Poll::Ready(Ok(Finished { sent, buffer, receipt }))
    }
}

/// The kernel took the bytes of a send: a future of their count, header included.
///
/// ```no_run
/// # async fn example(socket: &handoff::Socket, buffer: handoff::Buffer) -> Result<(), Box<dyn std::error::Error>> {
/// let (sent, on_loan) = socket.send(buffer)?.split();
/// drop(on_loan); // nobody needs the buffer again
/// println!("{} bytes", sent.await?);
/// # Ok(()) }
/// ```
#[must_use = "dropped, it hides whether the send failed"]
#[derive(Debug)]
pub struct Sent {
    handle: Handle<Taken>,
    cancels: bool,
}

/// The kernel took the bytes of a send.
pub(crate) enum Taken {}

impl Awaited for Taken {
    type Key = Key;
    type Output = Result<usize>;

    fn take(core: &Core, key: Key) -> Option<Result<usize>> {
        sending::take_sent(core, key)
    }

    fn wait(core: &Core, key: Key, waker: Waker) -> Option<Waker> {
        core.records.borrow_mut().send(key).sent.wait(waker)
    }

    fn let_go(core: &Core, key: Key) {
        sending::let_go(core, key, |op| op.sent.leave());
    }

    fn without_driver(error: Error) -> Result<usize> {
        Err(error)
    }
}

impl Sent {
    fn new(driver: Rc<Reactor>, key: Key) -> Self {
        Self { handle: Handle::new(driver, key), cancels: false }
    }

    /// The result, once there is one.
    ///
    /// # Errors
    ///
    /// Returns itself until then.
    pub fn try_take(mut self) -> Result<Result<usize>, Self> {
        self.handle.take().ok_or(self)
    }

    /// The result as a future, for callers that let others have their turns.
    #[cfg(feature = "tokio")]
    pub(crate) fn poll_taken(&mut self, context: &mut Context<'_>) -> Poll<Result<usize>> {
        self.handle.poll_taken(context)
    }

    /// Cancels the send if you drop this before it has the result. Otherwise a send whose `Sent` is dropped
    /// goes on.
    pub fn cancel_on_drop(mut self) -> Self {
        self.cancels = true;
        self
    }

    /// Asks for the send to end early. It then ends with [`Error::Canceled`], or as usual if the request
    /// comes too late; on a stream, a send that stopped midway breaks the stream. A send that the kernel
    /// has queued behind another of its stream is asked to end when that one is through.
    pub fn cancel(&self) {
        if let Some(key) = self.handle.key_here() {
            order::cancel(&self.handle.driver().core, key);
        }
    }
}

impl Cancel for Sent {
    fn cancel(&self) {
        self.cancel();
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        if self.cancels {
            self.cancel();
        }
    }
}

impl Future for Sent {
    type Output = Result<usize>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<usize>> {
        Pin::new(&mut self.handle).poll(context)
    }
}

/// A buffer that the kernel holds: a future of its return.
///
/// If the last [`Driver`](crate::Driver) is dropped while the kernel has the buffer, this ends with
/// [`Error::DriverGone`]. The buffer stays with the kernel, and its memory is freed when the kernel lets go of it.
///
/// ```no_run
/// # async fn example(socket: &handoff::Socket, buffer: handoff::Buffer) -> Result<(), Box<dyn std::error::Error>> {
/// let (sent, on_loan) = socket.send(buffer)?.split();
/// sent.await?;
/// let mut returned = on_loan.await?;
/// returned.buffer.fill(0); // the kernel reads it no more
/// # Ok(()) }
/// ```
#[must_use = "the buffer is dropped when it comes back and nobody waits for it"]
#[derive(Debug)]
pub struct OnLoan<B: Payload>(Handle<Back<B>>);

/// The kernel has let go of the buffer of a send.
pub(crate) struct Back<B>(PhantomData<B>);

impl<B: Payload> Awaited for Back<B> {
    type Key = Key;
    type Output = Result<Returned<B>>;

    fn take(core: &Core, key: Key) -> Option<Self::Output> {
        sending::take_back(core, key, B::from_loan).map(Ok)
    }

    fn wait(core: &Core, key: Key, waker: Waker) -> Option<Waker> {
        core.records.borrow_mut().send(key).lent.wait(waker)
    }

    fn let_go(core: &Core, key: Key) {
        sending::let_go(core, key, |op| op.lent.give_up());
    }

    fn without_driver(error: Error) -> Self::Output {
        Err(error)
    }
}

impl<B: Payload> OnLoan<B> {
    /// The buffer, once it is back.
    ///
    /// # Errors
    ///
    /// Returns itself until then: for ever if the driver is gone, which only awaiting tells.
    pub fn try_take(mut self) -> Result<Returned<B>, Self> {
        let taken = self.0.take_by(|core, key| sending::take_back(core, key, B::from_loan));
        taken.ok_or(self)
    }
}

impl<B: Payload> Future for OnLoan<B> {
    type Output = Result<Returned<B>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context)
    }
}

impl<B: Payload> Unpin for OnLoan<B> {}
impl<B: Payload> Unpin for Finishing<B> {}
