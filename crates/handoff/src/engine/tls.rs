//! Sends and receives of TLS connections.
//!
//! Contracts:
//! - one send at a time goes out of a socket, and a short one is continued: kernel TLS refuses MSG_WAITALL, and
//!   without that a short request of the ring breaks no chain;
//! - memory is free when its send ends: the cipher has read it.
//!
//! Memory that is registered with the ring goes by its slot (`SEND` with a fixed buffer, Linux 7.2), so that the kernel need
//! not look up its pages. All else goes by calls of sendmsg(2), which start at once; `WRITE_FIXED`, which older kernels have,
//! can raise SIGPIPE.
//!
//! Minimum kernel: see [`ktls`](handoff_sys::ktls); any for what user space ciphers. Capability: none. Return signal: none
//! needed.

use std::cell::RefCell;
use std::ptr::NonNull;
use std::rc::Rc;

use handoff_sys::sqe;
use io_uring::opcode;

use super::copy::{fail, sendmsg, took};
use super::sending::Attempt;
use super::uring_zc::Next;
use crate::core::Core;
use crate::error::Error;
use crate::mechanism::Engine;
use crate::memory::{AddressRange, View};
use crate::op::cipher::{Cipher, Stop};
use crate::op::{SendOp, SendState, SocketShared};
use crate::ring::endpoint::with_target;
use crate::ring::{Key, MAX_REQUEST, Ring, Token};

/// Sends what is left, as much as the socket takes.
pub(crate) fn attempt(core: &Core, key: Key) -> Attempt {
    let mut records = core.records.borrow_mut();
    let (op, layout) = records.send_and_layout(key);
    let socket = Rc::clone(op.socket());
    let fd = &socket.endpoint.fd;
    let mut cipher = socket.cipher.get().expect("the engine is a TLS connection's").borrow_mut();
    if op.closes {
        return match socket.is_whole().then(|| cipher.close(fd)) {
            Some(Err(Stop::Blocked)) => Attempt::Blocked,
            Some(Err(stop)) => fail(op, stop.error("ending TLS")),
            Some(Ok(())) | None => {
                took(op, 0);
                Attempt::Settled
            }
        };
    }
    loop {
        let sent = match &mut *cipher {
            Cipher::Kernel(cipher) => cipher
                .prepare(fd)
                .and_then(|()| sendmsg(op, layout, 0).map_err(Stop::of_errno))
                .inspect(|sent| cipher.count(*sent)),
            Cipher::User(cipher) => {
                let message = layout.message(op, true);
                // SAFETY: the message and its pieces belong to the record, and outlive the call.
                let pieces = unsafe {
                    let message = &*message;
                    std::slice::from_raw_parts(message.msg_iov, message.msg_iovlen)
                };
                let pieces = pieces.iter().map(|piece| {
                    let start = NonNull::new(piece.iov_base.cast()).unwrap_or(NonNull::dangling());
                    // SAFETY: the record has the bytes, and keeps them; others may write them.
                    unsafe { View::new(start, piece.iov_len) }
                });
                cipher.send(fd, pieces)
            }
        };
        match sent {
            Ok(sent) => {
                match &*cipher {
                    Cipher::Kernel(_) => op.lent.account_ciphered(sent as u64),
                    // The kernel copies what was ciphered.
                    Cipher::User(_) => op.lent.account(sent as u64, Some(true)),
                }
                if took(op, sent) {
                    return Attempt::Settled;
                }
            }
            Err(Stop::Blocked) => return Attempt::Blocked,
            Err(Stop::Errno(libc::EINTR)) => {}
            Err(Stop::Errno(errno)) => return fail(op, op.error(errno)),
            Err(stop) => return fail(op, stop.error("sending")),
        }
    }
}

/// Receives by a call, if it is a TLS connection: the number of bytes, 0 at the peer's proper end, or a negative errno.
///
/// # Safety
///
/// The memory is the caller's alone through the call, and has a byte.
pub(super) unsafe fn receive(socket: &SocketShared, start: *mut u8, len: usize) -> Option<i32> {
    let cipher = socket.cipher.get()?;
    // SAFETY: as the caller says.
    Some(unsafe { cipher.borrow_mut().receive(&socket.endpoint.fd, (start, len), false) })
}

/// What the result of a receive by the kernel means.
pub(super) fn received(socket: &SocketShared, result: i32) -> i32 {
    match socket.cipher.get().map(|cipher| cipher.borrow_mut()).as_deref_mut() {
        Some(Cipher::Kernel(cipher)) => cipher.received(&socket.endpoint.fd, result),
        _ => result,
    }
}

/// Whether the ring may send it by the slot of its memory: it is one range of that.
pub(crate) fn goes_by_slot(core: &Core, op: &SendOp) -> bool {
    let Some(ring) = core.io.ring() else { return false };
    let ring = ring.borrow();
    op.engine == Engine::KernelTls
        && ring.sends_registered
        && op.header_len() == 0
        && op.total > 0
        && op.payload_left(ring.id).is_some_and(|range| range.slot.is_some())
}

/// Has the ring send what is left, as much as the socket takes.
pub(super) fn submit(core: &Core, ring: &RefCell<Ring>, key: Key) -> Attempt {
    let mut records = core.records.borrow_mut();
    let (op, _) = records.send_and_layout(key);
    let socket = Rc::clone(op.socket());
    let mut ring = ring.borrow_mut();
    let Some(AddressRange { start, len, slot: Some(slot) }) = op.payload_left(ring.id) else {
        // The memory was taken out of the table.
        op.by_slot = false;
        drop((ring, records));
        return attempt(core, key);
    };
    match socket.prepare_cipher() {
        Ok(true) => {}
        Ok(false) => return Attempt::Blocked,
        Err(error) => return fail(op, error),
    }
    if let Err(error) = ring.make_room(1) {
        return fail(op, Error::io("submitting a send", error));
    }
    let more = if op.more { libc::MSG_MORE } else { 0 };
    let mut entry = with_target!(socket.endpoint, |fd| {
        opcode::Send::new(fd, start, len.min(MAX_REQUEST) as u32)
            .flags(libc::MSG_NOSIGNAL | more)
            .build()
    });
    sqe::set_fixed_buffer(&mut entry, slot);
    entry.set_user_data(Token { key, stage: op.lent.next_attempt() }.to_user_data());
    // SAFETY: the memory belongs to the record, which keeps it until the completion.
    unsafe { ring.push(&entry) };
    op.slot = Some(slot);
    op.in_kernel += 1;
    Attempt::Submitted
}

/// Tells a send by its slot of its completion.
pub(super) fn tell(core: &Core, op: &mut SendOp, result: i32) -> Next {
    op.in_kernel -= 1;
    op.lent.attempted(None);
    match usize::try_from(result) {
        Ok(sent) => {
            op.done += sent;
            op.lent.account_ciphered(sent as u64);
            op.socket().count_ciphered(sent, true);
        }
        Err(_) => match -result {
            libc::EAGAIN if !op.is_ending() => op.state = SendState::Blocked,
            libc::EAGAIN | libc::EINTR => {}
            // Nobody has asked for it, so it is made again.
            libc::ECANCELED if !op.is_ending() => {}
            libc::EFAULT if op.lost_its_slot(core.io.ring_id()) => {}
            errno => op.fail_with_last(errno),
        },
    }
    if op.settle_or_wait() { Next::WaitForRoom } else { Next::Progressed }
}
