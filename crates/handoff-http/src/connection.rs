//! A connection: one request after another, until either side has enough.

use std::cell::Cell;
use std::fmt::Display;
use std::future::poll_fn;
use std::io::ErrorKind;
use std::net::Shutdown;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::{Buf as _, Bytes};
use handoff::{Client, Driver, Error, Socket};
use http::{Request, Response, StatusCode};
use http_body::Body;
use tower_service::Service;

use crate::answer::{self, Terms};
use crate::answered::Answered;
use crate::common::Common;
use crate::cut::Cut;
use crate::exchange::{Feeding, Rest, exchange};
use crate::idle::Idle;
use crate::input::Input;
use crate::limits::Limits;
use crate::output::{Loans, Output};
use crate::registry::Registration;
use crate::request_body::RequestBody;
use crate::wire::{Head, LONG_TARGET, Lines, Piece, Refusal};

/// The most unwanted bytes of a body that are received to keep the connection.
const DISCARDED: u64 = 64 << 10;
/// How long the connection is kept for a client that still sends, so that it can read the answer, and how
/// many bytes are taken meanwhile.
const LINGER: Duration = Duration::from_secs(2);
const LINGER_BYTES: u64 = 16 << 20;

/// Who the client is, by address or by process: an extension of each request.
///
/// ```
/// use axum::{Extension, Router, routing::get};
/// use handoff_http::Peer;
///
/// let router: Router =
///     Router::new().route("/", get(async |Extension(Peer(address)): Extension<Peer>| address.to_string()));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer(pub Client);

/// What comes after a request.
enum Next {
    Request(Box<Head>),
    Refused(Refusal),
    /// Nothing; the client or the server wants no more.
    Nothing,
    /// The place is somebody else's.
    Displaced,
}

/// What to do after an answer.
enum After {
    GoesOn,
    /// The connection ends.
    Over,
    /// The same, and the client may still send bytes that nobody reads.
    Unread,
}

/// An answer, counted while it is under way.
struct Answering<'a>(&'a Cell<u64>);

impl<'a> Answering<'a> {
    fn new(common: &'a Common) -> Self {
        common.answering.update(|answers| answers + 1);
        Self(&common.answering)
    }
}

impl Drop for Answering<'_> {
    fn drop(&mut self) {
        self.0.update(|answers| answers - 1);
    }
}

/// Tells an observer what became of a request, also if its connection is dropped midway.
struct Watched<'a> {
    common: &'a Common,
    peer: Client,
    terms: &'a Terms<'a>,
    request: Option<Request<()>>,
    loans: Rc<Loans>,
    begun: Instant,
    cut: Option<String>,
}

impl<'a> Watched<'a> {
    /// `None` if nobody observes.
    fn new(
        common: &'a Common,
        peer: Client,
        terms: &'a Terms<'a>,
        request: Option<Request<()>>,
        output: &Output,
    ) -> Option<Self> {
        common.observer.get()?;
        let loans = output.loans();
        loans.body.set(0);
        let cut = Some("the connection was dropped".to_owned());
        Some(Self { common, peer, terms, request, loans, begun: Instant::now(), cut })
    }
}

trait Ends {
    fn ends(self, how: &Result<(), Cut>);
}

impl Ends for Option<Watched<'_>> {
    fn ends(self, how: &Result<(), Cut>) {
        if let Some(mut watched) = self {
            watched.cut = how.as_ref().err().map(Cut::to_string);
        }
    }
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        let Some(observer) = self.common.observer.get() else { return };
        (observer.0)(&Answered {
            peer: self.peer,
            request: self.request.as_ref(),
            status: self.terms.status.get(),
            bytes: self.loans.body.get(),
            time: self.begun.elapsed(),
            cut: self.cut.as_deref(),
        });
    }
}

/// The received head, once it is complete.
fn head(lines: &mut Lines, input: &mut Input, limits: &Limits) -> Option<Next> {
    let refusal = match lines.find(&input.received, limits) {
        Ok(None) => return None,
        Ok(Some((start, end))) => {
            let head = input.received.split_to(end).freeze().slice(start..);
            match Head::parse(&head, limits) {
                Ok(head) => return Some(Next::Request(Box::new(head))),
                Err(refusal) => refusal,
            }
        }
        Err(refusal)
            if refusal.status == StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE
                && lines.is_in_first() =>
        {
            LONG_TARGET
        }
        Err(refusal) => refusal,
    };
    Some(Next::Refused(refusal))
}

/// The end of a connection. One that is dropped midway takes its answer along: otherwise its client would decide how
/// long the rest of the answer is kept.
struct End {
    socket: Socket,
    loans: Rc<Loans>,
    is_good: bool,
}

impl Drop for End {
    fn drop(&mut self) {
        if !self.is_good && self.loans.is_under_way() {
            self.socket.abort();
        }
    }
}

struct Connection<'a> {
    common: &'a Common,
    /// No request follows the current one.
    stopping: &'a Cell<bool>,
    driver: &'a Driver,
    socket: Socket,
    peer: Client,
    idle: Idle,
    registration: Registration,
    input: Input,
    output: Output,
    /// Why its first request is refused, unseen.
    refusal: Option<Refusal>,
}

/// Serves a connection to its end, or refuses its first request for this reason. `stop` ends it between requests.
pub(crate) async fn serve<S, B>(
    common: Rc<Common>,
    socket: Socket,
    peer: Client,
    mut service: S,
    stop: impl Future<Output = ()>,
    refusal: Option<Refusal>,
) where
    S: Service<Request<RequestBody>, Response = Response<B>>,
    S::Error: Display,
    B: Body<Data = Bytes>,
    B::Error: Display,
{
    let driver = &common.driver;
    let stopping = Cell::new(false);
    let mut connection = Connection {
        idle: Idle::new(driver, common.limits.idle),
        registration: common.registry.register(peer),
        input: Input::new(driver, &socket),
        output: Output::new(&common, &socket),
        common: &common,
        stopping: &stopping,
        driver,
        socket,
        peer,
        refusal,
    };
    let loans = connection.output.loans();
    let mut end =
        End { socket: connection.socket.clone(), loans: Rc::clone(&loans), is_good: false };
    let mut running = pin!(connection.run(&mut service));
    let mut stop = pin!(stop);
    let ended = poll_fn(|context| {
        if !stopping.get() && stop.as_mut().poll(context).is_ready() {
            stopping.set(true);
        }
        let ended = running.as_mut().poll(context);
        // Also looks at what was sent just now: it keeps operations of the driver.
        loans.look(context);
        ended
    });
    let ended = ended.await;
    end.is_good = ended.is_ok();
    if let Err(cut) = ended {
        end.socket.abort();
        match cut {
            Cut::Connection(_) | Cut::Stalled | Cut::Left | Cut::Refused(_) => {
                tracing::info!(%peer, %cut, "an answer was cut short");
            }
            // For whoever runs the server.
            Cut::FileEnded | Cut::Body(_) | Cut::Length(_) => {
                tracing::warn!(%peer, %cut, "an answer was cut short");
            }
        }
        common.counters.write(|served| served.cut_short += 1);
    }
}

impl Connection<'_> {
    async fn run<S, B>(&mut self, service: &mut S) -> Result<(), Cut>
    where
        S: Service<Request<RequestBody>, Response = Response<B>>,
        S::Error: Display,
        B: Body<Data = Bytes>,
        B::Error: Display,
    {
        let still_sends = loop {
            match self.next().await {
                // In a function of its own, so that a connection is small while it waits.
                Next::Request(head) => match Box::pin(self.serve(*head, service)).await? {
                    After::GoesOn => {}
                    After::Over => break !self.input.is_ended(),
                    After::Unread => break true,
                },
                Next::Refused(refusal) => {
                    tracing::debug!(peer = %self.peer, %refusal, "a request was refused");
                    self.common.counters.write(|served| served.refused += 1);
                    let terms = Terms::of_none(self.common, self.stopping);
                    let _answering = Answering::new(self.common);
                    let watched = Watched::new(self.common, self.peer, &terms, None, &self.output);
                    let refused = Box::pin(answer::refuse(refusal, &mut self.output, &terms)).await;
                    watched.ends(&refused);
                    refused?;
                    break true;
                }
                Next::Nothing => break false,
                Next::Displaced => {
                    if self.output.loans().is_under_way() {
                        // Its client takes nothing, and would keep the place.
                        self.socket.abort();
                    }
                    return Ok(());
                }
            }
        };
        let answering = Answering::new(self.common);
        self.output.finish().await?;
        drop(answering);
        if self.end_writing().await.is_ok() && still_sends {
            self.linger().await;
        }
        self.output.give_back().await
    }

    /// Ends our direction. A TLS connection may have to wait for room to say so, as for room for an answer.
    async fn end_writing(&self) -> handoff::Result<()> {
        loop {
            match self.socket.shutdown(Shutdown::Write) {
                Err(Error::Io { source, .. }) if source.kind() == ErrorKind::WouldBlock => {
                    let stall = self.common.limits.stall;
                    self.common.driver.timeout(stall, self.socket.writable()?).await??;
                }
                ended => return ended,
            }
        }
    }

    /// Waits for the next request.
    async fn next(&mut self) -> Next {
        if let Some(refusal) = self.refusal.take() {
            return Next::Refused(refusal);
        }
        let limits = &self.common.limits;
        // Empty lines behind a request do not begin the next.
        while self.input.received.starts_with(b"\r\n") {
            self.input.received.advance(2);
        }
        if self.input.received.is_empty() {
            self.registration.mark_idle(self.idle.wind_up());
            let Self { input, idle, stopping, registration, .. } = self;
            let mut first = pin!(input.more());
            let has_more = poll_fn(|context| {
                // Whoever polls the connection sets it.
                if stopping.get() {
                    return Poll::Ready(false);
                }
                match first.as_mut().poll(context) {
                    Poll::Ready(more) => Poll::Ready(matches!(more, Ok(true))),
                    Poll::Pending if registration.poll_ended(context).is_ready() => {
                        Poll::Ready(false)
                    }
                    Poll::Pending => idle.poll_over(context).map(|_| false),
                }
            });
            let has_more = has_more.await;
            registration.mark_busy();
            if registration.is_ended() {
                return Next::Displaced;
            }
            // Otherwise it has left, or was silent for too long.
            if !has_more {
                return Next::Nothing;
            }
        }
        let mut lines = Lines::default();
        let input = &mut self.input;
        // Most heads come whole, and need no clock.
        if let Some(next) = head(&mut lines, input, limits) {
            return next;
        }
        let head = self.driver.timeout(limits.head_time, async {
            loop {
                if !matches!(input.more().await, Ok(true)) {
                    return Next::Nothing;
                }
                if let Some(next) = head(&mut lines, input, limits) {
                    return next;
                }
            }
        });
        match head.await {
            Ok(next) => next,
            Err(Error::TimedOut { .. }) => Next::Refused(Refusal::new(
                StatusCode::REQUEST_TIMEOUT,
                "the request's head did not come in time",
            )),
            Err(_) => Next::Nothing,
        }
    }

    /// Serves a request.
    async fn serve<S, B>(&mut self, head: Head, service: &mut S) -> Result<After, Cut>
    where
        S: Service<Request<RequestBody>, Response = Response<B>>,
        S::Error: Display,
        B: Body<Data = Bytes>,
        B::Error: Display,
    {
        let common = self.common;
        common.counters.write(|served| served.requests += 1);
        let terms = Terms::new(common, self.stopping, &head);
        let (body, feeder) = RequestBody::new(head.framing);
        let observed = common.observer.get().map(|_| head.request.clone());
        let watched = Watched::new(common, self.peer, &terms, observed, &self.output);
        let mut request = head.request.map(|()| body);
        request.extensions_mut().insert(Peer(self.peer));
        let mut rest = Rest::new(head.framing);
        let feeding = Feeding {
            driver: self.driver,
            socket: &self.socket,
            limits: &common.limits,
            feeder,
            rest: &mut rest,
            input: &mut self.input,
        };
        let answering = Answering::new(common);
        let exchanged =
            exchange(service, request, feeding, &mut self.output, &terms, &common.counters).await;
        watched.ends(&exchanged);
        exchanged?;
        drop(answering);
        Ok(match (terms.keeps_alive.get(), rest.is_over()) {
            (true, true) => After::GoesOn,
            (false, true) => After::Over,
            // The rare path is a function of its own, since all of this future is moved when it begins.
            (true, false) if Box::pin(self.discard(&mut rest)).await => After::GoesOn,
            (_, false) => After::Unread,
        })
    }

    /// Skips what the service has left of a body, if that is little and comes in time; returns whether it
    /// is gone.
    async fn discard(&mut self, rest: &mut Rest) -> bool {
        let limits = &self.common.limits;
        let input = &mut self.input;
        let passing = async {
            let mut left = DISCARDED;
            while !rest.is_over() {
                if matches!(rest, Rest::Length(len) if *len > left) {
                    return false;
                }
                let Ok(piece) = rest.next(input, limits).await else { return false };
                if let Piece::Data(bytes) = piece {
                    let Some(fewer) = left.checked_sub(bytes.len() as u64) else { return false };
                    left = fewer;
                }
            }
            true
        };
        // One time limit for all of it: otherwise a slow client would stay for days.
        self.driver.timeout(limits.body_time, passing).await.unwrap_or(false)
    }

    /// A client that still sends would lose its answer to a reset, so it gets a moment to read.
    async fn linger(&mut self) {
        let input = &mut self.input;
        let reading = async {
            let mut taken = 0;
            while taken < LINGER_BYTES && matches!(input.more().await, Ok(true)) {
                taken += input.received.len() as u64;
                input.received.clear();
            }
        };
        // Usually it ends with the client's end.
        let _ = self.driver.timeout(LINGER, reading).await;
    }
}
