//! Multishot receive into provided buffers: one request, many completions.
//!
//! Contracts:
//! - spans come in the order of the stream;
//! - a receive that the kernel ended for want of chunks starts again when one is back;
//! - a receive that nobody waits for is cancelled, and the pool outlives it.

use std::collections::VecDeque;
use std::rc::Rc;
use std::task::Waker;

use io_uring::{cqueue, opcode};

use crate::driver::{Backend, Inner};
use crate::endpoint::with_target;
use crate::error::{Error, Result};
use crate::inflight::{Key, Kind, STAGE_READY, STAGE_RECEIVE, Token};
use crate::outcome::Tally;
use crate::socket::SocketShared;
use crate::source::pool::PoolShared;
use crate::source::received::Received;

/// A receive from its start to its end.
pub(crate) struct ReceiveOp {
    socket: Rc<SocketShared>,
    pool: Rc<PoolShared>,
    ready: VecDeque<Received>,
    /// The kernel has the request, or watches the socket.
    armed: bool,
    /// Nobody takes what is there, so nothing is added: empty datagrams take no chunk of the pool,
    /// which bounds the others.
    paused: bool,
    /// The stream ended, well or not; told once what came before has been taken.
    end: Option<Result<()>>,
    told: bool,
    received: u64,
    held: bool,
    waker: Option<Waker>,
}

impl ReceiveOp {
    pub(crate) fn new(socket: Rc<SocketShared>, pool: Rc<PoolShared>) -> Self {
        Self {
            socket,
            pool,
            ready: VecDeque::new(),
            armed: false,
            paused: false,
            end: None,
            told: false,
            received: 0,
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
        Tally { copied: self.received, ..Tally::default() }
    }

    /// Gives the waker of before, to be dropped where it may use the driver.
    pub(crate) fn wait(&mut self, waker: Waker) -> Option<Waker> {
        self.waker.replace(waker)
    }

    fn take_in(&mut self, span: Received) {
        self.received += span.len() as u64;
        self.ready.push_back(span);
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
        if let (Backend::Ring(ring), Some(group)) = (&inner.backend, op.pool.group()) {
            let mut ring = ring.borrow_mut();
            if let Err(error) = ring.make_room(1) {
                op.armed = false;
                op.end = Some(Err(Error::io("submitting a receive", error)));
                drop((ring, inflight));
                return advance(inner, key);
            }
            let entry =
                with_target!(op.socket.endpoint, |fd| opcode::RecvMulti::new(fd, group).build());
            let token = Token { key, stage: STAGE_RECEIVE };
            // SAFETY: the chunks belong to the pool, which the record keeps until the last completion.
            unsafe { ring.push(&entry.user_data(token.to_user_data())) };
            return;
        }
        Rc::clone(&op.socket)
    };
    inner.await_readiness(&socket.endpoint, libc::POLLIN, Token { key, stage: STAGE_READY });
}

/// A completion of the multishot request.
pub(crate) fn completed(inner: &Inner, key: Key, result: i32, flags: u32) {
    let mut again = false;
    {
        let mut inflight = inner.inflight.borrow_mut();
        let op = inflight.receive(key);
        if let Some(chunk) = cqueue::buffer_select(flags) {
            let span = op.pool.filled(chunk, result.max(0) as usize);
            if result > 0 || !op.socket.stream {
                op.take_in(span);
            }
        } else if result == 0 && !op.socket.stream {
            let span = op.pool.empty();
            op.take_in(span);
        }
        match result {
            0 if op.socket.stream => op.end = Some(Ok(())),
            0.. => {}
            _ if -result == libc::ENOBUFS => {
                // A chunk may have come back since the kernel looked.
                again = op.pool.has_free();
                if !again && op.held {
                    op.pool.starve(key);
                }
            }
            _ if matches!(-result, libc::EINTR | libc::EAGAIN) => again = true,
            _ => op.end = Some(Err(Error::errno("receiving", -result))),
        }
        if !cqueue::more(flags) {
            op.armed = false;
            op.paused = result >= 0 && op.ready.len() >= op.pool.chunks();
            again |= result >= 0 && !op.paused;
        }
        again &= !op.armed && op.held;
    }
    if again {
        inner.mark_receive(key);
    }
    advance(inner, key);
}

/// The socket can be read, where there is no ring.
pub(crate) fn ready(inner: &Inner, key: Key) {
    {
        let mut inflight = inner.inflight.borrow_mut();
        let op = inflight.receive(key);
        op.armed = false;
        match op.held.then(|| op.pool.take_chunk()) {
            // Nobody would get what is read.
            None => {}
            Some(None) => op.pool.starve(key),
            Some(Some((chunk, start, len))) => {
                // SAFETY: the chunk is ours until it is filled or put back.
                let read = unsafe {
                    libc::recv(
                        op.socket.endpoint.raw(),
                        start.as_ptr().cast(),
                        len,
                        libc::MSG_DONTWAIT,
                    )
                };
                let error = std::io::Error::last_os_error();
                if read > 0 || (read == 0 && !op.socket.stream) {
                    let span = op.pool.filled(chunk, read as usize);
                    op.take_in(span);
                } else {
                    op.pool.untake_chunk(chunk);
                    if read == 0 {
                        op.end = Some(Ok(()));
                    } else if !matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) {
                        op.end = Some(Err(Error::io("receiving", error)));
                    }
                }
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
        op.pool.forget(key);
        (op.armed, std::mem::take(&mut op.ready))
    };
    // Chunks go back to the pool, which looks at the driver.
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
    let over = (!op.held && !op.armed).then(|| (Rc::clone(&op.socket), Rc::clone(&op.pool)));
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
