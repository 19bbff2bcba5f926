//! Groups of sends: which buffers of each have come back.

use std::num::NonZeroU32;
use std::task::Waker;

use super::loan::Loan;
use crate::receipt::Receipt;

/// Number of a group's record, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupKey(NonZeroU32);

/// Returned buffers of a group's sends.
#[derive(Default)]
pub(crate) struct Gathered {
    /// Each entry is `Some`; moving the whole `Option` out of a send's record is quicker.
    pub(crate) loans: Vec<Option<Loan>>,
    /// Sends whose buffer is not back.
    pub(crate) out: usize,
    pub(crate) receipt: Receipt,
    pub(crate) waker: Option<Waker>,
    /// Nobody will ask for the buffers.
    abandoned: bool,
}

/// The groups of a driver.
#[derive(Default)]
pub(crate) struct Groups {
    records: Vec<Gathered>,
    free: Vec<GroupKey>,
}

impl Groups {
    pub(crate) fn open(&mut self) -> GroupKey {
        self.free.pop().unwrap_or_else(|| {
            self.records.push(Gathered::default());
            let number = NonZeroU32::new(self.records.len() as u32);
            GroupKey(number.expect("there are fewer than 2^32 groups"))
        })
    }

    pub(crate) fn get(&mut self, key: GroupKey) -> &mut Gathered {
        &mut self.records[key.0.get() as usize - 1]
    }

    pub(crate) fn join(&mut self, key: GroupKey) {
        self.get(key).out += 1;
    }

    /// A buffer of a group is back. Keeps it unless nobody wants it; returns the waiter's waker if it was
    /// the last.
    #[must_use]
    pub(crate) fn give(
        &mut self,
        key: GroupKey,
        loan: &mut Option<Loan>,
        receipt: Receipt,
    ) -> Option<Waker> {
        let record = self.get(key);
        record.out -= 1;
        if !record.abandoned {
            record.receipt.join(receipt, record.loans.is_empty());
            record.loans.push(loan.take());
        }
        if record.out > 0 {
            return None;
        }
        let waker = record.waker.take();
        if record.abandoned {
            self.close(key);
        }
        waker
    }

    /// Wakers of all groups.
    pub(crate) fn take_wakers(&mut self) -> Vec<Waker> {
        self.records.iter_mut().filter_map(|record| record.waker.take()).collect()
    }

    pub(crate) fn close(&mut self, key: GroupKey) {
        let record = self.get(key);
        record.receipt = Receipt::default();
        record.abandoned = false;
        self.free.push(key);
    }

    /// The holder goes. Returns the buffers that are back, and its waker.
    #[must_use]
    pub(crate) fn abandon(&mut self, key: GroupKey) -> (Vec<Option<Loan>>, Option<Waker>) {
        let record = self.get(key);
        let left = (std::mem::take(&mut record.loans), record.waker.take());
        if record.out == 0 {
            self.close(key);
        } else {
            record.abandoned = true;
        }
        left
    }
}
