//! When a send may start: at once on a datagram socket, in order on a stream.
//!
//! Contracts:
//! - on a stream no byte of a send goes before all bytes of the sends accepted earlier: what goes to
//!   the ring together is one chain of links, in which a short send stops all that follow, and what
//!   was stopped comes again in the same order; a send that takes several requests ends its chain;
//! - after a send that ended midway nothing follows on its stream.

use std::collections::VecDeque;
use std::rc::Rc;

use super::sending;
use super::uring_zc::{self, Place};
use super::{Engine, copy, msg_zerocopy};
use crate::driver::{Backend, Inner};
use crate::error::Error;
use crate::inflight::{Key, STAGE_HEADER, STAGE_READY, Token};
use crate::ring::Ring;
use crate::socket::SocketShared;

/// The most requests chained at once.
const CHAIN: usize = 32;

/// The sends of a stream that are accepted and not all taken by the kernel.
#[derive(Default)]
pub(crate) struct StreamQueue {
    waiting: VecDeque<Key>,
    /// So many at the front are with the ring, or the first waits for the socket.
    started: usize,
    /// Whether the driver knows that there is something to start.
    marked: bool,
    /// Bytes that the kernel took, and bytes there were, of a send that ended midway.
    broken: Option<(usize, usize)>,
    /// A lane sends on the stream.
    lane: bool,
}

impl StreamQueue {
    pub(crate) fn broken(&self) -> Option<Error> {
        self.broken.map(|(sent, total)| Error::StreamBroken { sent, total })
    }

    /// Why no send of its own goes on the stream now.
    #[inline]
    pub(crate) fn refusal(&self) -> Option<Error> {
        if self.lane {
            return Some(Error::Invalid(
                "a lane sends on this stream: push into it, or drop it and turn the driver until it is empty",
            ));
        }
        self.broken()
    }

    /// A lane takes the stream over.
    pub(crate) fn open_lane(&mut self) -> Result<(), Error> {
        if let Some(error) = self.refusal() {
            return Err(error);
        }
        if !self.is_idle() {
            return Err(Error::Invalid(
                "sends are under way on this stream: a lane waits for their end",
            ));
        }
        self.lane = true;
        Ok(())
    }

    pub(crate) fn close_lane(&mut self) {
        self.lane = false;
    }

    /// So many bytes of so many went out, and the rest does not.
    pub(crate) fn break_off(&mut self, sent: usize, total: usize) {
        self.broken.get_or_insert((sent, total));
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }
}

/// How an attempt by system call went.
pub(crate) enum Attempt {
    /// The send is settled.
    Settled,
    /// The socket takes nothing now.
    Blocked,
    /// The ring has it.
    Submitted,
}

/// Starts an accepted send, or puts it behind those before it.
pub(crate) fn accept(inner: &Inner, socket: &Rc<SocketShared>, key: Key) {
    if socket.stream {
        socket.queue.borrow_mut().waiting.push_back(key);
        pump_or_mark(inner, socket);
    } else {
        start_datagram(inner, key);
    }
}

fn start_datagram(inner: &Inner, key: Key) {
    let mut inflight = inner.inflight.borrow_mut();
    let (op, layout) = inflight.send_and_layout(key);
    if let (true, Backend::Ring(ring)) = (op.goes_by_ring(), &inner.backend) {
        let mut ring = ring.borrow_mut();
        match ring.make_room(1) {
            Ok(()) => {
                uring_zc::queue(&mut ring, key, op, layout, Place::Alone, false, inner.turns());
                drop((inflight, ring));
                return inner.attend();
            }
            Err(error) => op.settle(Err(Error::io("submitting a send", error))),
        }
    } else {
        drop(inflight);
        match attempt(inner, key) {
            Attempt::Settled => {}
            Attempt::Blocked => return wait_for_room(inner, key),
            Attempt::Submitted => return,
        }
        inflight = inner.inflight.borrow_mut();
    }
    sending::advance_held(inner, inflight, key);
}

fn attempt(inner: &Inner, key: Key) -> Attempt {
    let engine = inner.inflight.borrow_mut().send(key).engine;
    match engine {
        Engine::MsgZerocopy => msg_zerocopy::attempt(inner, key),
        _ => copy::attempt(inner, key),
    }
}

/// Goes on with a send when its socket has room.
pub(crate) fn wait_for_room(inner: &Inner, key: Key) {
    let endpoint = {
        let mut inflight = inner.inflight.borrow_mut();
        let op = inflight.send(key);
        op.in_kernel += 1;
        Rc::clone(&op.socket)
    };
    inner.await_readiness(&endpoint.endpoint, libc::POLLOUT, Token { key, stage: STAGE_READY });
}

/// The socket of a send has room, or failed: either way the next attempt tells.
pub(crate) fn ready(inner: &Inner, key: Key) {
    let socket = {
        let mut inflight = inner.inflight.borrow_mut();
        let op = inflight.send(key);
        op.in_kernel -= 1;
        if op.cancelled && op.result.is_none() {
            let done = op.done;
            op.settle(Err(Error::Canceled { done }));
        }
        Rc::clone(&op.socket)
    };
    progressed(inner, &socket, key);
}

/// A send was settled, got further, or is to be started again, and its record may be gone after
/// this. Called when nothing of it is with the kernel but lent pages.
pub(crate) fn progressed(inner: &Inner, socket: &Rc<SocketShared>, key: Key) {
    if socket.stream {
        come_back(inner, socket, key);
        sending::advance(inner, key);
        pump_or_mark(inner, socket);
    } else {
        let settled = inner.inflight.borrow_mut().send(key).result.is_some();
        if settled {
            sending::advance(inner, key);
        } else {
            start_datagram(inner, key);
        }
    }
}

/// A started send of a stream is ours again: settled, it leaves the queue.
fn come_back(inner: &Inner, socket: &SocketShared, key: Key) {
    let mut queue = socket.queue.borrow_mut();
    queue.started -= 1;
    let mut inflight = inner.inflight.borrow_mut();
    let op = inflight.send(key);
    if let Some(result) = &op.result {
        // Those that start first end first, but for what was cancelled.
        if let Some(place) = queue.waiting.iter().position(|waiting| *waiting == key) {
            queue.waiting.remove(place);
        }
        if result.is_err() && op.done > 0 && queue.broken.is_none() {
            queue.broken = Some((op.done, op.total));
        }
    }
}

/// Sends by system call start at once; those of the ring together, when the driver next submits.
fn pump_or_mark(inner: &Inner, socket: &Rc<SocketShared>) {
    let mut queue = socket.queue.borrow_mut();
    if queue.started > 0 || queue.marked {
        return;
    }
    let Some(head) = queue.waiting.front() else { return };
    let by_ring = inner.inflight.borrow_mut().send(*head).goes_by_ring();
    if by_ring {
        queue.marked = true;
        inner.mark(Rc::clone(socket));
    } else {
        drop(queue);
        pump(inner, socket);
    }
}

/// Starts what can be started on a stream.
pub(crate) fn pump(inner: &Inner, socket: &Rc<SocketShared>) {
    socket.queue.borrow_mut().marked = false;
    loop {
        let head = {
            let queue = socket.queue.borrow();
            match queue.waiting.front() {
                Some(head) if queue.started == 0 => *head,
                _ => return,
            }
        };
        let attempt = match (end_if_due(inner, socket, head), &inner.backend) {
            (None, _) => Attempt::Settled,
            (Some(true), Backend::Ring(ring)) => chain(inner, &mut ring.borrow_mut(), socket),
            (Some(_), _) => {
                socket.queue.borrow_mut().started = 1;
                attempt(inner, head)
            }
        };
        match attempt {
            Attempt::Settled => {
                socket.queue.borrow_mut().started = 1;
                come_back(inner, socket, head);
                sending::advance(inner, head);
            }
            Attempt::Blocked => return wait_for_room(inner, head),
            Attempt::Submitted => return,
        }
    }
}

/// Asks for a send to end: at once when it is waiting, else through the kernel.
pub(crate) fn cancel(inner: &Inner, key: Key) {
    let (socket, under_way) = {
        let mut inflight = inner.inflight.borrow_mut();
        let op = inflight.send(key);
        if op.result.is_some() || op.cancelled {
            return;
        }
        op.cancelled = true;
        let stages = [op.next_attempt(), STAGE_HEADER, STAGE_READY];
        let under_way = (op.in_kernel > 0).then_some(stages);
        if under_way.is_none() {
            let done = op.done;
            op.settle(Err(Error::Canceled { done }));
        }
        (Rc::clone(&op.socket), under_way)
    };
    if let Some(stages) = under_way {
        for stage in stages {
            inner.cancel(Token { key, stage });
        }
        if msg_zerocopy::forget_starved(&socket, key) {
            ready(inner, key);
        }
        return;
    }
    // It counts as started for a moment, so that it leaves the queue as any other.
    socket.queue.borrow_mut().started += 1;
    come_back(inner, &socket, key);
    sending::advance(inner, key);
}

/// Settles a send that is not to start any more; otherwise says whether the ring sends it.
fn end_if_due(inner: &Inner, socket: &SocketShared, key: Key) -> Option<bool> {
    let mut inflight = inner.inflight.borrow_mut();
    let op = inflight.send(key);
    if let Some(error) = socket.queue.borrow().broken() {
        op.settle(Err(error));
    } else if op.cancelled {
        let done = op.done;
        op.settle(Err(Error::Canceled { done }));
    }
    op.result.is_none().then(|| op.goes_by_ring())
}

/// Queues the sends at the front of a stream as one chain.
fn chain(inner: &Inner, ring: &mut Ring, socket: &SocketShared) -> Attempt {
    let mut queue = socket.queue.borrow_mut();
    let mut inflight = inner.inflight.borrow_mut();
    let most = CHAIN.min(ring.entries());
    let mut requests = 0;
    let mut sends = 0;
    for key in &queue.waiting {
        let op = inflight.send(*key);
        let more = uring_zc::requests(op);
        if !op.goes_by_ring() || op.cancelled || requests + more > most {
            break;
        }
        requests += more;
        sends += 1;
        if !uring_zc::carries_all(op) {
            break;
        }
    }
    if let Err(error) = ring.make_room(requests) {
        inflight.send(queue.waiting[0]).settle(Err(Error::io("submitting a send", error)));
        return Attempt::Settled;
    }
    for (number, key) in queue.waiting.iter().take(sends).enumerate() {
        let (op, layout) = inflight.send_and_layout(*key);
        let place = match number {
            _ if requests == 1 => Place::Alone,
            0 => Place::First,
            _ => Place::Behind,
        };
        uring_zc::queue(ring, *key, op, layout, place, number + 1 < sends, inner.turns());
    }
    if requests > 1 {
        inner.in_chains.update(|before| before + requests as u32);
        if !socket.crowded.get() {
            ring.expect_to_go_through(requests);
        }
    }
    queue.started = sends;
    Attempt::Submitted
}
