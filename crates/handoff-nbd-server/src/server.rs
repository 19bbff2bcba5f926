//! The server of a thread: accepts connections as long as there is room, until it must stop.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::future::{pending, poll_fn};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use futures_util::future::{Either, LocalBoxFuture, select};
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use handoff::{Client, Driver, Error, Listeners, Result, Socket};
use rustix::net::sockopt::{
    set_socket_keepalive, set_tcp_keepidle, set_tcp_nodelay, set_tcp_user_timeout,
};

use crate::ending::{End, Ending};
use crate::export::Export;
use crate::limits::Limits;
use crate::served::Served;
use crate::serving;
use crate::sessions::Sessions;
use crate::thread::Thread;

/// Pause after a failed accept, and between looks for room.
const AGAIN: Duration = Duration::from_millis(100);
/// A client that negotiates for less than this keeps its place, whoever waits.
const MOMENT: Duration = Duration::from_secs(1);
/// A host that says nothing is asked after this time.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Serves exports on a driver. Servers of several threads share exports and sessions.
///
/// ```no_run
/// use std::sync::Arc;
///
/// use handoff::Driver;
/// use handoff_nbd_server::{Export, Io, Limits, Server, Sessions, Spec};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let spec = Spec {
///     name: String::new(),
///     path: "disk.img".into(),
///     description: String::new(),
///     read_only: false,
///     temporary: None,
///     io: Io::Auto,
///     minimum: 1,
///     maximum: 32 << 20,
/// };
/// let export = Arc::new(Export::open(spec, false)?);
/// let driver = Driver::builder().in_flight(4096).build()?;
/// let listener = driver.listen(std::net::TcpListener::bind("127.0.0.1:10809")?)?;
/// let server = Server::new(&driver, &[export], &Sessions::new(1), Limits::default())?;
/// driver.block_on(server.serve(listener, std::future::pending()))?;
/// # Ok(()) }
/// ```
pub struct Server {
    thread: Rc<Thread>,
    admits: Box<dyn Fn(Client) -> bool>,
}

impl Server {
    /// A server on `driver`, which needs room for the requests: eight operations for each are enough.
    ///
    /// # Errors
    ///
    /// When there is neither memory nor descriptors for it.
    pub fn new(
        driver: &Driver,
        exports: &[Arc<Export>],
        sessions: &Sessions,
        limits: Limits,
    ) -> Result<Self> {
        let thread = Rc::new(Thread::new(driver, exports, sessions, limits)?);
        Ok(Self { thread, admits: Box::new(|_| true) })
    }

    /// Serves only clients for which `admits` returns true; others are closed at once.
    #[must_use]
    pub fn admitting(self, admits: impl Fn(Client) -> bool + 'static) -> Self {
        Self { admits: Box::new(admits), ..self }
    }

    /// What is copied that need not be, and why.
    pub fn notes(&self) -> &[String] {
        &self.thread.notes
    }

    /// The counts so far.
    pub fn served(&self) -> Served {
        self.thread.counters.read()
    }

    /// Serves until `stop` ends. Then it accepts no more, and requests that have come have [`Limits::grace`] to be answered.
    pub async fn serve(&self, listener: impl Into<Listeners>, stop: impl Future<Output = ()>) {
        let mut listener = listener.into();
        let limits = &self.thread.limits;
        let mut open = Open::new(&self.thread);
        let mut stop = pin!(stop);
        loop {
            if open.len() >= limits.connections {
                listener.pause();
                open.displace();
                let moment = pin!(self.thread.driver.sleep(AGAIN));
                let room = open.below(limits.connections);
                let room = pin!(select(Box::pin(room), moment));
                match select(&mut stop, room).await {
                    Either::Left(_) => break,
                    Either::Right(_) => continue,
                }
            }
            let accepting = pin!(listener.accept());
            match open.beside(select(&mut stop, accepting)).await {
                Either::Left(_) => break,
                Either::Right((Ok((socket, client)), _)) => {
                    let may = (self.admits)(client) && open.has_place(client);
                    match may {
                        true => open.push(socket, client),
                        false => self.thread.counters.write(|served| served.turned_away += 1),
                    }
                }
                Either::Right((Err(error), _)) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    let moment = pin!(self.thread.driver.sleep(AGAIN));
                    if let Either::Left(_) = open.beside(select(&mut stop, moment)).await {
                        break;
                    }
                }
            }
        }
        drop(listener);
        open.stop();
        let left = self.thread.driver.timeout(limits.grace, open.below(1)).await;
        if let Err(Error::TimedOut { .. }) = left {
            tracing::warn!("requests were under way when the time to end was over");
            self.thread.counters.failed("the time to end was over".to_owned());
        }
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("served", &self.served()).finish_non_exhaustive()
    }
}

/// Who a client is, as far as its number of connections counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Who {
    Address(IpAddr),
    User(u32),
}

impl From<Client> for Who {
    fn from(client: Client) -> Self {
        match client {
            Client::Tcp(address) => Self::Address(address.ip().to_canonical()),
            Client::Unix(process) => Self::User(process.uid),
        }
    }
}

/// A client that negotiates.
struct Negotiating {
    number: u64,
    since: Instant,
    ending: Arc<Ending>,
}

/// What connections tell of themselves.
#[derive(Default)]
struct Known {
    negotiating: RefCell<VecDeque<Negotiating>>,
    endings: RefCell<HashMap<u64, Arc<Ending>>>,
    clients: RefCell<HashMap<Who, usize>>,
}

/// The connections of a server, which are served as long as this is polled.
struct Open {
    thread: Rc<Thread>,
    known: Rc<Known>,
    numbers: u64,
    all: FuturesUnordered<LocalBoxFuture<'static, ()>>,
}

impl Open {
    fn new(thread: &Rc<Thread>) -> Self {
        let all = FuturesUnordered::<LocalBoxFuture<'static, ()>>::new();
        // A set whose futures were all polled wakes itself; this one never is.
        all.push(Box::pin(pending()));
        Self { thread: Rc::clone(thread), known: Rc::default(), numbers: 0, all }
    }

    fn len(&self) -> usize {
        self.all.len() - 1
    }

    /// Whether a client has fewer connections than it may.
    fn has_place(&self, client: Client) -> bool {
        let clients = self.known.clients.borrow();
        clients.get(&Who::from(client)).copied().unwrap_or(0) < self.thread.limits.per_client
    }

    fn push(&mut self, socket: Socket, client: Client) {
        if client.address().is_some() {
            prepare(&socket, self.thread.limits.stall);
        }
        self.numbers += 1;
        let number = self.numbers;
        let ending = Arc::<Ending>::default();
        let since = Instant::now();
        let negotiating = Negotiating { number, since, ending: Arc::clone(&ending) };
        self.known.negotiating.borrow_mut().push_back(negotiating);
        self.known.endings.borrow_mut().insert(number, Arc::clone(&ending));
        *self.known.clients.borrow_mut().entry(client.into()).or_default() += 1;
        self.thread.counters.write(|served| {
            served.connections += 1;
            served.open += 1;
            served.most_open = served.most_open.max(served.open);
        });
        let counted = Counted {
            known: Rc::clone(&self.known),
            thread: Rc::clone(&self.thread),
            number,
            client,
        };
        let thread = Rc::clone(&self.thread);
        self.all.push(Box::pin(async move {
            let negotiated = || counted.negotiated();
            serving::serve(thread, socket, client, ending, negotiated).await;
        }));
    }

    /// Ends the connection that has negotiated for longest, if that is long.
    fn displace(&self) {
        let mut negotiating = self.known.negotiating.borrow_mut();
        if negotiating.front().is_some_and(|first| first.since.elapsed() >= MOMENT)
            && let Some(first) = negotiating.pop_front()
        {
            first.ending.tell(End::Stop);
        }
    }

    fn stop(&self) {
        self.known.endings.borrow().values().for_each(|ending| ending.tell(End::Stop));
    }

    /// Serves connections while waiting for something else.
    async fn beside<F: Future>(&mut self, other: F) -> F::Output {
        let mut other = pin!(other);
        poll_fn(|context| {
            while self.all.poll_next_unpin(context).is_ready() {}
            other.as_mut().poll(context)
        })
        .await
    }

    /// Serves connections until there are fewer than so many.
    async fn below(&mut self, most: usize) {
        poll_fn(|context| {
            while self.len() >= most {
                match self.all.poll_next_unpin(context) {
                    Poll::Ready(_) => {}
                    Poll::Pending => return Poll::Pending,
                }
            }
            Poll::Ready(())
        })
        .await;
    }
}

/// A connection that is counted as open.
struct Counted {
    known: Rc<Known>,
    thread: Rc<Thread>,
    number: u64,
    client: Client,
}

impl Counted {
    fn negotiated(&self) {
        self.known.negotiating.borrow_mut().retain(|it| it.number != self.number);
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.negotiated();
        self.known.endings.borrow_mut().remove(&self.number);
        self.thread.counters.write(|served| served.open -= 1);
        let mut clients = self.known.clients.borrow_mut();
        let who = Who::from(self.client);
        if let Some(count) = clients.get_mut(&who) {
            *count -= 1;
            if *count == 0 {
                clients.remove(&who);
            }
        }
    }
}

/// Small replies go at once, and hosts that are gone are noticed.
fn prepare(socket: impl AsFd, stall: Duration) {
    let socket = socket.as_fd();
    let millis = u32::try_from(stall.as_millis()).unwrap_or(u32::MAX).min(i32::MAX as u32);
    let set = set_tcp_nodelay(socket, true)
        .and_then(|()| set_socket_keepalive(socket, true))
        .and_then(|()| set_tcp_keepidle(socket, KEEPALIVE))
        .and_then(|()| set_tcp_user_timeout(socket, millis));
    if let Err(error) = set {
        tracing::info!(%error, "a connection has not all options");
    }
}
