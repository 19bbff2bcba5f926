//! A route's sink: takes pieces, and reports when they are back.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::task::{Context, Poll};

use super::RouteSink;
use crate::error::{Error, Result};
use crate::op::loan::{Payload, Refused};
use crate::outcome::Tally;
use crate::socket::send::Finishing;
use crate::transfer::Transfer;

/// A piece on its way.
pub(super) struct Giving<B: Payload> {
    len: usize,
    taker: Taker<B>,
}

enum Taker<B: Payload> {
    Socket(Finishing<B>),
    /// Whether the file takes it past the page cache.
    File(Transfer<B>, bool),
}

/// A piece that is back.
pub(super) struct Given<B> {
    pub(super) piece: B,
    /// Bytes that the sink took.
    pub(super) bytes: usize,
    pub(super) tally: Tally,
    pub(super) result: Result<()>,
}

impl<B: Payload> Giving<B> {
    /// Hands on the piece, which begins at this offset of the whole.
    pub(super) fn start(sink: &RouteSink, piece: B, position: u64) -> Result<Self, Refused<B>> {
        let len = piece.extent().bytes;
        let taker = match sink {
            RouteSink::Socket(socket) => Taker::Socket(socket.send(piece)?.into_future()),
            RouteSink::Pipe(file) => Taker::File(file.write(piece)?, false),
            RouteSink::File(file, offset) => {
                Taker::File(file.write_at(piece, offset + position)?, file.is_direct())
            }
        };
        Ok(Self { len, taker })
    }

    /// Bytes of the piece.
    pub(super) fn bytes(&self) -> usize {
        self.len
    }

    /// # Errors
    ///
    /// When the driver is gone, and the kernel keeps the piece.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Given<B>>> {
        match &mut self.taker {
            Taker::Socket(sending) => Pin::new(sending).poll(context).map_ok(|finished| {
                let (bytes, result) = split(finished.sent);
                let tally = finished.receipt.tally;
                Given { piece: finished.buffer, bytes, tally, result }
            }),
            Taker::File(writing, direct) => Pin::new(writing).poll(context).map_ok(|written| {
                let (bytes, result) = split(written.result.map_err(|error| told(error, *direct)));
                let mut tally = Tally::default();
                tally.count(bytes as u64, Some(!*direct));
                Given { piece: written.buffer, bytes, tally, result }
            }),
        }
    }
}

fn split(result: Result<usize>) -> (usize, Result<()>) {
    match result {
        Ok(bytes) => (bytes, Ok(())),
        Err(error) => (0, Err(error)),
    }
}

/// A refusal that is about alignment says so.
fn told(error: Error, direct: bool) -> Error {
    match error.raw_os_error() {
        Some(libc::EINVAL) if direct => Error::Invalid(
            "a file opened with O_DIRECT takes whole blocks at offsets of whole blocks, and the route has \
             other pieces: open it without O_DIRECT",
        ),
        _ => error,
    }
}
