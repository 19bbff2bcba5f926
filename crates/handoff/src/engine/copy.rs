//! The engine that always works: `sendmsg`, which copies. Tests compare the other engines against it.
//!
//! Minimum kernel: any. Capability: none. Return signal: none needed, the buffer is back when the call
//! returns.

use super::sending::Attempt;
use crate::core::Core;
use crate::error::Error;
use crate::op::{Layout, SendOp};
use crate::ring::Key;

/// Sends what is left, as much as the socket takes.
pub(crate) fn attempt(core: &Core, key: Key) -> Attempt {
    let mut records = core.records.borrow_mut();
    let (op, layout) = records.send_and_layout(key);
    loop {
        match sendmsg(op, layout, 0) {
            Ok(taken) => {
                op.copy_went_through();
                // They went with the first byte.
                op.passing = None;
                op.lent.account(taken as u64, Some(true));
                op.lent.lender.copied.update(|copied| copied + taken as u64);
                if took(op, taken) {
                    return Attempt::Settled;
                }
            }
            Err(libc::EAGAIN) => return Attempt::Blocked,
            Err(libc::EINTR) => {}
            Err(errno) => return fail(op, op.error(errno)),
        }
    }
}

/// One call of `sendmsg` for what is left; the error is an errno.
pub(super) fn sendmsg(op: &SendOp, layout: &mut Layout, flags: libc::c_int) -> Result<usize, i32> {
    let message = layout.message(op, true);
    let more = if op.more { libc::MSG_MORE } else { 0 };
    let flags = flags | more | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the message and all that it names belong to the record and outlive the call.
    let result = unsafe { libc::sendmsg(op.socket().endpoint.raw(), message, flags) };
    usize::try_from(result)
        .map_err(|_| std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}

/// The socket took bytes; returns whether that settled the send.
pub(super) fn took(op: &mut SendOp, taken: usize) -> bool {
    op.done += taken;
    let whole = op.done == op.total;
    if whole {
        op.succeed();
    }
    whole
}

pub(super) fn fail(op: &mut SendOp, error: Error) -> Attempt {
    op.fail(error);
    Attempt::Settled
}
