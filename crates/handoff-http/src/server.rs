//! The server: accepts connections as long as there is room, until it must stop.

use std::collections::hash_map::Entry;
use std::fmt::Display;
use std::future::{Pending, pending, poll_fn};
use std::os::fd::AsFd;
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::{Either, select};
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use handoff::{Client, Driver, Error, Listeners, Result, Socket};
use http::{Request, Response};
use http_body::Body;
use rustix::net::sockopt::{set_tcp_nodelay, set_tcp_user_timeout};
use tower_service::Service;

use crate::answered::{Answered, Observer};
use crate::common::Common;
use crate::connection;
use crate::exchange::caught;
#[cfg(feature = "tls")]
use crate::https;
use crate::limits::Limits;
use crate::request_body::RequestBody;
use crate::served::Served;
use crate::stops::Stops;
use crate::who::Who;

/// Pause after a failed accept that does not say when it ends.
const AGAIN: Duration = Duration::from_millis(250);

/// The least time between two warnings of that.
const QUIET: Duration = Duration::from_secs(1);

/// Serves HTTP/1.1 and HTTP/1.0 on a driver.
///
/// The service is an axum `Router`, or anything else that takes a [`Request`] of [`RequestBody`] and returns a
/// [`Response`] with a body of [`Bytes`]; each connection has a clone. Its futures run where the server's future
/// runs: on an [`Executor`](handoff::Executor), on [`Driver::block_on`], or in tokio's current-thread runtime beside
/// `handoff::tokio::drive`. They need not be `Send`.
///
/// A service's future is dropped when its client resets the connection, even behind a body that nobody reads. A
/// client that ends only its own direction gets its answer. If it then resets the connection behind unread bytes, the
/// next send notices.
///
/// ```no_run
/// use axum::{Router, routing::get};
/// use handoff::Driver;
/// use handoff_http::{Limits, Server};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let driver = Driver::new()?;
/// let listener = driver.listen(std::net::TcpListener::bind("127.0.0.1:8080")?)?;
/// let router: Router = Router::new().route("/", get(async || "hello"));
/// let server = Server::new(&driver, Limits::default());
/// driver.block_on(server.serve(listener, router, std::future::pending()))?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Server {
    common: Rc<Common>,
    admits: Rc<dyn Fn(Client) -> bool>,
}

impl Server {
    /// A server on `driver`, which needs room for the connections: two operations each, a receive and a send.
    /// With less room, fewer connections are served at once ([`serve`](Self::serve) warns of it); with more,
    /// answers lend more before the client has room
    /// ([`DriverBuilder::in_flight`](handoff::DriverBuilder::in_flight)).
    pub fn new(driver: &Driver, limits: Limits) -> Self {
        Self { common: Rc::new(Common::new(driver, limits)), admits: Rc::new(|_| true) }
    }

    /// Serves only clients for which `admits` returns true. [`Server::serve`] asks after accepting a connection, and
    /// closes the others at once ([`Served::turned_away`]): they do not count towards [`Limits::connections`].
    #[must_use]
    pub fn admitting(self, admits: impl Fn(Client) -> bool + 'static) -> Self {
        Self { admits: Rc::new(admits), ..self }
    }

    /// Tells `observer` of each answer when it is over, for a log. The last observer counts.
    #[must_use]
    pub fn observing(self, observer: impl Fn(&Answered<'_>) + 'static) -> Self {
        // Nobody has asked a server that serves nobody yet.
        let _ = self.common.observer.set(Observer(Rc::new(observer)));
        self
    }

    /// Serves HTTPS only: TLS begins on each connection, and its handshake must be over in [`Limits::head_time`]. The first
    /// acceptor counts. Let its configuration have `http/1.1` among its `alpn_protocols`; a client that agrees on another
    /// protocol is not served, and one that asks in the clear is answered by 400, in the clear. If all places are taken, a
    /// client whose handshake has taken a second or more leaves its own for the next.
    ///
    /// Where the kernel ciphers, ranges of files are spliced to it; elsewhere they are read and ciphered in this process.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn over_tls(self, acceptor: handoff::tls::TlsAcceptor) -> Self {
        // Nobody is served yet.
        let _ = self.common.acceptor.set(acceptor);
        self
    }

    /// Who has ciphered connections so far, each with why: [`Engine::KernelTls`](handoff::Engine::KernelTls) or
    /// [`Engine::UserTls`](handoff::Engine::UserTls). Of many reasons, the first eight.
    #[cfg(feature = "tls")]
    pub fn ciphers(&self) -> Vec<(handoff::Engine, String)> {
        self.common.ciphers.borrow().clone()
    }

    /// The counts so far.
    pub fn served(&self) -> Served {
        self.common.counters.read()
    }

    /// Why ranges of files are not lent from the page cache (`handoff::GetBuf`, feature `getbuf`), if so: they are
    /// then spliced.
    pub fn files_unlent(&self) -> Option<&str> {
        self.common.unlent.as_deref()
    }

    /// Serves the connections of a listener, or of several ([`Listeners`]: of TCP and of Unix sockets), until `stop` ends. Then it accepts no more, idle connections
    /// end, and requests under way have [`Limits::grace`]. Dropping it ends everything at once.
    ///
    /// Failures to accept are logged, and it goes on.
    pub async fn serve<S, B>(
        &self,
        listener: impl Into<Listeners>,
        service: S,
        stop: impl Future<Output = ()>,
    ) where
        S: Service<Request<RequestBody>, Response = Response<B>> + Clone,
        S::Error: Display,
        B: Body<Data = Bytes>,
        B::Error: Display,
    {
        let mut listener = listener.into();
        let (limits, driver) = (&self.common.limits, &self.common.driver);
        let most = self.common.most;
        if most < limits.connections {
            let wanted = limits.connections;
            tracing::warn!(
                most,
                wanted,
                "the driver has no room for so many connections (in_flight)"
            );
        }
        let mut stop = pin!(stop);
        let stops = Rc::<Stops>::default();
        let mut open = Connections::new();
        // Accepted sockets inherit it.
        for listener in listener.of_tcp() {
            if let Err(error) = set_tcp_nodelay(listener, true) {
                tracing::info!(%error, "small answers may wait for earlier ones");
            }
            limit_stalls(listener, limits.stall);
        }
        let registry = &self.common.registry;
        'serving: loop {
            // Somebody leaves, or has waited for long enough to leave for the next.
            while open.len() >= most && !registry.has_ripe() {
                listener.pause();
                let (room, moment) = (pin!(open.until_below(most)), pin!(driver.sleep(AGAIN)));
                if let Either::Left(_) = select(&mut stop, select(room, moment)).await {
                    break 'serving;
                }
            }
            let next = pin!(listener.accept());
            let accepting = select(&mut stop, next);
            match open.beside(accepting).await {
                Either::Left(_) => break,
                Either::Right((Ok((_, peer)), _)) if !(self.admits)(peer) => {
                    self.common.counters.write(|served| served.turned_away += 1);
                }
                Either::Right((Ok((socket, peer)), _)) => {
                    if !Open::may_enter(&self.common, peer, limits.per_client) {
                        tell("a client has as many connections as it may", &peer);
                        continue;
                    }
                    if open.len() >= most {
                        if let Some(idle) = registry.end_longest() {
                            self.common.counters.write(|served| served.displaced += 1);
                            tell(
                                "all places are taken: the longest idle connection is ended",
                                &idle,
                            );
                        }
                        let room = pin!(open.until_below(most));
                        if let Either::Left(_) = select(&mut stop, room).await {
                            break;
                        }
                    }
                    let counted = Open::enter(&self.common, peer);
                    let (service, stop) = (service.clone(), stops.told());
                    open.push(self.connection(socket, peer, counted, service, stop));
                }
                Either::Right((Err(error), _)) => {
                    tell("a connection could not be accepted", &error);
                    let moment = pin!(driver.sleep(AGAIN));
                    if let Either::Left(_) = open.beside(select(&mut stop, moment)).await {
                        break;
                    }
                }
            }
        }
        drop(listener);
        stops.stop();
        let over = open.until_below(1);
        if let Err(Error::TimedOut { .. }) = driver.timeout(limits.grace, over).await {
            // Others only wait for their client's end.
            let left = self.common.answering.get().min(open.len() as u64);
            tracing::warn!(left, "answers were under way when the time to end was over");
            self.common.counters.write(|served| served.cut_short += left);
        }
    }

    /// Serves one connection, accepted or made elsewhere, until it ends. `stop` ends it when the request
    /// under way is answered.
    ///
    /// # Errors
    ///
    /// When the socket is neither of TCP nor a Unix stream. [`Error::Busy`] when as many connections are served as
    /// [`Limits::connections`] and the driver's room allow; the connection is then closed.
    pub async fn serve_connection<S, B>(
        &self,
        socket: Socket,
        peer: impl Into<Client>,
        service: S,
        stop: impl Future<Output = ()>,
    ) -> Result<()>
    where
        S: Service<Request<RequestBody>, Response = Response<B>>,
        S::Error: Display,
        B: Body<Data = Bytes>,
        B::Error: Display,
    {
        let peer = peer.into();
        if let Client::Tcp(_) = peer {
            set_tcp_nodelay(&socket, true)
                .map_err(|_| Error::Invalid("HTTP is served on a TCP connection"))?;
            limit_stalls(&socket, self.common.limits.stall);
        }
        if self.common.counters.read().open >= self.common.most as u64 {
            self.common.counters.write(|served| served.turned_away += 1);
            return Err(Error::Busy { limit: self.common.driver.in_flight_limit() });
        }
        let counted = Open::enter(&self.common, peer);
        self.connection(socket, peer, counted, service, stop).await;
        Ok(())
    }

    fn connection<S, B>(
        &self,
        socket: Socket,
        peer: Client,
        counted: Open,
        service: S,
        stop: impl Future<Output = ()>,
    ) -> impl Future<Output = ()>
    where
        S: Service<Request<RequestBody>, Response = Response<B>>,
        S::Error: Display,
        B: Body<Data = Bytes>,
        B::Error: Display,
    {
        let common = Rc::clone(&self.common);
        async move {
            let counters = Rc::clone(&common.counters);
            let mut stop = pin!(stop);
            #[cfg(feature = "tls")]
            let begun = https::begin(&common, socket, peer, stop.as_mut()).await;
            #[cfg(not(feature = "tls"))]
            let begun = Some((socket, None));
            let Some((socket, refusal)) = begun else { return };
            let served = connection::serve(common, socket, peer, service, stop.as_mut(), refusal);
            if caught(served).await.is_err() {
                tracing::error!(%peer, "an answer's body panicked");
                counters.write(|served| served.cut_short += 1);
            }
            drop(counted);
        }
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server")
            .field("limits", &self.common.limits)
            .field("served", &self.served())
            .finish_non_exhaustive()
    }
}

/// Makes the kernel, too, end a connection whose client takes nothing for that long, or has vanished: also when the
/// answer is all with the kernel.
fn limit_stalls(socket: impl AsFd, stall: Duration) {
    let millis = u32::try_from(stall.as_millis()).unwrap_or(u32::MAX).min(i32::MAX as u32);
    if let Err(error) = set_tcp_user_timeout(socket, millis) {
        tracing::info!(%error, "the kernel keeps the end of an answer for longer");
    }
}

/// Logs what becomes of connections that there is no room for: as a warning once a second at most, by all servers of this
/// process, which have their descriptors in common.
fn tell(what: &'static str, of: &dyn Display) {
    static LAST: Mutex<Option<Instant>> = Mutex::new(None);
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if last.is_none_or(|last| last.elapsed() >= QUIET) {
        *last = Some(Instant::now());
        tracing::warn!("{what}: {of}");
    } else {
        tracing::info!("{what}: {of}");
    }
}

/// A connection that is counted as open, for its client too.
struct Open {
    common: Rc<Common>,
    client: Who,
}

impl Open {
    /// Whether a client has less than `most`, which is counted if not.
    fn may_enter(common: &Common, peer: Client, most: usize) -> bool {
        let client = Who::from(peer);
        let may = common.clients.borrow().get(&client).copied().unwrap_or(0) < most;
        if !may {
            common.counters.write(|served| served.turned_away += 1);
        }
        may
    }

    /// Counts a connection.
    fn enter(common: &Rc<Common>, peer: Client) -> Self {
        let client = Who::from(peer);
        *common.clients.borrow_mut().entry(client).or_default() += 1;
        common.counters.write(|served| {
            served.connections += 1;
            served.open += 1;
            served.most_open = served.most_open.max(served.open);
        });
        Self { common: Rc::clone(common), client }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.common.counters.write(|served| served.open -= 1);
        if let Entry::Occupied(mut own) = self.common.clients.borrow_mut().entry(self.client) {
            *own.get_mut() -= 1;
            if *own.get() == 0 {
                own.remove();
            }
        }
    }
}

/// Connections served side by side, and one more that never ends: the set wakes itself when all of it was polled,
/// which happens each time if there is one connection.
struct Connections<C>(FuturesUnordered<Either<C, Pending<()>>>);

impl<C: Future<Output = ()>> Connections<C> {
    fn new() -> Self {
        let set = FuturesUnordered::new();
        set.push(Either::Right(pending()));
        Self(set)
    }

    fn push(&self, connection: C) {
        self.0.push(Either::Left(connection));
    }

    fn len(&self) -> usize {
        self.0.len() - 1
    }

    /// Polls them; ready when one has ended.
    fn poll_ended(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.0.poll_next_unpin(context).map(drop)
    }

    /// Polls them while waiting for something else.
    async fn beside<F: Future>(&mut self, other: F) -> F::Output {
        let mut other = pin!(other);
        poll_fn(|context| {
            while self.poll_ended(context).is_ready() {}
            other.as_mut().poll(context)
        })
        .await
    }

    /// Polls them until fewer than so many are left.
    async fn until_below(&mut self, most: usize) {
        poll_fn(|context| {
            while self.len() >= most {
                ready!(self.poll_ended(context));
            }
            Poll::Ready(())
        })
        .await;
    }
}
