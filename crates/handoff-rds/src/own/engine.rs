//! The engine: the host, its connections, and the tasks that serve them.

use std::cell::{Cell, OnceCell, Ref, RefCell, RefMut};
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use futures_util::future::LocalBoxFuture;
use futures_util::stream::{FuturesUnordered, Stream};
use handoff::{Buffer, Driver};

use super::changes::Changes;
use super::claim::Claim;
use super::clock::{self, Clock};
use super::connecting::{self, Listener};
use super::link::{Link, abort};
use super::refusals::Refusals;
use super::socket::Socket;
use super::{reading, writing};
use crate::error::{Error, Result};
use crate::protocol::{ConnectionId, Event, Host, Limits, Output, Role, Statistics};
use crate::wire::PORT;

/// How late the host's time may be.
const GRAIN: Duration = Duration::from_millis(1);

/// Where a payload is: here, or on loan to the kernel.
pub(super) type Slot = Rc<RefCell<Option<Buffer>>>;

/// Whether a peer may connect.
pub(super) type Admits = Rc<dyn Fn(SocketAddr) -> bool>;

/// One address, and what serves it. Cloning it gives another handle on the same.
///
/// ```no_run
/// use handoff::{Buffer, Driver, Executor};
/// use handoff_rds::own::Engine;
/// use handoff_rds::protocol::Limits;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let driver = Driver::new()?;
/// let engine = Engine::new(&driver, "192.0.2.1".parse()?, Limits::default(), handoff::Engine::Auto)?;
/// let socket = engine.bind(4000)?;
/// let executor = Executor::new(&driver);
/// executor.spawn(engine.run()).detach();
/// let peer = "192.0.2.2:4000".parse()?;
/// executor.run(async {
///     let buffer = Buffer::from(vec![7; 65_536]);
///     socket.send_when_possible(peer, buffer, 42).await.map_err(|refused| refused.error)?;
///     let mut batch = Vec::new();
///     socket.completions(1, &mut batch).await; // the buffer is back; `end` says whether the peer has it
///     println!("{} bytes answered", socket.receive().await.payload.len());
///     Ok::<_, handoff_rds::Error>(())
/// })??;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Engine {
    shared: Rc<Shared>,
    _handles: Rc<Handles>,
}

pub(super) struct Shared {
    pub(super) driver: Driver,
    pub(super) address: IpAddr,
    host: RefCell<Host<Slot, Vec<u8>>>,
    pub(super) links: RefCell<BTreeMap<ConnectionId, Rc<Link>>>,
    /// For whichever connection reads next.
    pub(super) buffer: Cell<Option<Box<[u8]>>>,
    /// Connections that are not up.
    pub(super) attempts: RefCell<BTreeMap<ConnectionId, Rc<socket2::Socket>>>,
    /// Tasks not polled yet.
    starting: RefCell<Vec<LocalBoxFuture<'static, ()>>>,
    /// Somebody polls, or did.
    begun: Cell<bool>,
    /// Nobody will poll any more.
    ended: Cell<bool>,
    runner: RefCell<Option<Waker>>,
    /// Something may be there for a socket, or there may be room.
    pub(super) news: Changes,
    pub(super) clock: Clock,
    /// How connections send.
    pub(super) sending: handoff::Engine,
    /// Who may connect, if not all may.
    pub(super) admits: RefCell<Option<Admits>>,
    /// Connections that are not taken.
    pub(super) refusals: Refusals,
    /// How often TCP was asked what peers have acknowledged.
    pub(super) inquiries: Rc<Cell<u64>>,
    begin: Instant,
    /// The last time that the host was told.
    advanced: Cell<Duration>,
    failed: RefCell<Option<Error>>,
    /// No other engine has the address.
    _claim: Claim,
    /// The listener for peers: empty as long as the port is taken.
    pub(super) listener: OnceCell<Listener>,
    /// Where it listens.
    pub(super) own: SocketAddr,
    /// Why it did not listen at first.
    not_listening: Option<String>,
}

impl Engine {
    /// An engine at one of this host's addresses, in the thread's network namespace. `sending` says how the
    /// library sends.
    ///
    /// # Errors
    ///
    /// [`Error::AddressInUse`] if the address has an engine already, in any process. One of another process may be about
    /// to end, so this waits for it up to two seconds, and blocks the thread. Other errors: the address is not of this
    /// host, or the kernel lacks what is needed.
    pub fn new(
        driver: &Driver,
        address: IpAddr,
        limits: Limits,
        sending: handoff::Engine,
    ) -> Result<Self> {
        Self::listening_at(driver, (address, PORT).into(), limits, sending)
    }

    /// As [`Engine::new`], listening on another port, to which a packet filter redirects connections for
    /// RDS's port. Use it beside the kernel's RDS, which listens on RDS's port as long as its module is
    /// loaded.
    ///
    /// # Errors
    ///
    /// As [`Engine::new`].
    pub fn listening_at(
        driver: &Driver,
        own: SocketAddr,
        limits: Limits,
        sending: handoff::Engine,
    ) -> Result<Self> {
        let address = own.ip();
        let claim = Claim::of(address)?;
        let (listener, not_listening) = match connecting::listen(driver, own) {
            Ok(listener) => (listener.into(), None),
            Err(Error::NotPossible(reason)) => (OnceCell::new(), Some(reason)),
            Err(other) => return Err(other),
        };
        // The hasher's keys are random.
        let generation = RandomState::new().build_hasher().finish() as u32 | 1;
        let shared = Shared {
            driver: driver.clone(),
            address,
            own,
            host: RefCell::new(Host::new(address, generation, limits)),
            links: RefCell::default(),
            buffer: Cell::default(),
            attempts: RefCell::default(),
            starting: RefCell::default(),
            begun: Cell::new(false),
            ended: Cell::new(false),
            runner: RefCell::default(),
            news: Changes::default(),
            clock: Clock::new(driver)?,
            sending,
            admits: RefCell::default(),
            refusals: Refusals::default(),
            inquiries: Rc::default(),
            begin: Instant::now(),
            advanced: Cell::new(Duration::ZERO),
            failed: RefCell::default(),
            _claim: claim,
            listener,
            not_listening,
        };
        let shared = Rc::new(shared);
        Ok(Self { _handles: Rc::new(Handles(shared.clone())), shared })
    }

    /// Takes connections only from where `admits` says yes to, from now on. It asks when it has accepted a
    /// connection, and closes the others at once. This side connects to whomever it sends to; where the peer has the
    /// smaller address, it is the peer that connects, and `admits` has to let it.
    pub fn admit(&self, admits: impl Fn(SocketAddr) -> bool + 'static) {
        self.shared.admits.replace(Some(Rc::new(admits)));
    }

    /// The address.
    pub fn address(&self) -> IpAddr {
        self.shared.address
    }

    /// Why peers with smaller addresses cannot connect; `None` if they can. [`Engine::run`] retries a taken
    /// port for half a minute; [`Engine::changed`] reports when the engine listens.
    pub fn not_listening(&self) -> Option<&str> {
        self.shared.not_listening()
    }

    /// Makes a socket.
    ///
    /// # Errors
    ///
    /// If the port is taken, or is 0.
    pub fn bind(&self, port: u16) -> Result<Socket> {
        self.shared.host().bind(port)?;
        Ok(Socket::new(self.shared.clone(), port))
    }

    /// What was counted.
    pub fn statistics(&self) -> Statistics {
        self.shared.seen().statistics()
    }

    /// How often TCP was asked what peers have acknowledged: a system call each.
    pub fn inquiries(&self) -> u64 {
        self.shared.inquiries.get()
    }

    /// The next event about peers, if there is one.
    pub fn event(&self) -> Option<Event> {
        self.shared.host().event()
    }

    /// Asks whether a peer is there, from a port that need not be bound; [`Event::Pong`] answers.
    ///
    /// # Errors
    ///
    /// As of sends; [`Error::NotPossible`] if the peer would have to connect and cannot.
    pub fn ping(&self, to: IpAddr, from: u16) -> Result<()> {
        self.shared.reachable(to)?;
        self.shared.host().ping(to, from)?;
        self.shared.tell();
        Ok(())
    }

    /// Waits until something has changed, such as a new [`Engine::event`].
    pub async fn changed(&self) {
        self.shared.changed().await;
    }

    /// Serves the sockets as long as you poll it, and ends only with an error. You can call it once.
    pub fn run(&self) -> impl Future<Output = Error> + 'static {
        self.shared.begun.set(true);
        let serving = Serving(self.shared.clone());
        let shared = self.shared.clone();
        shared.spawn(clock::run(shared.clone()));
        shared.spawn(connecting::accept_all(shared.clone()));
        let mut tasks = FuturesUnordered::new();
        poll_fn(move |context| {
            let shared = &serving.0;
            loop {
                tasks.extend(shared.starting.take());
                if let Some(error) = shared.failed.take() {
                    return Poll::Ready(error);
                }
                let over = Pin::new(&mut tasks).poll_next(context);
                if !matches!(over, Poll::Ready(Some(()))) && shared.starting.borrow().is_empty() {
                    *shared.runner.borrow_mut() = Some(context.waker().clone());
                    return Poll::Pending;
                }
            }
        })
    }
}

/// While it exists, tasks are polled. Tasks hold the engine that holds them, so they go with it.
struct Serving(Rc<Shared>);

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// All clones of an engine: without them, nobody can begin to poll tasks.
struct Handles(Rc<Shared>);

impl Drop for Handles {
    fn drop(&mut self) {
        if !self.0.begun.get() {
            self.0.end();
        }
    }
}

impl Shared {
    /// The host, told the current time. Whoever changes it calls [`Shared::settle`] afterwards.
    pub(super) fn host(&self) -> RefMut<'_, Host<Slot, Vec<u8>>> {
        if self.begin.elapsed() >= self.advanced.get() + GRAIN {
            self.advance();
        }
        self.host.borrow_mut()
    }

    /// Tells the host what time it is.
    pub(super) fn advance(&self) {
        self.advanced.set(self.begin.elapsed());
        let links = self.links.borrow();
        let waiting = |id| links.get(&id).map_or(0, |link| link.unread());
        self.host.borrow_mut().advance_with(self.advanced.get(), waiting);
    }

    /// The host, for reading.
    pub(super) fn seen(&self) -> Ref<'_, Host<Slot, Vec<u8>>> {
        self.host.borrow()
    }

    /// The time base of its deadlines.
    pub(super) fn begin(&self) -> Instant {
        self.begin
    }

    fn not_listening(&self) -> Option<&str> {
        self.not_listening.as_deref().filter(|_| self.listener.get().is_none())
    }

    /// Whether a connection to the peer is possible: we connect, or it can connect to us.
    pub(super) fn reachable(&self, peer: IpAddr) -> Result<()> {
        match self.not_listening() {
            Some(reason) if Role::of(self.address, peer) == Some(Role::Server) => {
                Err(Error::NotPossible(format!(
                    "{peer} has the smaller address, so it would have to connect to us: {reason}"
                )))
            }
            _ => Ok(()),
        }
    }

    /// Waits until anything has changed that somebody may wait for.
    pub(super) async fn changed(&self) {
        self.news.after(self.news.seen()).await;
    }

    /// Makes [`Engine::run`] poll one more task, unless it is over.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        if self.ended.get() {
            return;
        }
        self.starting.borrow_mut().push(Box::pin(task));
        if let Some(runner) = self.runner.borrow_mut().take() {
            runner.wake();
        }
    }

    /// Nobody polls tasks any more.
    fn end(&self) {
        self.ended.set(true);
        drop(self.starting.take());
    }

    /// Nothing can go on.
    pub(super) fn fail(&self, error: Error) {
        self.failed.borrow_mut().get_or_insert(error);
        if let Some(runner) = self.runner.borrow_mut().take() {
            runner.wake();
        }
    }

    /// Does what the host asks for, and tells all who wait for something.
    pub(super) fn tell(self: &Rc<Self>) {
        self.settle();
        self.news.tell();
    }

    /// Does what the host asks for.
    pub(super) fn settle(self: &Rc<Self>) {
        loop {
            let Some(output) = self.host.borrow_mut().poll() else { break };
            match output {
                Output::Connect { connection, peer, lane } => {
                    self.spawn(connecting::connect(self.clone(), connection, peer, lane));
                }
                Output::Ready(id) => self.at(id, |link| link.ready.tell()),
                Output::Resume(id) => self.at(id, |link| link.stirred.tell()),
                Output::Accept(peer) => {
                    self.spawn(connecting::accept_waiting(self.clone(), peer));
                }
                Output::CatchUp(id) => self.at(id, Link::catch_up),
                Output::Finish(id) => self.at(id, Link::finish),
                Output::Drain(id) => self.at(id, Link::end),
                Output::Close { connection, peer, reason } => {
                    tracing::info!(%peer, %reason, "a connection is closed");
                    if let Some(attempt) = self.attempts.borrow_mut().remove(&connection) {
                        abort(&*attempt);
                    }
                    if let Some(link) = self.links.borrow_mut().remove(&connection) {
                        link.abort();
                    }
                }
            }
        }
        self.clock.changed.tell();
    }

    fn at(&self, id: ConnectionId, tell: impl FnOnce(&Link)) {
        let link = self.links.borrow().get(&id).cloned();
        link.as_deref().map(tell);
    }

    /// A connection is up: starts its reader and writer.
    pub(super) fn serve(self: &Rc<Self>, link: Link) {
        let link = Rc::new(link);
        self.links.borrow_mut().insert(link.id, link.clone());
        self.spawn(reading::run(self.clone(), link.clone()));
        self.spawn(writing::run(self.clone(), link));
    }

    /// Tells the host what the peer has acknowledged, if that is new.
    pub(super) fn look(&self, link: &Link) -> bool {
        let news = link.look();
        if news {
            self.host().acknowledged(link.id, link.acknowledged.get());
        }
        news
    }

    /// A connection has ended, and everything that had arrived on it is read.
    pub(super) fn ended(self: &Rc<Self>, link: &Link) {
        if link.over.get() {
            return;
        }
        self.look(link);
        link.abort();
        self.links.borrow_mut().remove(&link.id);
        self.host().closed(link.id);
        self.tell();
    }
}
