//! Zero-copy send by system call: `MSG_ZEROCOPY`.
//!
//! Minimum kernel: 4.14 for TCP, 5.0 for UDP. Capability: none; pages count against
//! `RLIMIT_MEMLOCK` while they are on loan, notification memory against `net.core.optmem_max`.
//!
//! Return signal: the kernel numbers the sends of a socket from 0 and reports ranges of finished sends on the
//! error queue, with a flag when it copied. The oldest send without a report watches the queue for all. For a
//! datagram cut into fragments, Linux 6.18 sometimes reports seconds later (seen over veth).
//!
//! Contracts:
//! - the numbers and the queue belong to the open socket, shared by all its descriptors. So at most one
//!   attachment of a socket sends by this engine, from the first number on: `SO_ZEROCOPY`, which stays set
//!   once numbers were given out, keeps other and later attachments away.

use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::sync::Mutex;

use handoff_sys::zerocopy::{self, Completion, Message};

use super::copy;
use super::sending::{self, Attempt};
use crate::core::Core;
use crate::mechanism::Engine;
use crate::op::SocketShared;
use crate::ring::token::Stage;
use crate::ring::{Key, Token};

/// Switches the mechanism on for a socket, unless somebody else may have used it there.
pub(crate) fn claim(socket: &SocketShared) -> Result<(), String> {
    /// Another thread may attach the same socket.
    static CLAIMING: Mutex<()> = Mutex::new(());

    let outstanding = &mut *socket.outstanding.borrow_mut();
    if outstanding.claimed {
        return Ok(());
    }
    let socket = socket.endpoint.fd.as_fd();
    let refused = |error| format!("the socket refuses SO_ZEROCOPY: {error}");
    let _claiming = CLAIMING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if zerocopy::is_enabled(socket).map_err(refused)? {
        return Err(
            "the open socket has SO_ZEROCOPY set already: another attachment or program sends \
                    by MSG_ZEROCOPY on it, or did, and the kernel numbers the sends of all together"
                .to_owned(),
        );
    }
    zerocopy::enable(socket).map_err(refused)?;
    outstanding.claimed = true;
    Ok(())
}

/// Sends what is left, as much as the socket takes.
pub(crate) fn attempt(core: &Core, key: Key) -> Attempt {
    let mut records = core.records.borrow_mut();
    let (op, layout) = records.send_and_layout(key);
    let socket = Rc::clone(op.socket());
    let mut outstanding = socket.outstanding.borrow_mut();
    if !outstanding.claimed {
        drop(outstanding);
        if let Err(reason) = claim(&socket) {
            socket.lender.chooser.borrow_mut().rule_out(reason);
        }
        outstanding = socket.outstanding.borrow_mut();
    }
    if !outstanding.claimed || outstanding.unsure {
        op.engine = Engine::Copy;
        drop((outstanding, records));
        return copy::attempt(core, key);
    }
    let settled = loop {
        // A send of no bytes gets no number on every protocol, and has nothing to lend.
        let flags = if op.total == 0 { 0 } else { libc::MSG_ZEROCOPY };
        match copy::sendmsg(op, layout, flags) {
            Ok(taken) => {
                if taken > 0 {
                    outstanding.push(key, taken);
                    op.lent.awaiting += 1;
                    op.lent.told_by_socket = true;
                    op.header_lent |= op.header_len() > 0;
                }
                if copy::took(op, taken) {
                    break Attempt::Settled;
                }
            }
            Err(libc::EAGAIN) => break Attempt::Blocked,
            Err(libc::EINTR) => {}
            Err(errno) if op.may_copy_instead(errno) => {
                op.copy_instead(errno);
                drop((outstanding, records));
                return copy::attempt(core, key);
            }
            // The kernel does not put such a send into the same segment as one of the ring.
            Err(libc::ENOBUFS) if socket.lender.lent_by_ring.get() > 0 => {
                op.engine = Engine::Copy;
                drop((outstanding, records));
                return copy::attempt(core, key);
            }
            // No memory for another notification, or the limit on pinned pages is reached.
            Err(libc::ENOBUFS) if !outstanding.sends.is_empty() => {
                op.in_kernel += 1;
                outstanding.starved.push(key);
                break Attempt::Submitted;
            }
            Err(errno) => {
                outstanding.unsure |= !socket.stream && may_be_numbered(errno);
                break copy::fail(op, op.zero_copy_error(errno));
            }
        }
    };
    drop((outstanding, records));
    watch(core, &socket, false);
    settled
}

/// Whether a datagram may have failed after it was built: dropped by a filter or a full queue. Other errors
/// occur while its route is looked up, or take the number back.
fn may_be_numbered(errno: i32) -> bool {
    !matches!(
        errno,
        libc::EMSGSIZE
            | libc::EDESTADDRREQ
            | libc::ECONNREFUSED
            | libc::ENETUNREACH
            | libc::EHOSTUNREACH
            | libc::EINVAL
    )
}

/// Makes the oldest outstanding send wait for the error queue, if it does not already. A socket that is
/// shut down always looks ready: then the queue is looked at `later` only.
fn watch(core: &Core, socket: &Rc<SocketShared>, later: bool) {
    let token = {
        let mut outstanding = socket.outstanding.borrow_mut();
        if outstanding.watched || core.io.is_closing.get() {
            return;
        }
        let Some(oldest) = outstanding.sends.front() else { return };
        let key = oldest.key;
        outstanding.watched = true;
        core.records.borrow_mut().send(key).in_kernel += 1;
        Token { key, stage: Stage::Return }
    };
    // No event is asked for: errors are always told.
    if later {
        core.await_readiness_later(Rc::clone(socket), token);
    } else {
        core.await_readiness(&socket.endpoint, 0, token);
    }
}

/// Removes a send from those that wait for another's return; returns whether it was one.
pub(crate) fn forget_starved(socket: &SocketShared, key: Key) -> bool {
    let starved = &mut socket.outstanding.borrow_mut().starved;
    let place = starved.iter().position(|waiting| *waiting == key);
    place.map(|place| starved.swap_remove(place)).is_some()
}

/// What the error queue of a socket has told.
pub(super) struct Reported {
    pub(super) socket: Rc<SocketShared>,
    /// Whether it told of any send.
    pub(super) any: bool,
    /// Sends that waited for that.
    pub(super) starved: Vec<Key>,
}

/// The error queue has something, or the socket's state looks like it: sends return. The caller starts those that waited
/// for that, and goes on by [`watch_again`].
pub(super) fn reported(core: &Core, key: Key) -> Reported {
    let socket = Rc::clone(core.records.borrow_mut().send(key).socket());
    let ranges = read_error_queue(socket.endpoint.fd.as_fd());
    let mut returned = Vec::new();
    let starved = {
        let mut outstanding = socket.outstanding.borrow_mut();
        outstanding.watched = false;
        for range in &ranges {
            let sends = outstanding.returned(*range);
            returned.extend(sends.into_iter().map(|(key, bytes)| (key, bytes, range.copied)));
        }
        if ranges.is_empty() { Vec::new() } else { std::mem::take(&mut outstanding.starved) }
    };
    for (key, bytes, copied) in returned {
        core.records.borrow_mut().send(key).lent.returned(bytes as u64, Some(copied));
        sending::advance(core, key);
    }
    Reported { socket, any: !ranges.is_empty(), starved }
}

/// Ends the watch of a send over the error queue, which has kept its record until here; the next send watches.
pub(super) fn watch_again(core: &Core, key: Key, socket: &Rc<SocketShared>, later: bool) {
    core.records.borrow_mut().send(key).in_kernel -= 1;
    sending::advance(core, key);
    watch(core, socket, later);
}

fn read_error_queue(socket: BorrowedFd<'_>) -> Vec<Completion> {
    let mut ranges = Vec::new();
    // The next send reports other news of the network.
    while let Ok(Some(message)) = zerocopy::read_error_queue(socket) {
        if let Message::Completion(range) = message {
            ranges.push(range);
        }
    }
    ranges
}
