//! A receive, whichever way: how it starts, what waits to be taken, how it ends.
//!
//! Contracts:
//! - spans come in the order of the stream;
//! - a receive that the kernel ended for want of chunks starts again when one is back;
//! - a receive that nobody waits for is cancelled, and what it draws on outlives it.

use std::collections::VecDeque;
use std::rc::Rc;
use std::task::Waker;

use crate::driver::{Backend, Inner};
use crate::engine::zcrx::Flow;
use crate::engine::{multishot, zcrx};
use crate::error::{Error, Result};
use crate::inflight::{Key, Kind, STAGE_READY, STAGE_RECEIVE, Token};
use crate::outcome::Tally;
use crate::ring::Completion;
use crate::socket::SocketShared;
use crate::source::intake::Intake;
use crate::source::pool::PoolShared;
use crate::source::received::Received;

/// How a socket receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReceiveEngine {
    /// `IORING_OP_RECV_ZC` from an rx queue of a NIC (Linux 6.15).
    Zcrx,
    /// The same without a device: the kernel copies (Linux 7.2).
    ZcrxNodev,
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

/// A receive from its start to its end.
pub(crate) struct ReceiveOp {
    pub(crate) socket: Rc<SocketShared>,
    pub(crate) pool: Option<Rc<PoolShared>>,
    pub(crate) flow: Option<Flow>,
    /// From the queue, not into the pool.
    pub(crate) from_queue: bool,
    /// Bytes received into the pool.
    pub(crate) copied: u64,
    ready: VecDeque<Received>,
    /// The kernel has the request, or watches the socket.
    pub(crate) armed: bool,
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
            socket,
            from_queue: intake.queue.is_some(),
            flow: intake.queue.map(Flow::open),
            pool: intake.pool,
            copied: 0,
            ready: VecDeque::new(),
            armed: false,
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

    /// The driver goes: what is received is not wanted any more.
    pub(crate) fn give_up(&mut self) {
        self.held = false;
    }

    pub(crate) fn end_wait(&mut self) {
        self.armed = false;
    }

    pub(crate) fn tally(&self) -> Tally {
        let mut tally = self.flow.as_ref().map(Flow::tally).unwrap_or_default();
        tally.copied += self.copied;
        tally
    }

    /// The engine at work, and why it is this one.
    pub(crate) fn engine(&self, has_ring: bool) -> (ReceiveEngine, String) {
        let engine = match &self.flow {
            Some(flow) if self.from_queue => flow.engine(),
            _ if has_ring => ReceiveEngine::Multishot,
            _ => ReceiveEngine::Epoll,
        };
        let reason = match &self.flow {
            _ if !has_ring => "there is no ring".to_owned(),
            Some(flow) => flow.reason(),
            None => "no rx queue was given".to_owned(),
        };
        (engine, reason)
    }

    /// Gives the waker of before, to be dropped where it may use the driver.
    pub(crate) fn wait(&mut self, waker: Waker) -> Option<Waker> {
        self.waker.replace(waker)
    }

    pub(crate) fn take_in(&mut self, span: Received) {
        self.ready.push_back(span);
    }

    /// Spans that nobody has taken.
    pub(crate) fn untaken(&self) -> usize {
        self.ready.len()
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
        if let Backend::Ring(ring) = &inner.backend {
            let entry =
                if op.from_queue { zcrx::request(inner, op) } else { multishot::request(op) };
            let mut ring = ring.borrow_mut();
            if let Err(error) = ring.make_room(1) {
                op.armed = false;
                op.end = Some(Err(Error::io("submitting a receive", error)));
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

/// A completion of the request.
pub(crate) fn completed(inner: &Inner, key: Key, completion: &Completion) {
    {
        let mut inflight = inner.inflight.borrow_mut();
        let op = inflight.receive(key);
        let again = if op.from_queue {
            zcrx::completed(inner, key, op, completion)
        } else {
            multishot::completed(key, op, completion)
        };
        if again && !op.armed && op.held {
            inner.mark_receive(key);
        }
    }
    advance(inner, key);
}

/// The socket can be read, where there is no ring; or it is time to try again.
pub(crate) fn ready(inner: &Inner, key: Key) {
    {
        let mut inflight = inner.inflight.borrow_mut();
        let op = inflight.receive(key);
        op.armed = false;
        if op.held {
            let again = op.from_queue || multishot::ready(key, op);
            if again {
                inner.mark_receive(key);
            }
        }
    }
    advance(inner, key);
}

/// Takes the next span, or the end; `None` while there is neither.
pub(crate) fn take(inner: &Inner, key: Key) -> Option<Option<Result<Received>>> {
    let mut inflight = inner.inflight.borrow_mut();
    let op = inflight.receive(key);
    if let Some(span) = op.ready.pop_front() {
        if std::mem::take(&mut op.paused) {
            inner.mark_receive(key);
        }
        return Some(Some(Ok(span)));
    }
    if op.told {
        return Some(None);
    }
    match op.end.as_mut()? {
        Ok(()) => Some(None),
        end => {
            op.told = true;
            std::mem::replace(end, Ok(())).err().map(|error| Some(Err(error)))
        }
    }
}

/// The holder of a receive goes.
pub(crate) fn let_go(inner: &Inner, key: Key) {
    let (armed, spans) = {
        let mut inflight = inner.inflight.borrow_mut();
        let op = inflight.receive(key);
        op.held = false;
        if let Some(pool) = &op.pool {
            pool.forget(key);
        }
        if let Some(flow) = &op.flow {
            flow.queue().forget(key);
        }
        (op.armed, std::mem::take(&mut op.ready))
    };
    // Chunks go back to where they came from, which looks at the driver.
    drop(spans);
    if armed {
        // What that ends sees to the record; without a ring it is told at once.
        let stage =
            if matches!(inner.backend, Backend::Ring(_)) { STAGE_RECEIVE } else { STAGE_READY };
        inner.cancel(Token { key, stage });
    } else {
        advance(inner, key);
    }
}

fn advance(inner: &Inner, key: Key) {
    let mut inflight = inner.inflight.borrow_mut();
    let op = inflight.receive(key);
    let mut waker = None;
    if !op.ready.is_empty() || op.end.is_some() {
        inner.news.set(true);
        waker = op.waker.take();
    }
    let spans = if op.held { VecDeque::new() } else { std::mem::take(&mut op.ready) };
    let over =
        (!op.held && !op.armed).then(|| (Rc::clone(&op.socket), op.pool.take(), op.flow.take()));
    if over.is_some() {
        inflight.vacate(key);
    }
    // What is dropped or woken may use the driver.
    drop(inflight);
    drop((spans, over));
    if let Some(waker) = waker {
        waker.wake();
    }
}
