//! Reads, writes and receives under way, as futures of the buffer.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use socket2::SockAddr;

use crate::core::Core;
use crate::engine::transfer;
use crate::error::{Error, Result};
use crate::file::rw_flags::RwFlags;
use crate::handle::{Awaited, Cancel, Handle};
use crate::memory::Buffer;
use crate::op::loan::{AsLoan as _, Lendable, Refused};
use crate::op::{Attached, Direction, Op, SocketShared, TransferOp};
use crate::reactor::Reactor;
use crate::ring::Key;

/// A read, write or receive under way: a future of the buffer and of the bytes moved.
///
/// Dropping it cancels a read or receive. For a write, the request under way goes on, and the rest is not
/// written. The buffer is kept until the kernel is done. Bytes that a dropped receive had taken of a stream are
/// lost, and the next receive fails with [`Error::ReceivedLost`].
///
/// If the last [`Driver`](crate::Driver) is dropped, the operation is cancelled, and this gives the buffer back. Where
/// the kernel does not let go of it, such as for a read from a disk that does not answer, this ends with
/// [`Error::DriverGone`]. The buffer stays with the kernel, and its memory is freed when the kernel lets go of it.
///
/// ```no_run
/// # async fn example(file: handoff::File, buffer: handoff::Buffer) -> Result<(), Box<dyn std::error::Error>> {
/// let read = file.read_at(buffer, 0)?.await?;
/// println!("{} bytes: {:?}", read.result?, &read.buffer[..]);
/// # Ok(()) }
/// ```
#[must_use = "the buffer is dropped when it comes back and nobody waits for it"]
#[derive(Debug)]
pub struct Transfer<B: Lendable>(Handle<Moved<B>>);

/// The result of a read, write or receive.
///
/// ```no_run
/// # async fn example(socket: &handoff::Socket, buffer: handoff::Buffer) -> Result<(), Box<dyn std::error::Error>> {
/// let received = socket.receive_exact(buffer)?.await?;
/// match received.result {
///     Ok(bytes) => println!("all {bytes} bytes"),
///     Err(error) => println!("{error}; the buffer is back: {}", received.buffer.len()),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Transferred<B> {
    /// Bytes moved, or the error.
    pub result: Result<usize>,
    /// The buffer.
    pub buffer: B,
}

/// The transfer is over.
pub(crate) struct Moved<B>(PhantomData<B>);

impl<B: Lendable> Awaited for Moved<B> {
    type Key = Key;
    type Output = Result<Transferred<B>>;

    fn take(core: &Core, key: Key) -> Option<Self::Output> {
        take(core, key).map(Ok)
    }

    fn wait(core: &Core, key: Key, waker: Waker) -> Option<Waker> {
        core.records.borrow_mut().transfer(key).holder.wait(waker)
    }

    fn let_go(core: &Core, key: Key) {
        transfer::let_go(core, key);
    }

    fn without_driver(error: Error) -> Self::Output {
        Err(error)
    }
}

fn take<B: Lendable>(core: &Core, key: Key) -> Option<Transferred<B>> {
    let (loan, result) = transfer::take(core, key)?;
    Some(Transferred { result, buffer: B::from_loan(loan) })
}

pub(crate) fn start<A: Awaited<Key = Key>>(driver: &Rc<Reactor>, op: TransferOp) -> Handle<A> {
    let key = driver.core.records.borrow_mut().insert(|| Op::Transfer(op));
    transfer::begin(&driver.core, key);
    Handle::new(Rc::clone(driver), key)
}

impl<B: Lendable> Transfer<B> {
    /// Starts a transfer on something attached to the driver.
    pub(crate) fn begin(
        driver: &Rc<Reactor>,
        file: Attached,
        pollable: bool,
        direction: Direction,
        offset: Option<u64>,
        buffer: B,
    ) -> Result<Self, Refused<B>> {
        Self::begin_with(driver, file, pollable, direction, offset, buffer, RwFlags::NONE)
    }

    /// As [`begin`](Self::begin), for a read or write with flags.
    pub(crate) fn begin_with(
        driver: &Rc<Reactor>,
        file: Attached,
        pollable: bool,
        direction: Direction,
        offset: Option<u64>,
        buffer: B,
        flags: RwFlags,
    ) -> Result<Self, Refused<B>> {
        let checked = buffer.extent().check_home(|| driver.core.io.ring_id());
        if let Err(error) = checked.and_then(|()| driver.core.check_room()) {
            return Err(Refused { buffer, error });
        }
        let mut op = TransferOp::new(file, pollable, direction, offset, buffer.into_loan());
        op.flags = flags;
        Ok(Self(start(driver, op)))
    }

    /// Asks for it to end early, with what was moved by then. It ends with [`Error::Canceled`], which says
    /// how many bytes that are, or as usual if the request comes too late; the buffer comes back in both
    /// cases.
    pub fn cancel(&self) {
        if let Some(key) = self.0.key_here() {
            transfer::cancel(&self.0.driver().core, key);
        }
    }

    /// Buffer and result, once the operation is over.
    ///
    /// # Errors
    ///
    /// Returns itself until then: for ever if the driver is gone, which only awaiting tells.
    pub fn try_take(mut self) -> Result<Transferred<B>, Self> {
        self.0.take_by(take).ok_or(self)
    }
}

impl<B: Lendable> Cancel for Transfer<B> {
    fn cancel(&self) {
        self.cancel();
    }
}

impl<B: Lendable> Future for Transfer<B> {
    type Output = Result<Transferred<B>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context)
    }
}

impl<B: Lendable> Unpin for Transfer<B> {}

/// A wait for a file or socket to become readable or writable, as of [`File::readable`](crate::File::readable)
/// and [`Socket::readable`](crate::Socket::readable). Nothing moves, so dropping it loses nothing.
///
/// Waits do not count as operations under way; their number is not limited.
#[must_use = "futures do nothing unless polled"]
#[derive(Debug)]
pub struct Readiness(Handle<Over>);

/// An operation that lends nothing is over.
pub(crate) enum Over {}

impl Awaited for Over {
    type Key = Key;
    type Output = Result<()>;

    fn take(core: &Core, key: Key) -> Option<Result<()>> {
        transfer::take(core, key).map(|(_, over)| over.map(|_| ()))
    }

    fn wait(core: &Core, key: Key, waker: Waker) -> Option<Waker> {
        core.records.borrow_mut().transfer(key).holder.wait(waker)
    }

    fn let_go(core: &Core, key: Key) {
        transfer::let_go(core, key);
    }

    fn without_driver(error: Error) -> Result<()> {
        Err(error)
    }
}

/// Starts to connect a socket.
pub(crate) fn connect(
    driver: &Rc<Reactor>,
    socket: &Rc<SocketShared>,
    address: SockAddr,
) -> Result<Handle<Over>> {
    driver.core.check_room()?;
    let mut op = lending_nothing(Attached::Socket(Rc::clone(socket)), true, Direction::Connect);
    op.address = Some(Box::new(address));
    Ok(start(driver, op))
}

fn lending_nothing(file: Attached, pollable: bool, direction: Direction) -> TransferOp {
    TransferOp::new(file, pollable, direction, None, Vec::<Buffer>::new().into_loan())
}

impl Readiness {
    /// Starts to wait on something attached to the driver.
    pub(crate) fn begin(
        driver: &Rc<Reactor>,
        file: Attached,
        pollable: bool,
        direction: Direction,
    ) -> Result<Self> {
        driver.core.check_there()?;
        Ok(Self(start(driver, lending_nothing(file, pollable, direction))))
    }
}

impl Future for Readiness {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.0).poll(context)
    }
}
