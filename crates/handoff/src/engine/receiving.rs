//! Receives by any mechanism: how they start, which spans wait, how they end.
//!
//! Contracts:
//! - spans come in the order of the stream;
//! - a receive that the kernel ended for lack of chunks starts again when a chunk is back;
//! - a receive that nobody waits for is cancelled, and its intake outlives it.

use std::ops::Range;
use std::rc::Rc;

use super::{mapped, multishot, zcrx};
use crate::core::Core;
use crate::error::{Error, Result};
use crate::lease::Arrivals;
use crate::op::{End, ReceiveState, ReceivesFrom};
use crate::ring::token::Stage;
use crate::ring::{Completion, Key, RawSpan, Token};

/// Makes the kernel receive, unless it already does or there is a reason not to.
pub(crate) fn arm(core: &Core, key: Key) {
    let socket = {
        let mut records = core.records.borrow_mut();
        let op = records.receive(key);
        if op.kernel_holds() || op.has_ended() || op.holder.is_gone() {
            return;
        }
        if op.socket.is_at_its_end() {
            // The kernel would wait for the end of the connection.
            op.end(Ok(()));
            drop(records);
            return advance(core, key);
        }
        let by_calls = op.socket.is_ciphered() && !op.goes_by_ring(core.io.has_ring());
        if by_calls && !multishot::decipher(key, op) {
            drop(records);
            return advance(core, key);
        }
        let watches = op.state == ReceiveState::Blocked || !op.goes_by_ring(core.io.has_ring());
        if let (false, Some(ring)) = (watches, core.io.ring()) {
            let entry = match op.from {
                ReceivesFrom::Queue => zcrx::request(core, op),
                _ => multishot::request(op),
            };
            let mut ring = ring.borrow_mut();
            if let Err(error) = ring.make_room(1) {
                op.end(Err(Error::io("submitting a receive", error)));
                drop((ring, records));
                return advance(core, key);
            }
            let token = Token { key, stage: Stage::Receive };
            // SAFETY: the chunks belong to the pool, which the record keeps until the last
            // completion, or to the area, which the driver keeps until the ring is closed.
            unsafe { ring.push(&entry.user_data(token.to_user_data())) };
            op.state = ReceiveState::Receiving;
            return;
        }
        op.state = ReceiveState::Watching;
        Rc::clone(&op.socket)
    };
    core.await_readiness(&socket.endpoint, libc::POLLIN, Token { key, stage: Stage::Ready });
    if socket.is_ciphered() {
        // For what came by now.
        advance(core, key);
    }
}

/// A completion of the request, or a run of completions of spans, which are among these places.
pub(crate) fn completed(core: &Core, key: Key, completion: &Completion, places: &[RawSpan]) {
    let mut records = core.records.borrow_mut();
    let op = records.receive(key);
    let again = if !completion.spans.is_empty() {
        let Range { start, end } = completion.spans;
        zcrx::arrived(core, key, op, &places[start as usize..end as usize]);
        false
    } else if op.from == ReceivesFrom::Queue {
        zcrx::completed(core, key, op, completion)
    } else {
        multishot::completed(key, op, completion)
    };
    if again && !op.kernel_holds() && !op.holder.is_gone() {
        core.pending.mark_receive(key);
    }
    drop(records);
    advance(core, key);
}

/// The socket is readable, if that was waited for; or it is time to try again.
pub(crate) fn ready(core: &Core, key: Key) {
    {
        let mut records = core.records.borrow_mut();
        let op = records.receive(key);
        op.state = ReceiveState::Idle;
        if !op.holder.is_gone() {
            let again = match op.from {
                _ if op.goes_by_ring(core.io.has_ring()) => true,
                _ if op.socket.is_ciphered() => true,
                ReceivesFrom::Queue => true,
                ReceivesFrom::Window => mapped::ready(key, op),
                ReceivesFrom::Pool => multishot::ready(key, op),
            };
            if again {
                core.pending.mark_receive(key);
            }
        }
    }
    advance(core, key);
}

/// Moves everything that has arrived into an empty `Arrivals`; `false` if there is nothing. Spans are many,
/// and looking at the record costs as much as a span.
pub(crate) fn take(core: &Core, key: Key, into: &mut Arrivals) -> bool {
    let mut records = core.records.borrow_mut();
    let op = records.receive(key);
    if op.arrivals.is_empty() {
        return false;
    }
    if op.state == ReceiveState::Paused {
        op.state = ReceiveState::Idle;
        core.pending.mark_receive(key);
    }
    into.take_over(&mut op.arrivals);
    true
}

/// Whether there is something to take, or the receive is over.
pub(crate) fn has_news(core: &Core, key: Key) -> bool {
    let mut records = core.records.borrow_mut();
    let op = records.receive(key);
    !op.arrivals.is_empty() || op.has_ended()
}

/// How the receive ended, if nothing is left to take; `None` while it goes on. An error is reported once.
pub(crate) fn end(core: &Core, key: Key) -> Option<Result<()>> {
    let mut records = core.records.borrow_mut();
    let op = records.receive(key);
    match std::mem::replace(&mut op.end, End::Told) {
        End::Open => {
            op.end = End::Open;
            None
        }
        End::Came(end) => Some(end),
        End::Told => Some(Ok(())),
    }
}

/// The holder of a receive goes, with spans that it took over and has not handed out.
pub(crate) fn let_go(core: &Core, key: Key, taken: &mut Arrivals) {
    let (stage, spans, _waker) = {
        let mut records = core.records.borrow_mut();
        let op = records.receive(key);
        op.socket.reception.end();
        if let Some(window) = &op.window {
            window.forget(key);
        }
        if let Some(pool) = &op.pool {
            pool.forget(key);
        }
        if let Some(flow) = &op.flow {
            flow.queue().forget(key);
        }
        (op.stage(), (taken.collect::<Vec<_>>(), op.rest()), op.holder.leave())
    };
    // Chunks go back to their pool or queue, which uses the driver.
    drop(spans);
    if let Some(stage) = stage {
        // The end of the wait settles the record; without a ring the record is told at once.
        if core.cancel(Token { key, stage }) {
            ready(core, key);
        }
    } else {
        advance(core, key);
    }
}

/// The kernel did not find the request of a receive that is to end, or to leave its queue.
pub(crate) fn cancel_again(core: &Core, key: Key) {
    let stage = {
        let mut records = core.records.borrow_mut();
        let op = records.receive(key);
        let flow = op.flow.as_ref().filter(|_| op.from == ReceivesFrom::Queue);
        let leaves = flow.is_some_and(|flow| flow.left.is_some());
        op.stage().filter(|_| op.holder.is_gone() || leaves)
    };
    if let Some(stage) = stage {
        let ended = core.cancel(Token { key, stage });
        debug_assert!(!ended, "a ring tells of all that it ends");
    }
}

fn advance(core: &Core, key: Key) {
    let mut records = core.records.borrow_mut();
    let op = records.receive(key);
    let mut waker = None;
    if !op.arrivals.is_empty() || op.has_ended() {
        core.news.set(true);
        waker = op.holder.take_waker();
    }
    let spans = if op.holder.is_gone() { op.rest() } else { Vec::new() };
    let over = (op.holder.is_gone() && !op.kernel_holds())
        .then(|| (Rc::clone(&op.socket), op.flow.take(), op.window.take(), op.pool.take()));
    if over.is_some() {
        records.vacate(key);
    }
    // What is dropped or woken may use the driver.
    drop(records);
    drop((spans, over));
    core.wakes().wake(waker);
}
