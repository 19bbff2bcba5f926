//! Sends and receives of TLS connections.
//!
//! Contracts:
//! - one send at a time goes out of a socket, and a short one is continued: kernel TLS refuses MSG_WAITALL, and
//!   without that a short request of the ring breaks no chain;
//! - memory is free when its send ends: the cipher has read it.
//!
//! Minimum kernel: see [`ktls`](handoff_sys::ktls); any for what user space ciphers. Capability: none. Return signal: none
//! needed.

use std::ptr::NonNull;
use std::rc::Rc;

use super::copy::{fail, sendmsg, took};
use super::sending::Attempt;
use crate::core::Core;
use crate::memory::View;
use crate::op::cipher::{Cipher, Stop};
use crate::op::{Attached, TransferOp};
use crate::ring::Key;

/// Sends what is left, as much as the socket takes.
pub(crate) fn attempt(core: &Core, key: Key) -> Attempt {
    let mut records = core.records.borrow_mut();
    let (op, layout) = records.send_and_layout(key);
    let socket = Rc::clone(op.socket());
    let fd = &socket.endpoint.fd;
    let mut cipher = socket.cipher.get().expect("the engine is a TLS connection's").borrow_mut();
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

/// The cipher of a receive that user space deciphers: it is made by calls, also where there is a ring.
pub(super) fn is_opened_here(op: &TransferOp) -> bool {
    with_cipher(op, |cipher| matches!(cipher, Cipher::User(_))).unwrap_or(false)
}

/// Whether the peer has ended its direction properly, so that nothing comes any more.
pub(super) fn is_closed(op: &TransferOp) -> bool {
    with_cipher(op, |cipher| cipher.is_closed()).unwrap_or(false)
}

/// Receives by a call what user space deciphers, into the next range.
pub(super) fn receive(op: &TransferOp, start: *mut u8, len: usize) -> i32 {
    let fd = &op.file.fd;
    let received = with_cipher(op, |cipher| match cipher {
        // SAFETY: the range belongs to the record, alone and for the length of the call.
        Cipher::User(cipher) => unsafe { cipher.receive(fd, start, len) },
        Cipher::Kernel(_) => unreachable!("the kernel deciphers"),
    });
    received.expect("a TLS connection")
}

/// What the result of a receive by the kernel means.
pub(super) fn received(op: &TransferOp, result: i32) -> i32 {
    let fd = &op.file.fd;
    let meant = with_cipher(op, |cipher| match cipher {
        Cipher::Kernel(cipher) if result <= 0 => cipher.received(fd, result),
        _ => result,
    });
    meant.unwrap_or(result)
}

fn with_cipher<T>(op: &TransferOp, ask: impl FnOnce(&mut Cipher) -> T) -> Option<T> {
    let Attached::Socket(socket) = &op.file else { return None };
    if !op.direction.receives() {
        return None;
    }
    socket.cipher.get().map(|cipher| ask(&mut cipher.borrow_mut()))
}
