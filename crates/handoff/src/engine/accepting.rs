//! Accepting connections: multishot accept, or `accept4` where there is no ring.
//!
//! Minimum kernel: 5.19 with a ring, any without. Capability: none.
//!
//! Contracts:
//! - connections come in the kernel's order, and a connection is lost only with its listener;
//! - when [`AcceptOp::has_enough`](crate::op::AcceptOp::has_enough) connections wait to be taken, the engine asks
//!   for no more; connections that the kernel has ready come all at once;
//! - if the process has no descriptor for a connection, the engine reports that once, and tries again by
//!   the clock.

use std::collections::VecDeque;
use std::os::fd::{FromRawFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use io_uring::{cqueue, opcode};

use crate::core::{Core, Then};
use crate::error::{Error, Result};
use crate::op::{AcceptOp, AcceptState};
use crate::ring::endpoint::with_target;
use crate::ring::token::Stage;
use crate::ring::{Backend, Key, Ring, Token};

/// How long to wait before asking again a kernel that has no room for a connection.
const REST: Duration = Duration::from_millis(50);

/// Starts accepting, unless it is under way or there is a reason not to.
fn start(core: &Core, key: Key) {
    {
        let mut records = core.records.borrow_mut();
        let op = records.accept(key);
        if !op.may_start() || core.pending.is_gone() {
            return;
        }
        match &core.io.backend {
            Backend::Ring(ring) => submit(&mut ring.borrow_mut(), key, op),
            Backend::Readiness(_) => call(op),
        }
    }
    core.wakes().attend();
    wait(core, key);
}

fn submit(ring: &mut Ring, key: Key, op: &mut AcceptOp) {
    if let Err(error) = ring.make_room(1) {
        return op.fail(Error::io("submitting an accept", error));
    }
    let flags = libc::SOCK_CLOEXEC;
    let entry = with_target!(op.listener, |fd| opcode::AcceptMulti::new(fd).flags(flags).build());
    let token = Token { key, stage: Stage::Accept };
    // SAFETY: the entry names no memory.
    unsafe { ring.push(&entry.user_data(token.to_user_data())) };
    op.state = AcceptState::Accepting;
}

/// Takes what is there; the listener does not block.
fn call(op: &mut AcceptOp) {
    while !op.has_enough() && op.may_start() {
        let (address, len) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: no address is asked for.
        let fd = unsafe { libc::accept4(op.listener.raw(), address, len, libc::SOCK_CLOEXEC) };
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        take_in(op, if fd < 0 { -errno } else { fd });
    }
}

/// Processes the result of an accept.
fn take_in(op: &mut AcceptOp, result: i32) {
    match -result {
        ..=0 => {
            // SAFETY: the kernel has made the descriptor for us, and told of it once.
            op.arrive(unsafe { OwnedFd::from_raw_fd(result) });
        }
        libc::EAGAIN => op.wait_for(AcceptState::Watching),
        // accept(2): a connection that ended before it was accepted, and network errors; the next accept
        // may succeed.
        libc::EINTR
        | libc::ECANCELED
        | libc::ECONNABORTED
        | libc::ENETDOWN
        | libc::EPROTO
        | libc::ENOPROTOOPT
        | libc::EHOSTDOWN
        | libc::ENONET
        | libc::EHOSTUNREACH
        | libc::ENETUNREACH => {}
        errno @ (libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) => {
            op.note_no_room(errno);
            op.wait_for(AcceptState::Resting);
        }
        errno => op.fail(Error::errno("accepting a connection", errno)),
    }
}

/// Makes the driver wait for what the state says, if that is new.
fn wait(core: &Core, key: Key) {
    let token = Token { key, stage: Stage::Ready };
    let (waits, listener) = {
        let mut records = core.records.borrow_mut();
        let op = records.accept(key);
        (op.begins_to_wait(), Rc::clone(&op.listener))
    };
    match waits {
        Some(AcceptState::Watching) => core.await_readiness(&listener, libc::POLLIN, token),
        Some(_) => {
            core.at(Instant::now() + REST, Then::Tell(token));
        }
        None => {}
    }
    advance(core, key);
}

/// A completion of the request: a connection, or the request's end.
pub(crate) fn completed(core: &Core, key: Key, result: i32, flags: u32) {
    let goes_on = cqueue::more(flags);
    let enough = {
        let mut records = core.records.borrow_mut();
        let op = records.accept(key);
        if !goes_on {
            op.state = AcceptState::Idle;
        }
        take_in(op, result);
        op.has_enough()
    };
    if enough {
        pause(core, key);
    } else if !goes_on {
        start(core, key);
    }
    wait(core, key);
}

/// The listener is readable, if that was waited for, or it is time to try again.
pub(crate) fn ready(core: &Core, key: Key) {
    core.records.borrow_mut().accept(key).state = AcceptState::Idle;
    start(core, key);
    advance(core, key);
}

/// The next connection, or why there is none. Asking starts accepting.
pub(crate) fn take(core: &Core, key: Key) -> Option<Result<OwnedFd>> {
    let taken = core.records.borrow_mut().accept(key).take();
    taken.or_else(|| {
        core.records.borrow_mut().accept(key).paused = false;
        start(core, key);
        core.records.borrow_mut().accept(key).take()
    })
}

/// Stops accepting until somebody asks for a connection. Returns whether that ended a wait of epoll; the
/// record may then be gone.
pub(crate) fn pause(core: &Core, key: Key) -> bool {
    let stage = {
        let mut records = core.records.borrow_mut();
        let op = records.accept(key);
        op.paused = true;
        match op.state {
            AcceptState::Accepting => {
                op.state = AcceptState::Stopping;
                Stage::Accept
            }
            AcceptState::Watching => Stage::Ready,
            AcceptState::Idle | AcceptState::Stopping | AcceptState::Resting => return false,
        }
    };
    let ended = core.cancel(Token { key, stage });
    if ended {
        ready(core, key);
    }
    ended
}

/// The kernel did not find what was to end.
pub(crate) fn cancel_again(core: &Core, key: Key) {
    let stage = {
        let mut records = core.records.borrow_mut();
        let op = records.accept(key);
        match op.state {
            AcceptState::Stopping => Stage::Accept,
            AcceptState::Watching if op.paused => Stage::Ready,
            _ => return,
        }
    };
    let ended = core.cancel(Token { key, stage });
    debug_assert!(!ended, "a ring tells of all that it ends");
}

/// The listener's handle goes.
pub(crate) fn let_go(core: &Core, key: Key) {
    let _waker = core.records.borrow_mut().accept(key).holder.leave();
    if !pause(core, key) {
        advance(core, key);
    }
}

fn advance(core: &Core, key: Key) {
    let mut records = core.records.borrow_mut();
    let op = records.accept(key);
    let mut waker = None;
    if op.has_news() {
        core.news.set(true);
        waker = op.holder.take_waker();
    }
    let rest = if op.holder.is_gone() { op.rest() } else { VecDeque::new() };
    let over = (op.holder.is_gone() && !op.kernel_holds()).then(|| Rc::clone(&op.listener));
    if over.is_some() {
        records.vacate(key);
    }
    // What is dropped or woken may use the driver.
    drop(records);
    drop((rest, over));
    core.wakes().wake(waker);
}
