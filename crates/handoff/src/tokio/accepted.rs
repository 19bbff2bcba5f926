//! Writes to connections that this process ciphers: accepted at once, and sent like other sends.
//!
//! Contracts:
//! - a write that was accepted goes out, also when the stream is dropped; one that was given up before has sent nothing;
//! - at most [`AT_ONCE`] bytes of a stream are accepted and not with the kernel;
//! - what became of an accepted write is told by the next write, flush or shutdown.

use std::cell::RefCell;
use std::future::Future as _;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use ::tokio::task::coop::poll_proceed;

use super::ready::Full;
use crate::error::Error;
use crate::memory::Buffer;
use crate::op::Waiting;
use crate::op::loan::Refused;
use crate::sleep::Sleep;
use crate::socket::Socket;
use crate::socket::send::Sent;

/// The most bytes of a write: four records.
const AT_ONCE: usize = 64 << 10;

/// The write that was accepted last, if there was any.
#[derive(Debug, Default)]
pub(super) struct Accepted(RefCell<Option<Box<Last>>>);

#[derive(Debug, Default)]
struct Last {
    sent: Option<Sent>,
    /// What became of it, if it failed.
    failed: Option<Error>,
    /// When to look for room again.
    pause: Option<Sleep>,
}

impl Accepted {
    /// Waits until the kernel has taken it, or never will; any number of tasks may, each with a `waiting` of its own.
    pub(super) fn poll_over(
        &self,
        socket: &Socket,
        waiting: &mut Waiting,
        context: &mut Context<'_>,
    ) -> Poll<()> {
        if !self.is_over() {
            // An error is told by the call.
            let _ = ready!(socket.poll_flush(waiting, context));
            return self.poll_taken(context);
        }
        Poll::Ready(())
    }

    /// Waits in the same way, for the only writer, and tells what became of it.
    pub(super) fn poll_sent(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_taken(context));
        Poll::Ready(self.told())
    }

    fn poll_taken(&self, context: &mut Context<'_>) -> Poll<()> {
        if let Some(last) = &mut *self.0.borrow_mut()
            && let Some(sent) = &mut last.sent
        {
            last.failed = ready!(sent.poll_taken(context)).err();
            last.sent = None;
        }
        Poll::Ready(())
    }

    /// The same, without a wait.
    fn is_over(&self) -> bool {
        if let Some(last) = &mut *self.0.borrow_mut()
            && let Some(sent) = last.sent.take()
        {
            match sent.try_take() {
                Ok(over) => last.failed = over.err(),
                Err(sent) => last.sent = Some(sent),
            }
            return last.sent.is_none();
        }
        true
    }

    fn told(&self) -> io::Result<()> {
        let failed = self.0.borrow_mut().as_mut().and_then(|last| last.failed.take());
        failed.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Accepts the beginning of these slices, if the one before has been sent, and there is room for a send.
    pub(super) fn try_accept(
        &self,
        socket: &Socket,
        slices: &[IoSlice<'_>],
        full: &Full,
    ) -> io::Result<usize> {
        if !self.is_over() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.told()?;
        let bytes = beginning(slices);
        if bytes.is_empty() {
            return Ok(0);
        }
        match self.0.borrow_mut().get_or_insert_default().send(socket, bytes) {
            Ok(len) => Ok(len),
            Err(Refused { error: Error::Busy { .. }, .. }) => {
                full.set_untold();
                Err(io::ErrorKind::WouldBlock.into())
            }
            Err(refused) => Err(refused.error.into()),
        }
    }

    /// Accepts the beginning of these slices; the one before has been sent.
    pub(super) fn poll_accept(
        &self,
        socket: &Socket,
        slices: &[IoSlice<'_>],
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let budget = ready!(poll_proceed(context));
        socket.driver.core.check_driven()?;
        let mut last = self.0.borrow_mut();
        let last = last.get_or_insert_default();
        let mut bytes = beginning(slices);
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        loop {
            if let Some(pause) = &mut last.pause {
                ready!(Pin::new(pause).poll(context))?;
                last.pause = None;
            }
            match last.send(socket, bytes) {
                Ok(len) => {
                    budget.made_progress();
                    return Poll::Ready(Ok(len));
                }
                Err(Refused { buffer, error: Error::Busy { .. } }) => {
                    bytes = buffer.to_vec();
                    last.pause = Some(Sleep::for_room(&socket.driver));
                }
                Err(refused) => return Poll::Ready(Err(refused.error.into())),
            }
        }
    }
}

impl Last {
    fn send(&mut self, socket: &Socket, bytes: Vec<u8>) -> Result<usize, Refused<Buffer>> {
        let len = bytes.len();
        self.sent = Some(socket.send(Buffer::from(bytes))?.split().0);
        Ok(len)
    }
}

/// As much as is accepted at once.
fn beginning(slices: &[IoSlice<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for slice in slices {
        bytes.extend_from_slice(&slice[..slice.len().min(AT_ONCE - bytes.len())]);
    }
    bytes
}

/// Tells the peer of a TLS connection that nothing follows, as soon as there is room for that.
pub(super) fn close(socket: &Socket) {
    if socket.shared.is_ciphered() {
        socket.close_behind();
    }
}
