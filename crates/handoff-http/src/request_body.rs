//! A request's body: the service's end, and the end that the connection feeds.
//!
//! Contracts:
//! - the body may be read on any thread; the connection stays on its own;
//! - nothing is received before the service asks for it, so a service that does not read slows the client;
//! - wakers are called without the lock.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use crate::wire::{Framing, Piece, Refusal};

/// The body of a request, for its service: a [`Body`] of [`Bytes`].
///
/// ```
/// use handoff_http::{BodyError, RequestBody};
/// use http_body_util::BodyExt as _;
///
/// async fn length(body: RequestBody) -> Result<usize, BodyError> {
///     Ok(body.collect().await?.to_bytes().len())
/// }
/// ```
#[derive(Debug)]
pub struct RequestBody {
    /// `None` where there is no body.
    pipe: Option<Arc<Mutex<Pipe>>>,
    /// Bytes still to come, if the client has said so.
    left: Option<u64>,
}

/// Why a request's body ends before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BodyError {
    /// It is malformed, or exceeds a limit. The client is told.
    #[error("{0}")]
    Refused(Refusal),
    /// The connection has ended.
    #[error("the connection ended within the request's body")]
    Disconnected,
}

#[derive(Debug, Default)]
struct Pipe {
    frames: VecDeque<Frame<Bytes>>,
    end: Option<Result<(), BodyError>>,
    /// The service waits for a frame.
    wanted: bool,
    /// The service has dropped the body.
    dropped: bool,
    reader: Option<Waker>,
    feeder: Option<Waker>,
}

fn lock(pipe: &Mutex<Pipe>) -> MutexGuard<'_, Pipe> {
    pipe.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

impl RequestBody {
    /// A body, and the end that feeds it.
    pub(crate) fn new(framing: Framing) -> (Self, Feeder) {
        let left = match framing {
            Framing::Length(len) => Some(len),
            Framing::Chunked => None,
        };
        let pipe = (left != Some(0)).then(Arc::default);
        (Self { pipe: pipe.clone(), left }, Feeder(pipe))
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        let Some(pipe) = &this.pipe else { return Poll::Ready(None) };
        let mut pipe = lock(pipe);
        if let Some(frame) = pipe.frames.pop_front() {
            drop(pipe);
            let len = frame.data_ref().map_or(0, Bytes::len) as u64;
            this.left = this.left.map(|left| left.saturating_sub(len));
            return Poll::Ready(Some(Ok(frame)));
        }
        match pipe.end {
            Some(Ok(())) => Poll::Ready(None),
            Some(Err(error)) => Poll::Ready(Some(Err(error))),
            None => {
                pipe.wanted = true;
                let before = pipe.reader.replace(context.waker().clone());
                let feeder = pipe.feeder.take();
                drop(pipe);
                drop(before);
                wake(feeder);
                Poll::Pending
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        let Some(pipe) = &self.pipe else { return true };
        let pipe = lock(pipe);
        pipe.frames.is_empty() && pipe.end == Some(Ok(()))
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        let Some(pipe) = &self.pipe else { return };
        let mut pipe = lock(pipe);
        pipe.dropped = true;
        let frames = std::mem::take(&mut pipe.frames);
        let feeder = pipe.feeder.take();
        drop(pipe);
        drop(frames);
        wake(feeder);
    }
}

/// The connection's end of a body, if there is one. If you drop it before the body's end, the service is
/// told.
pub(crate) struct Feeder(Option<Arc<Mutex<Pipe>>>);

impl Feeder {
    /// Whether the service waits for a piece. Pending until it does; false once it has dropped the body.
    pub(crate) fn poll_wanted(&self, context: &mut Context<'_>) -> Poll<bool> {
        let Some(pipe) = &self.0 else { return Poll::Ready(false) };
        let mut pipe = lock(pipe);
        if pipe.dropped || pipe.wanted {
            return Poll::Ready(!pipe.dropped);
        }
        let before = pipe.feeder.replace(context.waker().clone());
        drop(pipe);
        drop(before);
        Poll::Pending
    }

    /// Hands a piece on.
    pub(crate) fn feed(&self, piece: Piece) {
        match piece {
            Piece::Data(bytes) => self.change(|pipe| pipe.push(Frame::data(bytes))),
            Piece::Trailers(fields) => {
                self.change(|pipe| {
                    pipe.push(Frame::trailers(fields));
                    pipe.end = Some(Ok(()));
                });
            }
            Piece::End => self.end(Ok(())),
        }
    }

    /// Nothing more comes.
    pub(crate) fn end(&self, end: Result<(), BodyError>) {
        self.change(|pipe| {
            pipe.end.get_or_insert(end);
        });
    }

    fn change(&self, change: impl FnOnce(&mut Pipe)) {
        let Some(pipe) = &self.0 else { return };
        let mut pipe = lock(pipe);
        change(&mut pipe);
        pipe.wanted = false;
        let reader = pipe.reader.take();
        drop(pipe);
        wake(reader);
    }
}

impl Pipe {
    fn push(&mut self, frame: Frame<Bytes>) {
        if !self.dropped {
            self.frames.push_back(frame);
        }
    }
}

impl Drop for Feeder {
    fn drop(&mut self) {
        self.end(Err(BodyError::Disconnected));
    }
}
