//! What a receive gets from its rx queue, and how much of it the kernel copied.

use std::num::NonZeroU32;
use std::rc::Rc;

use crate::lease::rx_shared::RxShared;
use crate::mechanism::ReceiveEngine;
use crate::outcome::Tally;

/// After this many bytes, the receive decides whether the kernel copies too much.
const WINDOW: u64 = 256 << 10;

/// A receive's account of its queue.
pub(crate) struct Flow {
    pub(crate) queue: Rc<RxShared>,
    pub(crate) bytes: u64,
    /// Bytes wanted, if not all.
    most: Option<NonZeroU32>,
    /// The kernel's counts of copies and of receives begun when this one began, with no other left.
    pub(crate) copied_before: Option<u64>,
    pub(crate) begun: u32,
    pub(crate) alone: bool,
    /// Bytes, and the kernel's count of copies, when the window began.
    pub(crate) window: (u64, u64),
    /// Why the receive left the queue, or will.
    pub(crate) left: Option<String>,
    /// Plain receive cannot have what comes.
    pub(crate) stays: bool,
    /// Chunks that the NIC had when the request was made.
    pub(crate) chunks: usize,
    /// It waited for a chunk.
    pub(crate) starved: bool,
    /// Consecutive tries without a chunk.
    pub(crate) dry: u32,
}

impl Flow {
    pub(crate) fn open(queue: Rc<RxShared>, most: Option<NonZeroU32>) -> Self {
        let (begun, alone) = queue.begin();
        let copied_before = queue.copied();
        Self {
            bytes: 0,
            most,
            copied_before,
            begun,
            alone,
            window: (0, copied_before.unwrap_or(0)),
            left: None,
            stays: false,
            chunks: 0,
            starved: false,
            dry: 0,
            queue,
        }
    }

    pub(crate) fn queue(&self) -> &Rc<RxShared> {
        &self.queue
    }

    /// Bytes still wanted, if not all.
    pub(crate) fn left_to_receive(&self) -> Option<u32> {
        let most = self.most?.get();
        Some(most.saturating_sub(u32::try_from(self.bytes).unwrap_or(u32::MAX)))
    }

    pub(crate) fn engine(&self) -> ReceiveEngine {
        self.queue.engine()
    }

    pub(crate) fn reason(&self) -> String {
        match &self.left {
            Some(reason) => reason.clone(),
            None if self.stays => {
                "the NIC puts payload into the area of the queue, also what came \
                                   after the kernel had copied"
                    .to_owned()
            }
            None => "an rx queue was given, and the kernel does not say that it copies".to_owned(),
        }
    }

    /// Bytes by the kernel's count. The count covers all receives of the queue: copies made while there were
    /// several are assigned to none. If several rings received, the count may also have been set back meanwhile.
    pub(crate) fn tally(&self) -> Tally {
        let now = self.queue.copied();
        let copied = now.zip(self.copied_before).and_then(|(now, then)| now.checked_sub(then));
        match copied {
            Some(0) if now == Some(0) || !self.queue.is_shared() => {
                Tally { zero_copy: self.bytes, ..Tally::default() }
            }
            Some(copied) if self.alone && self.queue.begun() == self.begun => {
                let copied = copied.min(self.bytes);
                Tally { zero_copy: self.bytes - copied, copied, ..Tally::default() }
            }
            _ => Tally { unknown: self.bytes, ..Tally::default() },
        }
    }

    /// Plain receive found bytes that it cannot read; returns whether the queue can have them.
    pub(crate) fn come_back(&mut self) -> bool {
        self.stays = true;
        self.left.take().is_some()
    }

    /// Weighs the latest bytes if there are enough, and begins anew. If most were copied, returns how many, and of how
    /// many.
    pub(crate) fn weigh(&mut self) -> Option<(u64, u64)> {
        let (began, copied_then) = self.window;
        let received = self.bytes - began;
        if received < WINDOW || self.stays {
            return None;
        }
        let copied_now = self.queue.copied()?;
        self.window = (self.bytes, copied_now);
        let copied = copied_now.saturating_sub(copied_then);
        (copied * 2 > received).then_some((copied, received))
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.queue.end();
    }
}
