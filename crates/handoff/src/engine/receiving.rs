//! A receive, whichever way: how it starts, what waits to be taken, how it ends.
//!
//! Contracts:
//! - spans come in the order of the stream;
//! - a receive that the kernel ended for want of chunks starts again when one is back;
//! - a receive that nobody waits for is cancelled, and what it draws on outlives it.

use std::rc::Rc;
use std::task::Waker;

use io_uring::cqueue;

use crate::driver::{Backend, Inner};
use crate::engine::mapped::Mapped;
use crate::engine::zcrx::Flow;
use crate::engine::{mapped, multishot, zcrx};
use crate::error::{Error, Result};
use crate::inflight::{Key, Kind, STAGE_READY, STAGE_RECEIVE, Token};
use crate::outcome::Tally;
use crate::ring::Completion;
use crate::socket::SocketShared;
use crate::source::arrivals::Arrivals;
use crate::source::intake::Intake;
use crate::source::pool::PoolShared;
use crate::source::received::Received;
use crate::source::window::Window;

/// How a socket receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReceiveEngine {
    /// `IORING_OP_RECV_ZC` from an rx queue of a NIC (Linux 6.15).
    Zcrx,
    /// The same without a device: the kernel copies (Linux 7.2).
    ZcrxNodev,
    /// `TCP_ZEROCOPY_RECEIVE` (Linux 4.18): the kernel maps what comes in whole pages, and copies the
    /// rest.
    TcpZerocopyReceive,
    /// Multishot `IORING_OP_RECV` into provided buffers (Linux 6.0): the kernel copies.
    Multishot,
    /// epoll and `recv`, without a ring: the kernel copies.
    Epoll,
}

impl ReceiveEngine {
    /// The name on command lines and in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Zcrx => "zcrx",
            Self::ZcrxNodev => "zcrx-nodev",
            Self::TcpZerocopyReceive => "tcp-zerocopy-receive",
            Self::Multishot => "multishot",
            Self::Epoll => "epoll",
        }
    }
}

impl std::fmt::Display for ReceiveEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Where a receive gets its bytes now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Queue,
    Window,
    Pool,
}

/// A receive from its start to its end.
pub(crate) struct ReceiveOp {
    pub(crate) socket: Rc<SocketShared>,
    pub(crate) way: Way,
    pub(crate) flow: Option<Flow>,
    pub(crate) window: Option<Window>,
    pub(crate) mapped: Mapped,
    pub(crate) pool: Option<Rc<PoolShared>>,
    /// Bytes received into the pool.
    pub(crate) copied: u64,
    /// Spans that nobody has taken.
    pub(super) arrivals: Arrivals,
    /// The kernel has the request, or watches the socket.
    pub(crate) armed: bool,
    /// It watches the socket.
    watched: bool,
    /// The kernel did not wait for bytes, as some don't on a socket that is non-blocking: the driver does.
    pub(super) blocked: bool,
    /// Nobody takes what is there, so nothing is added: empty datagrams take no chunk of the pool,
    /// which bounds the others.
    pub(crate) paused: bool,
    /// The stream ended, well or not; told once what came before has been taken.
    pub(crate) end: Option<Result<()>>,
    told: bool,
    pub(crate) held: bool,
    waker: Option<Waker>,
}

impl ReceiveOp {
    pub(crate) fn new(socket: Rc<SocketShared>, intake: Intake) -> Self {
        Self {
            way: match &intake {
                Intake { queue: Some(_), .. } => Way::Queue,
                Intake { window: Some(_), .. } if socket.stream => Way::Window,
                _ => Way::Pool,
            },
            socket,
            arrivals: Arrivals::new(intake.queue.clone()),
            flow: intake.queue.map(Flow::open),
            window: intake.window,
            mapped: Mapped::default(),
            pool: intake.pool,
            copied: 0,
            armed: false,
            watched: false,
            blocked: false,
            paused: false,
            end: None,
            told: false,
            held: true,
            waker: None,
        }
    }

    pub(crate) fn kernel_holds(&self) -> bool {
        self.armed
    }

    /// Nothing comes any more; of several reasons the first is told.
    pub(crate) fn ends(&mut self, how: Result<()>) {
        self.end.get_or_insert(how);
    }

    /// Nobody can turn the driver.
    pub(crate) fn is_last(&mut self) {
        self.ends(Err(Error::DriverGone));
    }

    pub(crate) fn take_waker(&mut self) -> Option<Waker> {
        self.waker.take()
    }

    /// The driver goes: what is received is not wanted any more.
    pub(crate) fn give_up(&mut self) {
        self.held = false;
    }

    pub(crate) fn end_wait(&mut self) {
        self.armed = false;
    }

    pub(crate) fn tally(&self) -> Tally {
        let mut tally = self.flow.as_ref().map(Flow::tally).unwrap_or_default();
        tally.zero_copy += self.mapped.bytes;
        tally.copied += self.copied;
        tally
    }

    /// The engine at work, and why it is this one.
    pub(crate) fn engine(&self, has_ring: bool) -> (ReceiveEngine, String) {
        let engine = match (self.way, &self.flow) {
            (Way::Queue, Some(flow)) => flow.engine(),
            (Way::Window, _) => ReceiveEngine::TcpZerocopyReceive,
            _ if has_ring => ReceiveEngine::Multishot,
            _ => ReceiveEngine::Epoll,
        };
        let reason = match (&self.flow, &self.window, &self.mapped.left) {
            (Some(flow), ..) => flow.reason(),
            (_, _, Some(left)) => left.clone(),
            (_, Some(_), _) if self.way == Way::Window => "a window was given".to_owned(),
            (_, Some(_), _) => "only streams can be mapped".to_owned(),
            _ if has_ring => {
                "the kernel copies into the pool, and nothing else was given".to_owned()
            }
            _ => "there is no ring".to_owned(),
        };
        (engine, reason)
    }

    /// Whether requests of a ring receive.
    fn goes_by_ring(&self, inner: &Inner) -> bool {
        matches!(inner.backend, Backend::Ring(_)) && self.way != Way::Window
    }

    /// What the kernel is to do: receive, or say when there is something.
    fn stage(&self) -> u8 {
        if self.watched { STAGE_READY } else { STAGE_RECEIVE }
    }

    /// Gives the waker of before, to be dropped where it may use the driver.
    pub(crate) fn wait(&mut self, waker: Waker) -> Option<Waker> {
        self.waker.replace(waker)
    }

    /// All that nobody has taken, to be dropped where it may use the driver.
    fn rest(&mut self) -> Vec<Received> {
        self.arrivals.by_ref().collect()
    }
}

/// Has the kernel receive, unless it does or has reason not to. The receive may be over and gone
/// since it was marked.
pub(crate) fn arm(inner: &Inner, key: Key) {
    let socket = {
        let mut inflight = inner.inflight.borrow_mut();
        if inflight.kind(key) != Some(Kind::Receive) {
            return;
        }
        let op = inflight.receive(key);
        if op.armed || op.end.is_some() || !op.held {
            return;
        }
        op.armed = true;
        op.watched = std::mem::take(&mut op.blocked) || !op.goes_by_ring(inner);
        if let (false, Backend::Ring(ring)) = (op.watched, &inner.backend) {
            let entry = match op.way {
                Way::Queue => zcrx::request(inner, op),
                _ => multishot::request(op),
            };
            let mut ring = ring.borrow_mut();
            if let Err(error) = ring.make_room(1) {
                op.armed = false;
                op.ends(Err(Error::io("submitting a receive", error)));
                drop((ring, inflight));
                return advance(inner, key);
            }
            let token = Token { key, stage: STAGE_RECEIVE };
            // SAFETY: the chunks belong to the pool, which the record keeps until the last
            // completion, or to the area, which the driver keeps until the ring is closed.
            unsafe { ring.push(&entry.user_data(token.to_user_data())) };
            return;
        }
        Rc::clone(&op.socket)
    };
    inner.await_readiness(&socket.endpoint, libc::POLLIN, Token { key, stage: STAGE_READY });
}

/// Completions, of which the first is the request's: takes that in, and with it spans of the same
/// request that follow; how many that were.
pub(crate) fn completed(inner: &Inner, key: Key, completions: &[Completion]) -> usize {
    let first = &completions[0];
    let mut inflight = inner.inflight.borrow_mut();
    let op = inflight.receive(key);
    if op.way == Way::Queue && op.held && cqueue::more(first.flags) {
        let taken = zcrx::arrived(inner, key, op, completions);
        inner.news.set(true);
        let waker = op.waker.take();
        drop(inflight);
        inner.wake(waker);
        return taken;
    }
    let again = match op.way {
        Way::Queue => zcrx::completed(inner, key, op, first),
        _ => multishot::completed(key, op, first),
    };
    if again && !op.armed && op.held {
        inner.mark_receive(key);
    }
    drop(inflight);
    advance(inner, key);
    1
}

/// The socket can be read, where that is waited for; or it is time to try again.
pub(crate) fn ready(inner: &Inner, key: Key) {
    {
        let mut inflight = inner.inflight.borrow_mut();
        let op = inflight.receive(key);
        op.armed = false;
        if op.held {
            let again = match op.way {
                _ if op.goes_by_ring(inner) => true,
                Way::Queue => true,
                Way::Window => mapped::ready(key, op),
                Way::Pool => multishot::ready(key, op),
            };
            if again {
                inner.mark_receive(key);
            }
        }
    }
    advance(inner, key);
}

/// Takes over all that is there into what is empty; `false` where nothing is. Spans are many, and a
/// look at the record costs as much as one.
pub(crate) fn take(inner: &Inner, key: Key, into: &mut Arrivals) -> bool {
    let mut inflight = inner.inflight.borrow_mut();
    let op = inflight.receive(key);
    if op.arrivals.is_empty() {
        return false;
    }
    if std::mem::take(&mut op.paused) {
        inner.mark_receive(key);
    }
    into.take_over(&mut op.arrivals);
    true
}

/// How the receive ended, where nothing is to be taken; `None` while it goes on. An error is told once.
pub(crate) fn end(inner: &Inner, key: Key) -> Option<Result<()>> {
    let mut inflight = inner.inflight.borrow_mut();
    let op = inflight.receive(key);
    let end = op.end.as_mut()?;
    let told = std::mem::replace(&mut op.told, true);
    Some(if told { Ok(()) } else { std::mem::replace(end, Ok(())) })
}

/// The holder of a receive goes, and has not handed out all that it took over.
pub(crate) fn let_go(inner: &Inner, key: Key, taken: &mut Arrivals) {
    let (armed, spans) = {
        let mut inflight = inner.inflight.borrow_mut();
        let op = inflight.receive(key);
        op.held = false;
        op.socket.received.set(false);
        if let Some(window) = &op.window {
            window.forget(key);
        }
        if let Some(pool) = &op.pool {
            pool.forget(key);
        }
        if let Some(flow) = &op.flow {
            flow.queue().forget(key);
        }
        (op.armed.then(|| op.stage()), (taken.collect::<Vec<_>>(), op.rest()))
    };
    // Chunks go back to where they came from, which looks at the driver.
    drop(spans);
    if let Some(stage) = armed {
        // What that ends sees to the record; without a ring it is told at once.
        inner.cancel(Token { key, stage });
    } else {
        advance(inner, key);
    }
}

fn advance(inner: &Inner, key: Key) {
    let mut inflight = inner.inflight.borrow_mut();
    let op = inflight.receive(key);
    let mut waker = None;
    if !op.arrivals.is_empty() || op.end.is_some() {
        inner.news.set(true);
        waker = op.waker.take();
    }
    let spans = if op.held { Vec::new() } else { op.rest() };
    let over = (!op.held && !op.armed)
        .then(|| (Rc::clone(&op.socket), op.flow.take(), op.window.take(), op.pool.take()))
        .map(|over| (over, op.waker.take()));
    if over.is_some() {
        inflight.vacate(key);
    }
    // What is dropped or woken may use the driver.
    drop(inflight);
    drop((spans, over));
    inner.wake(waker);
}
