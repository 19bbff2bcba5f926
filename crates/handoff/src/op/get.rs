//! A lend of a buffer of the kernel.

use std::rc::Rc;

use handoff_sys::getbuf::Command;

use super::waiter::Waiter;
use crate::error::Result;
use crate::lease::Bytes;
use crate::lease::getbuf_device::{Binding, GetBufShared};

/// A lend, from the request to its end or refusal.
pub(crate) struct GetOp {
    pub(crate) getbuf: Rc<GetBufShared>,
    /// Keeps the source bound; `None` for new pages.
    pub(crate) source: Option<Rc<Binding>>,
    pub(crate) command: Command,
    /// Bytes asked for.
    pub(crate) len: u32,
    pub(crate) slot: u16,
    /// The slot has a lend that is over, and this one clears it.
    pub(crate) clears: bool,
    pub(crate) fill: Option<u16>,
    pub(crate) state: GetState,
    pub(crate) holder: Waiter,
}

/// How far a lend has come.
pub(crate) enum GetState {
    /// The kernel will be asked, or has been.
    Asked {
        /// The ring has the request.
        in_kernel: bool,
    },
    /// The kernel has lent, or refused.
    Over(Result<Option<Bytes>>),
    /// The same, and its holder has the result.
    Told,
}

impl GetOp {
    pub(crate) fn new(
        getbuf: &Rc<GetBufShared>,
        command: Command,
        len: u32,
        slot: u16,
        fill: Option<u16>,
    ) -> Self {
        Self {
            getbuf: Rc::clone(getbuf),
            source: None,
            clears: false,
            command,
            len,
            slot,
            fill,
            state: GetState::Asked { in_kernel: false },
            holder: Waiter::Polls,
        }
    }

    pub(crate) fn kernel_holds(&self) -> bool {
        matches!(self.state, GetState::Asked { in_kernel: true })
    }

    pub(crate) fn is_over(&self) -> bool {
        matches!(self.state, GetState::Over(_) | GetState::Told)
    }

    /// The result, for its holder.
    pub(crate) fn tell(&mut self) -> Option<Result<Option<Bytes>>> {
        let GetState::Over(result) = &mut self.state else { return None };
        let result = std::mem::replace(result, Ok(None));
        self.state = GetState::Told;
        Some(result)
    }
}
