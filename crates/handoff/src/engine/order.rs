//! When a send may start: at once on a datagram socket, in order on a stream and on a Unix socket.
//!
//! Engines send, and return what came of it; this module decides what starts next. No engine calls it.
//!
//! Contracts:
//! - on a stream no byte of a send goes before all bytes of the sends accepted earlier: sends that go to
//!   the ring together form one chain of links. A short send stops all that follow, and stopped sends are
//!   submitted again in the same order. A send that takes several requests ends its chain;
//! - on a stream nothing follows a send that ended midway.

use std::cell::RefMut;
use std::rc::Rc;

use io_uring::cqueue;

use super::msg_zerocopy::Reported;
use super::sending::Attempt;
#[cfg(feature = "tls")]
use super::tls;
use super::uring_zc::Next;
use super::{copy, msg_zerocopy, sending, uring_zc};
use crate::core::Core;
use crate::error::Error;
use crate::mechanism::Engine;
use crate::op::{InChain, Records, SocketShared};
use crate::ring::token::Stage;
use crate::ring::{Backend, Completion, Key, Ring, Token};

/// The most requests chained at once.
const CHAIN: usize = 32;

/// Starts an accepted send, or queues it behind earlier ones.
#[inline]
pub(crate) fn accept<'a>(
    core: &'a Core,
    mut records: RefMut<'a, Records>,
    socket: &Rc<SocketShared>,
    key: Key,
) {
    if records.send(key).keeps_order() {
        drop(records);
        socket.queue.borrow_mut().waiting.push_back(key);
        pump_or_mark(core, socket);
    } else {
        start_datagram(core, records, key);
    }
}

fn start_datagram<'a>(core: &'a Core, mut records: RefMut<'a, Records>, key: Key) {
    let (op, layout) = records.send_and_layout(key);
    if let (true, Backend::Ring(ring)) = (op.goes_by_ring(), &core.io.backend) {
        let mut ring = ring.borrow_mut();
        match ring.make_room(1) {
            Ok(()) => {
                uring_zc::queue(&mut ring, key, op, layout, InChain::Alone, false, core.turns());
                drop((records, ring));
                return core.wakes().attend();
            }
            Err(error) => op.fail(Error::io("submitting a send", error)),
        }
    } else {
        drop(records);
        match attempt(core, key) {
            Attempt::Settled => {}
            Attempt::Blocked => return wait_for_room(core, key),
            Attempt::Submitted => return,
        }
        records = core.records.borrow_mut();
    }
    sending::advance_held(core, records, key);
}

fn attempt(core: &Core, key: Key) -> Attempt {
    let engine = core.records.borrow_mut().send(key).engine;
    match engine {
        Engine::MsgZerocopy => msg_zerocopy::attempt(core, key),
        #[cfg(feature = "tls")]
        Engine::KernelTls | Engine::UserTls => tls::attempt(core, key),
        _ => copy::attempt(core, key),
    }
}

/// Handles the completions at the front that belong to sends of the ring; returns their number.
pub(crate) fn completed(core: &Core, all: &[Completion]) -> usize {
    let mut records = core.records.borrow_mut();
    let mut told = 0;
    for completion in all {
        let token = Token::from_user_data(completion.data);
        let attempt = match token.stage {
            Stage::Attempt(number) => Some(number),
            Stage::Header => None,
            _ => break,
        };
        told += 1;
        let key = token.key;
        let Some(op) = records.send_if_current(key) else {
            debug_assert!(cqueue::notif(completion.flags), "the last completion of a record");
            continue;
        };
        #[cfg(feature = "tls")]
        let next = match op.by_slot {
            true => tls::tell(core, op, completion.result),
            false => uring_zc::tell(core, op, attempt, completion),
        };
        #[cfg(not(feature = "tls"))]
        let next = uring_zc::tell(core, op, attempt, completion);
        match next {
            Next::Nothing => continue,
            Next::SettleUp => sending::settle_up(core, records, key),
            Next::WaitForRoom => {
                drop(records);
                wait_for_room(core, key);
            }
            Next::Progressed => {
                let socket = Rc::clone(op.socket());
                drop(records);
                progressed(core, &socket, key);
            }
        }
        records = core.records.borrow_mut();
    }
    told
}

/// Continues a send when its socket has room.
fn wait_for_room(core: &Core, key: Key) {
    let (socket, unwatched) = {
        let mut records = core.records.borrow_mut();
        let op = records.send(key);
        op.in_kernel += 1;
        op.waits_for_room = true;
        // A Unix socket tells of room at the peer that it is connected to, not of room at others.
        (Rc::clone(op.socket()), op.socket().unix && !op.keeps_order())
    };
    let token = Token { key, stage: Stage::Ready };
    match unwatched {
        true => core.tell_later(token),
        false => core.await_readiness(&socket.endpoint, libc::POLLOUT, token),
    }
}

/// The socket of a send has room, or failed: the next attempt tells which.
pub(crate) fn ready(core: &Core, key: Key) {
    let socket = {
        let mut records = core.records.borrow_mut();
        let op = records.send(key);
        op.in_kernel -= 1;
        op.waits_for_room = false;
        op.end_if_ending();
        Rc::clone(op.socket())
    };
    progressed(core, &socket, key);
}

/// The error queue that a send watches has something: sends have returned, and those that waited for that try again.
pub(crate) fn returned(core: &Core, key: Key) {
    let Reported { socket, any, starved } = msg_zerocopy::reported(core, key);
    for key in starved {
        ready(core, key);
    }
    msg_zerocopy::watch_again(core, key, &socket, !any);
}

/// A send was settled, progressed, or must start again; its record may be gone after this. Called when the
/// kernel has nothing of it but lent pages.
fn progressed(core: &Core, socket: &Rc<SocketShared>, key: Key) {
    let mut records = core.records.borrow_mut();
    if records.send(key).keeps_order() {
        drop(records);
        come_back_and_advance(core, socket, key);
        pump_or_mark(core, socket);
    } else {
        if records.send(key).is_settled() {
            sending::advance_held(core, records, key);
        } else {
            start_datagram(core, records, key);
        }
    }
}

/// A started send of a stream is ours again: tells those who wait for it, or for all sends of the stream.
fn come_back_and_advance(core: &Core, socket: &Rc<SocketShared>, key: Key) {
    let (was_first, cut) = come_back(core, socket, key);
    if cut && socket.is_left() {
        core.leave_stream(socket);
    }
    sending::advance(core, key);
    let ends = socket.queue.borrow_mut().take_end();
    if ends {
        socket.end_writing_now();
    }
    let queue = socket.queue.borrow();
    let flushed = queue.take_flushed();
    let next = queue.waiting.front().copied().filter(|_| was_first && queue.started > 0);
    drop(queue);
    if let Some(next) = next {
        // Its turn has come.
        cancel_again(core, next);
    }
    if !flushed.is_empty() {
        core.wakes().wake_many(flushed);
    }
}

/// A started send of a stream is ours again: if settled, it leaves the queue. Returns whether it was the first there, and
/// whether it ended midway.
fn come_back(core: &Core, socket: &SocketShared, key: Key) -> (bool, bool) {
    let (mut was_first, mut cut) = (false, false);
    let mut queue = socket.queue.borrow_mut();
    queue.started -= 1;
    let mut records = core.records.borrow_mut();
    let op = records.send(key);
    if op.is_settled() {
        // Sends that start first end first, except cancelled ones.
        if let Some(place) = queue.waiting.iter().position(|waiting| *waiting == key) {
            queue.waiting.remove(place);
            was_first = place == 0;
        }
        let is_cut = op.done < op.total && (op.done > 0 || socket.has_part_in_records());
        if socket.stream && is_cut {
            queue.break_off(op.done, op.total);
            cut = true;
        }
    }
    (was_first, cut)
}

/// Sends by system call start at once; those of the ring start together, at the driver's next submission.
fn pump_or_mark(core: &Core, socket: &Rc<SocketShared>) {
    let mut queue = socket.queue.borrow_mut();
    if queue.started > 0 || queue.marked {
        return;
    }
    let Some(head) = queue.waiting.front() else { return };
    let by_ring = core.records.borrow_mut().send(*head).goes_by_ring();
    if by_ring {
        queue.marked = true;
        core.mark_stream(socket);
    } else {
        drop(queue);
        pump(core, socket);
    }
}

/// Starts the sends of a stream that can start.
pub(crate) fn pump(core: &Core, socket: &Rc<SocketShared>) {
    socket.queue.borrow_mut().marked = false;
    loop {
        let head = {
            let queue = socket.queue.borrow();
            match queue.waiting.front() {
                Some(head) if queue.started == 0 => *head,
                _ => return,
            }
        };
        let attempt = match (settle_if_stopped(core, socket, head), &core.io.backend) {
            (None, _) => Attempt::Settled,
            #[cfg(feature = "tls")]
            (Some(true), Backend::Ring(ring)) if core.records.borrow_mut().send(head).by_slot => {
                socket.queue.borrow_mut().started = 1;
                tls::submit(core, ring, head)
            }
            (Some(true), Backend::Ring(ring)) => chain(core, &mut ring.borrow_mut(), socket),
            (Some(_), _) => {
                socket.queue.borrow_mut().started = 1;
                attempt(core, head)
            }
        };
        match attempt {
            Attempt::Settled => {
                socket.queue.borrow_mut().started = 1;
                come_back_and_advance(core, socket, head);
            }
            Attempt::Blocked => return wait_for_room(core, head),
            Attempt::Submitted => return,
        }
    }
}

/// Asks for a send to end: at once if it waits, else through the kernel.
pub(crate) fn cancel(core: &Core, key: Key) {
    // It may end other sends of the stream, too.
    core.wakes().wake_behind(|| end_early(core, key));
}

fn end_early(core: &Core, key: Key) {
    let (socket, held) = {
        let mut records = core.records.borrow_mut();
        let op = records.send(key);
        if !op.ask_to_end() {
            return;
        }
        let held = op.in_kernel > 0;
        if !held {
            op.end_if_ending();
        }
        (Rc::clone(op.socket()), held)
    };
    if held {
        ask_kernel(core, key);
        if msg_zerocopy::forget_starved(&socket, key) {
            ready(core, key);
        }
        return;
    }
    // It counts as started for a moment, so that it leaves the queue like any other.
    socket.queue.borrow_mut().started += 1;
    come_back_and_advance(core, &socket, key);
}

/// Asks the kernel to end the request that holds a send up.
fn ask_kernel(core: &Core, key: Key) {
    let stage = core.records.borrow_mut().send(key).under_way();
    if stage.is_some_and(|stage| core.cancel(Token { key, stage })) {
        ready(core, key);
    }
}

/// The driver goes: sends stop waiting for another's return.
pub(crate) fn give_up(core: &Core, key: Key) {
    let mut records = core.records.borrow_mut();
    let socket = records.send_if_current(key).and_then(|op| op.socket_if_needed().map(Rc::clone));
    drop(records);
    if socket.is_some_and(|socket| msg_zerocopy::forget_starved(&socket, key)) {
        ready(core, key);
    }
}

/// The kernel did not find the request of a send. One behind another in a chain has not begun; it is asked to
/// end when that one is through.
pub(crate) fn cancel_again(core: &Core, key: Key) {
    let has_begun = {
        let mut records = core.records.borrow_mut();
        let op = records.send(key);
        op.is_ending()
            && (!op.keeps_order() || op.socket().queue.borrow().waiting.front() == Some(&key))
    };
    if has_begun {
        ask_kernel(core, key);
    }
}

/// Settles a send that must not start any more; otherwise returns whether the ring sends it.
fn settle_if_stopped(core: &Core, socket: &SocketShared, key: Key) -> Option<bool> {
    let mut records = core.records.borrow_mut();
    let op = records.send(key);
    if let Some(error) = socket.queue.borrow().broken() {
        op.fail(error);
    } else {
        op.end_if_ending();
    }
    (!op.is_settled()).then(|| op.goes_by_ring())
}

/// Queues the sends at the front of a stream as one chain.
fn chain(core: &Core, ring: &mut Ring, socket: &SocketShared) -> Attempt {
    let mut queue = socket.queue.borrow_mut();
    let mut records = core.records.borrow_mut();
    let most = CHAIN.min(ring.entries());
    let mut requests = 0;
    let mut sends = 0;
    for key in &queue.waiting {
        let op = records.send(*key);
        let more = uring_zc::requests(op);
        if !op.goes_by_ring() || op.is_ending() || requests + more > most {
            break;
        }
        requests += more;
        sends += 1;
        if !uring_zc::carries_all(op) {
            break;
        }
    }
    if let Err(error) = ring.make_room(requests) {
        records.send(queue.waiting[0]).fail(Error::io("submitting a send", error));
        return Attempt::Settled;
    }
    for (number, key) in queue.waiting.iter().take(sends).enumerate() {
        let (op, layout) = records.send_and_layout(*key);
        let in_chain = match number {
            _ if requests == 1 => InChain::Alone,
            0 => InChain::First,
            _ => InChain::Behind,
        };
        uring_zc::queue(ring, *key, op, layout, in_chain, number + 1 < sends, core.turns());
    }
    if requests > 1 {
        core.in_chains.update(|before| before + requests as u32);
        if !socket.crowded.get() {
            ring.expect_to_go_through(requests);
        }
    }
    queue.started = sends;
    Attempt::Submitted
}
