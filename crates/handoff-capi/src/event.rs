//! What a turn of a driver tells.

use std::ffi::{c_char, c_int};
use std::ptr;

use handoff::{Engine, Outcome, Tally};

use crate::boundary::{Failure, enter};
use crate::handles::handoff_handle;

/// No engine: nothing was sent.
pub const HANDOFF_ENGINE_NONE: u32 = 0;
/// What costs least, found by trying.
pub const HANDOFF_ENGINE_AUTO: u32 = 1;
/// io_uring's zero-copy send.
pub const HANDOFF_ENGINE_URING_ZC: u32 = 2;
/// `MSG_ZEROCOPY`.
pub const HANDOFF_ENGINE_MSG_ZEROCOPY: u32 = 3;
/// A plain send, which copies.
pub const HANDOFF_ENGINE_COPY: u32 = 4;

/// Of routes: the kernel's own buffers, lent into the ring.
pub const HANDOFF_ENGINE_GET_BUF: u32 = 5;
/// Of routes: splice(2) through a pipe.
pub const HANDOFF_ENGINE_SPLICE: u32 = 6;
/// Of routes: through memory that is registered with the ring.
pub const HANDOFF_ENGINE_MEMORY: u32 = 7;
/// TLS that the kernel ciphers.
pub const HANDOFF_ENGINE_KERNEL_TLS: u32 = 8;
/// TLS that this process ciphers.
pub const HANDOFF_ENGINE_USER_TLS: u32 = 9;

/// The kernel took the bytes of a send, which may not be back yet. Told only if asked for.
pub const HANDOFF_EVENT_SENT: u32 = 1;
/// A send is over, and its buffer is back; or all sends of a group are. A span that was sent is gone.
pub const HANDOFF_EVENT_RETURNED: u32 = 2;
/// Bytes came: `handle` is a span.
pub const HANDOFF_EVENT_RECEIVED: u32 = 3;
/// Receiving ended: the peer has closed, or `error` says why. So did accepting, for `error`.
pub const HANDOFF_EVENT_ENDED: u32 = 4;
/// A read, a write, or a receive into a buffer is over, and its buffer is back.
pub const HANDOFF_EVENT_TRANSFERRED: u32 = 5;
/// A socket is connected, or `error` says why not.
pub const HANDOFF_EVENT_CONNECTED: u32 = 6;
/// A connection came: `handle` is a socket, which is yours to close. With an error there was no room for one, and
/// accepting goes on when there is.
pub const HANDOFF_EVENT_ACCEPTED: u32 = 7;
/// A route has ended: all bytes went over, or `error` says why not.
pub const HANDOFF_EVENT_CARRIED: u32 = 8;
/// A file or directory is open: `handle` is it, and is yours to close. Or `error` says why not.
pub const HANDOFF_EVENT_OPENED: u32 = 9;
/// A call about a file or a name is over, or `error` says why not.
pub const HANDOFF_EVENT_CALLED: u32 = 10;

/// All bytes went without a copy.
pub const HANDOFF_OUTCOME_ZERO_COPY: u32 = 1;
/// All bytes were copied.
pub const HANDOFF_OUTCOME_COPIED: u32 = 2;
/// Some bytes were copied, and some not.
pub const HANDOFF_OUTCOME_MIXED: u32 = 3;
/// Of some bytes nobody reports it.
pub const HANDOFF_OUTCOME_UNKNOWN: u32 = 4;
/// All bytes were moved by a cipher's pass, and by no other.
pub const HANDOFF_OUTCOME_CIPHERED: u32 = 5;

/// What became of bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct handoff_tally {
    /// Bytes that went without a copy.
    pub zero_copy: u64,
    /// Bytes that were copied.
    pub copied: u64,
    /// Bytes that a cipher's pass moved, and nothing else.
    pub ciphered: u64,
    /// Bytes of which nobody reports it.
    pub unknown: u64,
}

impl From<Tally> for handoff_tally {
    fn from(tally: Tally) -> Self {
        let Tally { zero_copy, copied, ciphered, unknown } = tally;
        Self { zero_copy, copied, ciphered, unknown }
    }
}

/// What became of an operation.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct handoff_event {
    /// One of `HANDOFF_EVENT_...`.
    pub kind: u32,
    /// 0, or a negative error number.
    pub error: i32,
    /// What the operation was begun with.
    pub user_data: u64,
    /// The buffer, span, socket, file or directory that it is about, or 0.
    pub handle: handoff_handle,
    /// Bytes that were done, also where it failed.
    pub bytes: u64,
    /// What became of the bytes, with `HANDOFF_EVENT_RETURNED`; with `HANDOFF_EVENT_ENDED`, of all that were received;
    /// with `HANDOFF_EVENT_CARRIED`, on their way into the sink.
    pub tally: handoff_tally,
    /// What became of the bytes on their way out of the source, with `HANDOFF_EVENT_CARRIED`.
    pub taken: handoff_tally,
    /// One of `HANDOFF_ENGINE_...`, with `HANDOFF_EVENT_RETURNED` and `HANDOFF_EVENT_CARRIED`; 0 where sends of a
    /// group differ.
    pub engine: u32,
    /// Always 0.
    pub reserved: u32,
    /// The error in words, valid until the driver's next turn; NULL if there is none. Of a route it also says why
    /// better engines than `engine` did not serve.
    pub error_text: *const c_char,
}

impl handoff_event {
    pub(crate) fn new(kind: u32, user_data: u64) -> Self {
        Self {
            kind,
            error: 0,
            user_data,
            handle: 0,
            bytes: 0,
            tally: handoff_tally::default(),
            taken: handoff_tally::default(),
            engine: HANDOFF_ENGINE_NONE,
            reserved: 0,
            error_text: ptr::null(),
        }
    }
}

pub(crate) fn engine_number(engine: Option<Engine>) -> u32 {
    match engine {
        None => HANDOFF_ENGINE_NONE,
        Some(Engine::Auto) => HANDOFF_ENGINE_AUTO,
        Some(Engine::UringZc) => HANDOFF_ENGINE_URING_ZC,
        Some(Engine::MsgZerocopy) => HANDOFF_ENGINE_MSG_ZEROCOPY,
        Some(Engine::Copy) => HANDOFF_ENGINE_COPY,
        Some(Engine::KernelTls) => HANDOFF_ENGINE_KERNEL_TLS,
        Some(Engine::UserTls) => HANDOFF_ENGINE_USER_TLS,
    }
}

/// The verdict over bytes.
///
/// Returns one of `HANDOFF_OUTCOME_...`, or a negative error number.
///
/// # Safety
///
/// `tally` is NULL or can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handoff_outcome(tally: *const handoff_tally) -> c_int {
    enter(|| {
        // SAFETY: the caller vouches for it.
        let tally =
            unsafe { tally.as_ref() }.ok_or_else(|| Failure::invalid("the tally is NULL"))?;
        let handoff_tally { zero_copy, copied, ciphered, unknown } = *tally;
        let outcome = match (Tally { zero_copy, copied, ciphered, unknown }).outcome() {
            Outcome::ZeroCopy => HANDOFF_OUTCOME_ZERO_COPY,
            Outcome::Copied => HANDOFF_OUTCOME_COPIED,
            Outcome::Ciphered => HANDOFF_OUTCOME_CIPHERED,
            Outcome::Mixed => HANDOFF_OUTCOME_MIXED,
            Outcome::Unknown => HANDOFF_OUTCOME_UNKNOWN,
        };
        Ok(outcome as c_int)
    })
}
