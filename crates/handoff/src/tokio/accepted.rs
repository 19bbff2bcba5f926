//! Writes to connections that this process ciphers: accepted at once, and sent like other sends.
//!
//! Contracts:
//! - a write that was accepted goes out, also when the stream is dropped; one that was given up before has sent nothing;
//! - at most [`AT_ONCE`] bytes of a stream are accepted and not with the kernel;
//! - what became of an accepted write is told by the next write, flush or shutdown.

use std::future::Future as _;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use ::tokio::task::coop::poll_proceed;

use crate::error::Error;
use crate::memory::Buffer;
use crate::op::loan::Refused;
use crate::sleep::Sleep;
use crate::socket::Socket;
use crate::socket::send::Sent;

/// The most bytes of a write: four records.
const AT_ONCE: usize = 64 << 10;

/// The write that was accepted last, if there was any.
#[derive(Debug, Default)]
pub(super) struct Accepted(Option<Box<Last>>);

#[derive(Debug, Default)]
struct Last {
    sent: Option<Sent>,
    /// When to look for room again.
    pause: Option<Sleep>,
}

impl Accepted {
    /// Waits until the kernel has taken it.
    pub(super) fn poll_sent(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(last) = &mut self.0 else { return Poll::Ready(Ok(())) };
        let Some(sent) = &mut last.sent else { return Poll::Ready(Ok(())) };
        let over = ready!(sent.poll_taken(context));
        last.sent = None;
        Poll::Ready(over.map(drop).map_err(io::Error::from))
    }

    /// Accepts the beginning of these slices; the one before has been sent.
    pub(super) fn poll_accept(
        &mut self,
        socket: &Socket,
        slices: &[IoSlice<'_>],
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let budget = ready!(poll_proceed(context));
        socket.driver.core.check_driven()?;
        let last = self.0.get_or_insert_default();
        let mut bytes = Vec::new();
        for slice in slices {
            bytes.extend_from_slice(&slice[..slice.len().min(AT_ONCE - bytes.len())]);
        }
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        loop {
            if let Some(pause) = &mut last.pause {
                ready!(Pin::new(pause).poll(context))?;
                last.pause = None;
            }
            let len = bytes.len();
            match socket.send(Buffer::from(bytes)) {
                Ok(sending) => {
                    last.sent = Some(sending.split().0);
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

/// Tells the peer of a TLS connection that nothing follows, as soon as there is room for that.
pub(super) fn close(socket: &Socket) {
    if socket.shared.is_ciphered() {
        socket.close_behind();
    }
}
