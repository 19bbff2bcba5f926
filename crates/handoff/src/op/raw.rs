//! A request that the program makes itself.

use std::sync::Arc;

use super::waiter::Waiter;
use crate::memory::LentOwner;

/// A raw request, from its submission to its last completion.
pub(crate) struct RawOp {
    /// What its memory belongs to; `None` once it was given back.
    pub(crate) owner: Option<Arc<LentOwner>>,
    pub(crate) state: RawState,
    pub(crate) holder: Waiter,
    /// Result and flags of the last completion that is no notification.
    pub(crate) told: (i32, u32),
    /// How often the kernel may still be asked to end it.
    pub(crate) asks: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RawState {
    /// The ring has it.
    InKernel,
    /// The last completion has come.
    Over,
    /// The same, and its holder has the result.
    Told,
}

/// How often the kernel is asked to end a request: it may not find one that it is about to try again.
const ASKS: u8 = 8;

impl RawOp {
    pub(crate) fn new(owner: Arc<LentOwner>) -> Self {
        Self {
            owner: Some(owner),
            state: RawState::InKernel,
            holder: Waiter::Polls,
            told: (0, 0),
            asks: ASKS,
        }
    }

    pub(crate) fn kernel_holds(&self) -> bool {
        self.state == RawState::InKernel
    }
}
