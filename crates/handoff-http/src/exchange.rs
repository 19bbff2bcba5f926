//! One request and its answer: the service runs while this feeds its body.
//!
//! Contracts:
//! - if a body goes wrong before the answer has begun, the client gets its status, and the service's future is
//!   dropped; later it ends the connection;
//! - a service that panics loses only its own connection.

use std::convert::Infallible;
use std::fmt::Display;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;

use bytes::Bytes;
use futures_util::future::{Either, select};
use handoff::{Buffer, Driver, Error, Socket};
use http::{Request, Response, StatusCode};
use http_body::Body;
use tower_service::Service;

use crate::answer::{self, Terms};
use crate::cut::Cut;
use crate::input::Input;
use crate::limits::Limits;
use crate::output::Output;
use crate::request_body::{BodyError, Feeder, RequestBody};
use crate::room;
use crate::served::Counters;
use crate::wire::{Chunked, Framing, Piece, Refusal};

const TOO_SLOW: Refusal =
    Refusal::new(StatusCode::REQUEST_TIMEOUT, "the request's body did not come in time");
const FAILED: Refusal =
    Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "the service failed; its log has the reason");

/// Why feeding a body ends.
pub(crate) enum Unfed {
    Refused(Refusal),
    Cut(Cut),
}

impl From<Refusal> for Unfed {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<Error> for Unfed {
    fn from(error: Error) -> Self {
        Self::Cut(error.into())
    }
}

/// The rest of a request's body.
pub(crate) enum Rest {
    Length(u64),
    Chunked(Chunked),
}

impl Rest {
    pub(crate) fn new(framing: Framing) -> Self {
        match framing {
            Framing::Length(len) => Self::Length(len),
            Framing::Chunked => Self::Chunked(Chunked::new()),
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        match self {
            Self::Length(left) => *left == 0,
            Self::Chunked(chunks) => chunks.is_over(),
        }
    }

    /// The next piece.
    pub(crate) async fn next(
        &mut self,
        input: &mut Input,
        limits: &Limits,
    ) -> Result<Piece, Unfed> {
        match self {
            Self::Length(0) => Ok(Piece::End),
            Self::Length(left) => match input.body(*left).await? {
                Some(bytes) => {
                    *left -= bytes.len() as u64;
                    Ok(Piece::Data(bytes))
                }
                None => Err(Unfed::Cut(Cut::Left)),
            },
            Self::Chunked(chunks) => loop {
                if let Some(piece) = chunks.next(&mut input.received, limits)? {
                    return Ok(piece);
                }
                if !input.many_more().await? {
                    return Err(Unfed::Cut(Cut::Left));
                }
            },
        }
    }
}

/// Feeds a request's body while the service runs.
pub(crate) struct Feeding<'a> {
    pub(crate) driver: &'a Driver,
    pub(crate) socket: &'a Socket,
    pub(crate) limits: &'a Limits,
    pub(crate) feeder: Feeder,
    pub(crate) rest: &'a mut Rest,
    pub(crate) input: &'a mut Input,
}

impl Feeding<'_> {
    /// Feeds as long as the service asks. It never ends well: the exchange ends with the answer.
    async fn feed(mut self, terms: &Terms<'_>) -> Result<Infallible, Unfed> {
        loop {
            match self.feed_next(terms).await {
                Ok(true) => {}
                Ok(false) => break,
                Err(unfed) => {
                    let error = match &unfed {
                        Unfed::Refused(refusal) => BodyError::Refused(*refusal),
                        Unfed::Cut(_) => BodyError::Disconnected,
                    };
                    self.feeder.end(Err(error));
                    return Err(unfed);
                }
            }
        }
        // Notices a client that has left. Bytes from it belong to the next request.
        if self.rest.is_over() && self.input.received.is_empty() && !self.input.is_ended() {
            self.input.more().await?;
        }
        self.socket.broken().await?;
        Err(Unfed::Cut(Cut::Left))
    }

    /// Feeds a piece when the service asks for one; false when nothing is left to feed.
    async fn feed_next(&mut self, terms: &Terms<'_>) -> Result<bool, Unfed> {
        let Self { driver, socket, limits, feeder, rest, input } = self;
        if rest.is_over() {
            feeder.end(Ok(()));
            return Ok(false);
        }
        // Meanwhile nothing is received.
        let wanted = pin!(poll_fn(|context| feeder.poll_wanted(context)));
        match select(wanted, pin!(socket.broken())).await {
            Either::Left((true, _)) => {}
            Either::Left((false, _)) => return Ok(false),
            Either::Right((broken, _)) => {
                broken?;
                return Err(Unfed::Cut(Cut::Left));
            }
        }
        if terms.awaits_continue.get() && !terms.begun.get() {
            if input.received.is_empty() {
                let go_on = Buffer::from(b"HTTP/1.1 100 Continue\r\n\r\n".to_vec());
                let send = |buffer| socket.send(buffer);
                drop(room::start(driver, go_on, send).await?);
            }
            terms.awaits_continue.set(false);
        }
        match driver.timeout(limits.body_time, rest.next(input, limits)).await {
            Ok(piece) => feeder.feed(piece?),
            Err(Error::TimedOut { .. }) => return Err(TOO_SLOW.into()),
            Err(error) => return Err(error.into()),
        }
        Ok(true)
    }
}

/// Gives a request to the service, and sends its answer. An error ends the connection at once.
pub(crate) async fn exchange<S, B>(
    service: &mut S,
    request: Request<RequestBody>,
    feeding: Feeding<'_>,
    output: &mut Output,
    terms: &Terms<'_>,
    counters: &Counters,
) -> Result<(), Cut>
where
    S: Service<Request<RequestBody>, Response = Response<B>>,
    S::Error: Display,
    B: Body<Data = Bytes>,
    B::Error: Display,
{
    let unfed = {
        let mut answering = pin!(serve(service, request, &mut *output, terms, counters));
        // Made when needed: an immediate answer ends the exchange.
        let mut feeding = pin!(async { Box::pin(feeding.feed(terms)).await });
        let both = poll_fn(|context| {
            if let Poll::Ready(answered) = answering.as_mut().poll(context) {
                return Poll::Ready(Ok(answered));
            }
            feeding.as_mut().poll(context).map(|ended| match ended {
                Err(unfed) => Err(unfed),
                Ok(never) => match never {},
            })
        });
        match both.await {
            Ok(answered) => return answered,
            Err(unfed) => unfed,
        }
    };
    match unfed {
        Unfed::Cut(cut) => Err(cut),
        Unfed::Refused(refusal) if terms.begun.get() => Err(Cut::Refused(refusal)),
        Unfed::Refused(refusal) => {
            counters.write(|served| served.refused += 1);
            Box::pin(answer::refuse(refusal, output, terms)).await
        }
    }
}

async fn serve<S, B>(
    service: &mut S,
    request: Request<RequestBody>,
    output: &mut Output,
    terms: &Terms<'_>,
    counters: &Counters,
) -> Result<(), Cut>
where
    S: Service<Request<RequestBody>, Response = Response<B>>,
    S::Error: Display,
    B: Body<Data = Bytes>,
    B::Error: Display,
{
    let called = caught(async {
        poll_fn(|context| service.poll_ready(context)).await?;
        service.call(request).await
    });
    let why = match called.await {
        Ok(Ok(response)) if !response.status().is_informational() => {
            return answer::respond(response, output, terms).await;
        }
        Ok(Ok(response)) => format!("it answered {}, which is no answer", response.status()),
        Ok(Err(error)) => error.to_string(),
        Err(Panicked) => "it panicked".to_owned(),
    };
    tracing::error!(%why, "a service failed");
    counters.write(|served| served.failed += 1);
    Box::pin(answer::refuse(FAILED, output, terms)).await
}

pub(crate) struct Panicked;

/// Runs a future, and drops it if it panics.
pub(crate) async fn caught<F: Future>(future: F) -> Result<F::Output, Panicked> {
    let mut future = pin!(future);
    poll_fn(|context| {
        // If the future shares state with others, they must distrust it.
        match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
            Ok(poll) => poll.map(Ok),
            Err(_) => Poll::Ready(Err(Panicked)),
        }
    })
    .await
}
