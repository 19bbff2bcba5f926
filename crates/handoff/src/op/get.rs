//! A lend of a buffer of the kernel.

use std::rc::Rc;
use std::task::Waker;

use handoff_sys::getbuf::Command;

use crate::error::Result;
use crate::lease::Bytes;
use crate::lease::kernel::{Binding, LenderShared};

/// A lend from the asking to its end or refusal.
pub(crate) struct GetOp {
    pub(crate) lender: Rc<LenderShared>,
    /// Keeps what is lent from bound; none for new pages.
    pub(crate) source: Option<Rc<Binding>>,
    pub(crate) command: Command,
    /// Bytes asked for.
    pub(crate) len: u32,
    pub(crate) slot: u16,
    pub(crate) fill: Option<u16>,
    pub(crate) in_kernel: bool,
    pub(crate) held: bool,
    pub(crate) result: Option<Result<Option<Bytes>>>,
    pub(crate) waker: Option<Waker>,
}

impl GetOp {
    pub(crate) fn new(
        lender: &Rc<LenderShared>,
        command: Command,
        len: u32,
        slot: u16,
        fill: Option<u16>,
    ) -> Self {
        Self {
            lender: Rc::clone(lender),
            source: None,
            command,
            len,
            slot,
            fill,
            in_kernel: false,
            held: true,
            result: None,
            waker: None,
        }
    }

    pub(crate) fn kernel_holds(&self) -> bool {
        self.in_kernel
    }

    /// The driver goes: nobody waits for it.
    pub(crate) fn give_up(&mut self) {
        self.held = false;
    }
}
