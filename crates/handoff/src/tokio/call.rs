//! Calls on a socket that copy once, in the kernel, and wait through the driver.
//!
//! Minimum kernel: 5.1 with a ring (`POLL_ADD`), any without. Capability: none. Nothing is lent.
//!
//! Contracts:
//! - bytes move only in a call whose result the caller gets, so you may drop a wait at any time;
//! - calls obey tokio's cooperative scheduling, so that a socket which never runs dry delays no other task of the
//!   thread, nor the driver.

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use ::tokio::task::coop::poll_proceed;
use rustix::net::{RecvFlags, recv};

use crate::error::Result;
use crate::op::Waiting;
use crate::socket::Socket;
use crate::transfer::Readiness;

/// The most slices that a call takes (`UIO_MAXIOV`).
pub(super) const MAX_SLICES: usize = 1024;

/// What a receive by call waits for.
#[derive(Debug, Default)]
pub(super) struct Receiving {
    /// The end of a dropped receive.
    pub(super) before: Waiting,
    pub(super) readiness: Option<Readiness>,
}

/// As [`poll_call`] for receiving. Only one receives at a time; each of two would get parts of what comes.
pub(super) fn poll_receive<T>(
    socket: &Socket,
    receiving: &mut Receiving,
    context: &mut Context<'_>,
    call: impl FnMut() -> io::Result<T>,
) -> Poll<io::Result<T>> {
    socket.driver.core.check_driven()?;
    ready!(socket.shared.reception.poll_free(&mut receiving.before, context))?;
    poll_call(socket, &mut receiving.readiness, Socket::readable, context, call)
}

/// Receives by a call, by whoever deciphers. With `keeps` the same bytes come again. The memory has a byte.
pub(super) fn receive(
    socket: &Socket,
    room: &mut [MaybeUninit<u8>],
    keeps: bool,
) -> io::Result<usize> {
    #[cfg(feature = "tls")]
    if let Some(received) = socket.shared.receive_deciphered(room, keeps) {
        return received.map_err(io::Error::from);
    }
    let flags = if keeps { RecvFlags::PEEK } else { RecvFlags::empty() };
    Ok(recv(socket, room, RecvFlags::DONTWAIT | flags).map(|((bytes, _), _)| bytes.len())?)
}

/// Memory for [`receive`].
///
/// # Safety
///
/// Nothing uninitialised is written to it.
pub(super) unsafe fn as_uninit(bytes: &mut [u8]) -> &mut [MaybeUninit<u8>] {
    // SAFETY: the layouts are the same, and the bytes stay initialised, as the caller says.
    unsafe { &mut *(std::ptr::from_mut(bytes) as *mut [MaybeUninit<u8>]) }
}

/// Calls until it succeeds; waits by `wait` where it would block, and keeps the wait in `waiting`.
pub(super) fn poll_call<T>(
    socket: &Socket,
    waiting: &mut Option<Readiness>,
    wait: impl Fn(&Socket) -> Result<Readiness>,
    context: &mut Context<'_>,
    mut call: impl FnMut() -> io::Result<T>,
) -> Poll<io::Result<T>> {
    let budget = ready!(poll_proceed(context));
    loop {
        socket.driver.core.check_driven()?;
        if let Some(readiness) = waiting {
            // The call itself best reports what is wrong with the socket.
            let _ = ready!(Pin::new(readiness).poll(context));
            *waiting = None;
        }
        match call() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                *waiting = Some(wait(socket)?);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            over => {
                budget.made_progress();
                return Poll::Ready(over);
            }
        }
    }
}
