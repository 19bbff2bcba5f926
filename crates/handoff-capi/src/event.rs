//! What a turn of a driver tells.

use std::ffi::c_char;
use std::ptr;

use handoff::{Engine, Tally};

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

/// The kernel took the bytes of a send, which may not be back yet. Told only if asked for.
pub const HANDOFF_EVENT_SENT: u32 = 1;
/// A send is over, and its buffer is back. A span that was sent is gone.
pub const HANDOFF_EVENT_RETURNED: u32 = 2;
/// Bytes came: `handle` is a span.
pub const HANDOFF_EVENT_RECEIVED: u32 = 3;
/// Receiving ended: the peer has closed, or `error` says why.
pub const HANDOFF_EVENT_ENDED: u32 = 4;
/// A read or write is over, and its buffer is back.
pub const HANDOFF_EVENT_TRANSFERRED: u32 = 5;

/// What became of bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct handoff_tally {
    /// Bytes that went without a copy.
    pub zero_copy: u64,
    /// Bytes that were copied.
    pub copied: u64,
    /// Bytes of which nobody reports it.
    pub unknown: u64,
}

impl From<Tally> for handoff_tally {
    fn from(tally: Tally) -> Self {
        Self { zero_copy: tally.zero_copy, copied: tally.copied, unknown: tally.unknown }
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
    /// The buffer or span that it is about, or 0.
    pub handle: handoff_handle,
    /// Bytes that were done, also where it failed.
    pub bytes: u64,
    /// What became of the bytes, with `HANDOFF_EVENT_RETURNED`.
    pub tally: handoff_tally,
    /// One of `HANDOFF_ENGINE_...`, with `HANDOFF_EVENT_RETURNED`.
    pub engine: u32,
    /// Always 0.
    pub reserved: u32,
    /// The error in words, valid until the driver's next turn; NULL if there is none.
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
    }
}
