//! Whether a socket can be read or written now, and calls that never wait.
//!
//! Minimum kernel: that of [`call`](super::call). Nothing is lent.
//!
//! Contracts:
//! - readiness is as it is at the time of the question, also where it was looked at before: bytes that this process has
//!   deciphered, or an end that it knows of, count as readable; a stream whose sends are not all with the kernel is not
//!   writable, so nothing overtakes them;
//! - a wait moves nothing, so you may drop it at any time;
//! - nothing passes beside a cipher.

use std::cell::Cell;
use std::future::poll_fn;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use ::tokio::io::{Interest, Ready};
use ::tokio::task::coop::poll_proceed;
use bytes::BufMut;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvAncillaryBuffer, RecvFlags, recvmsg};

use super::call::{MAX_SLICES, Receiving, as_uninit, receive};
use crate::error::{Error, Result};
use crate::op::Waiting;
use crate::reactor::Reactor;
use crate::sleep::Sleep;
use crate::socket::Socket;
use crate::transfer::Readiness;

/// When to look again for room that nothing tells of.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// A wait for readiness.
#[derive(Debug, Default)]
pub(super) struct Waits {
    /// Of an earlier receive, which was dropped, and of the kernel for something to receive.
    pub(super) receiving: Receiving,
    /// The end of the sends before.
    pub(super) flushing: Waiting,
    pub(super) writing: Option<Readiness>,
    /// Until it is time to look for room that nothing tells of.
    pause: Option<Sleep>,
}

/// Whether a call has found no room since the kernel last told of some. Poll(2) tells only of a third of a buffer, and a
/// call takes less.
#[derive(Debug, Default)]
pub(super) struct Full(Cell<Room>);

#[derive(Clone, Copy, Debug, Default)]
enum Room {
    /// No call has found that there is none.
    #[default]
    Perhaps,
    No,
    /// The same, and nothing tells of room: it is looked for from then on.
    NoAndUntold(Instant),
}

impl Full {
    /// A call has found no room, and nothing will tell of some.
    pub(super) fn set_untold(&self) {
        self.0.set(Room::NoAndUntold(Instant::now() + LOOK_AGAIN));
    }

    /// A call has found no room. Poll(2) does not look at the peer of an address, `addressed` says whether there may be one.
    fn set(&self, socket: &Socket, addressed: bool) {
        match addressed && socket.shared.unix && !socket.shared.has_end() {
            true => self.set_untold(),
            false => self.0.set(Room::No),
        }
    }

    /// Waits until it is time to look for room.
    fn poll_told(
        &self,
        pause: &mut Option<Sleep>,
        driver: &Rc<Reactor>,
        context: &mut Context<'_>,
    ) -> Poll<Result<()>> {
        if let Room::NoAndUntold(due) = self.0.get() {
            let pause = pause.get_or_insert_with(|| Sleep::new(driver, due));
            ready!(Pin::new(pause).poll(context))?;
            self.0.set(Room::No);
        }
        *pause = None;
        Poll::Ready(Ok(()))
    }
}

/// Waits until the socket is ready for one of these. `is_free` says whether nothing that was accepted for it waits
/// elsewhere.
pub(super) async fn ready(
    socket: &Socket,
    interest: Interest,
    full: &Full,
    mut is_free: impl FnMut(&mut Waiting, &mut Context<'_>) -> bool,
) -> io::Result<Ready> {
    if !interest.is_readable() && !interest.is_writable() {
        return Err(Error::Invalid(
            "a socket is waited for to be readable or writable: errors are told with either",
        )
        .into());
    }
    let mut waits = Waits::default();
    poll_fn(|context| {
        let writes = interest.is_writable() && is_free(&mut waits.flushing, context);
        let writes = writes.then_some(full);
        poll_ready(socket, &mut waits, interest.is_readable(), writes, context)
    })
    .await
}

/// The same, asked once. `writes` is given where somebody wants to write and nothing waits elsewhere.
pub(super) fn poll_ready(
    socket: &Socket,
    waits: &mut Waits,
    reads: bool,
    writes: Option<&Full>,
    context: &mut Context<'_>,
) -> Poll<io::Result<Ready>> {
    let budget = ready!(poll_proceed(context));
    socket.driver.core.check_driven()?;
    let reads = reads
        && socket.shared.reception.poll_free(&mut waits.receiving.before, context)?.is_ready();
    // An error is told by the call.
    let mut writes = writes.filter(|_| {
        !socket.shared.keeps_order() || socket.poll_flush(&mut waits.flushing, context).is_ready()
    });
    if let Some(full) = writes
        && full.poll_told(&mut waits.pause, &socket.driver, context)?.is_pending()
    {
        writes = None;
    }
    loop {
        let ready = look(socket, reads, writes)?;
        if !ready.is_empty() {
            budget.made_progress();
            return Poll::Ready(Ok(ready));
        }
        let mut again = false;
        if reads {
            again |= wakes(&mut waits.receiving.readiness, || socket.readable(), context)?;
        }
        if writes.is_some() {
            again |= wakes(&mut waits.writing, || socket.writable(), context)?;
        }
        if !again {
            return Poll::Pending;
        }
    }
}

/// Waits by the driver; returns whether the wait is over.
fn wakes(
    waiting: &mut Option<Readiness>,
    begin: impl FnOnce() -> Result<Readiness>,
    context: &mut Context<'_>,
) -> Result<bool> {
    let readiness = match waiting {
        Some(readiness) => readiness,
        None => waiting.insert(begin()?),
    };
    // The call itself best reports what is wrong with the socket, but not that the driver is gone.
    match Pin::new(readiness).poll(context) {
        Poll::Ready(over) => {
            *waiting = None;
            match over {
                Err(Error::DriverGone) => Err(Error::DriverGone),
                _ => Ok(true),
            }
        }
        Poll::Pending => Ok(false),
    }
}

/// What can be done now, of what is asked for.
fn look(socket: &Socket, reads: bool, writes: Option<&Full>) -> io::Result<Ready> {
    let mut ready = Ready::EMPTY;
    if !reads && writes.is_none() {
        return Ok(ready);
    }
    let mut events = PollFlags::empty();
    if reads {
        events |= PollFlags::IN | PollFlags::RDHUP;
    }
    if writes.is_some() {
        events |= PollFlags::OUT;
    }
    let mut asked = [PollFd::new(socket, events)];
    uninterrupted(|| Ok(poll(&mut asked, Some(&Timespec::default()))?))?;
    let told = asked[0].revents();
    // The error queue tells of returned sends in the same way: the driver's turns empty it.
    let failed = told.intersects(PollFlags::ERR)
        && (told.intersects(PollFlags::HUP) || socket.shared.outstanding.borrow().sends.is_empty());
    if reads {
        let ended = told.intersects(PollFlags::HUP | PollFlags::RDHUP)
            || socket.shared.stream && socket.shared.is_at_its_end();
        if ended {
            ready |= Ready::READ_CLOSED;
        }
        if ended || failed || told.contains(PollFlags::IN) || socket.shared.has_deciphered() {
            ready |= Ready::READABLE;
        }
    }
    if let Some(Full(full)) = writes {
        if told.intersects(PollFlags::HUP) {
            ready |= Ready::WRITE_CLOSED;
        }
        if failed || told.intersects(PollFlags::OUT | PollFlags::HUP) {
            full.set(Room::Perhaps);
        }
        if matches!(full.get(), Room::Perhaps) {
            ready |= Ready::WRITABLE;
        }
    }
    if failed {
        ready |= Ready::ERROR;
    }
    Ok(ready)
}

fn would_block<T>() -> io::Result<T> {
    Err(io::ErrorKind::WouldBlock.into())
}

/// Whether a call may take what comes next. Not while the kernel has a dropped receive, whose bytes come before.
fn check_receiving(socket: &Socket) -> io::Result<()> {
    socket.driver.core.check_there()?;
    let reception = &socket.shared.reception;
    reception.check_free()?;
    if reception.is_leaving() {
        return would_block();
    }
    Ok(reception.check_whole()?)
}

/// Whether a call may send. Not while sends that were accepted before are on their way to the kernel.
fn check_sending(socket: &Socket) -> io::Result<()> {
    socket.driver.core.check_there()?;
    if !socket.shared.keeps_order() {
        return Ok(());
    }
    let queue = socket.shared.queue.borrow();
    match queue.refusal() {
        Some(error) => Err(error.into()),
        None if queue.is_idle() => Ok(()),
        None => would_block(),
    }
}

/// Makes a call that receives, if one may now.
pub(super) fn try_receiving<T>(
    socket: &Socket,
    call: impl FnMut() -> io::Result<T>,
) -> io::Result<T> {
    check_receiving(socket)?;
    uninterrupted(call)
}

/// Makes a call that sends, to an address of its own or not, if one may now.
pub(super) fn try_sending<T>(
    socket: &Socket,
    full: &Full,
    addressed: bool,
    call: impl FnMut() -> io::Result<T>,
) -> io::Result<T> {
    check_sending(socket)?;
    uninterrupted(call).inspect_err(|error| {
        if error.kind() == io::ErrorKind::WouldBlock {
            full.set(socket, addressed);
        }
    })
}

fn uninterrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            over => return over,
        }
    }
}

/// Receives what there is, in a stream's order.
pub(super) fn try_read(socket: &Socket, room: &mut [MaybeUninit<u8>]) -> io::Result<usize> {
    match room.is_empty() {
        true => Ok(0),
        false => try_receiving(socket, || receive(socket, room, false)),
    }
}

/// Has `read` fill the room behind a buffer's bytes; it returns how many bytes it has written there.
pub(super) fn into_buf<B: BufMut + ?Sized, T>(
    buffer: &mut B,
    read: impl FnOnce(&mut [MaybeUninit<u8>]) -> io::Result<(usize, T)>,
) -> io::Result<(usize, T)> {
    // SAFETY: nobody writes anything uninitialised there.
    let room = unsafe { buffer.chunk_mut().as_uninit_slice_mut() };
    let (bytes, beside) = read(room)?;
    // SAFETY: so many were written.
    unsafe { buffer.advance_mut(bytes) };
    Ok((bytes, beside))
}

/// Makes a user's own call on the descriptor.
pub(super) fn try_io<T>(
    socket: &Socket,
    interest: Interest,
    full: &Full,
    call: impl FnOnce() -> io::Result<T>,
) -> io::Result<T> {
    #[cfg(feature = "tls")]
    if socket.shared.is_ciphered() {
        return Err(Error::Invalid(
            "a call on the descriptor of a TLS connection would pass beside its cipher: use try_read and try_write",
        )
        .into());
    }
    if interest.is_readable() {
        check_receiving(socket)?;
    }
    if interest.is_writable() {
        check_sending(socket)?;
    }
    call().inspect_err(|error| {
        if interest.is_writable() && error.kind() == io::ErrorKind::WouldBlock {
            full.set(socket, true);
        }
    })
}

/// Receives into several slices, one after another; into the first alone where the bytes are deciphered.
pub(super) fn try_read_vectored(
    socket: &Socket,
    slices: &mut [IoSliceMut<'_>],
) -> io::Result<usize> {
    let Some(first) = slices.iter().position(|slice| !slice.is_empty()) else { return Ok(0) };
    let end = slices.len().min(first + MAX_SLICES);
    let slices = &mut slices[first..end];
    if socket.shared.is_ciphered() {
        // SAFETY: bytes that are initialised are written over by such.
        return try_read(socket, unsafe { as_uninit(&mut slices[0]) });
    }
    try_receiving(socket, || {
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        Ok(recvmsg(socket, slices, &mut RecvAncillaryBuffer::default(), flags)?.bytes)
    })
}
