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

    /// A buffer of a group is back. Returns the waiter's waker if it was the last.
    #[must_use]
    pub(crate) fn give(
        &mut self,
        key: GroupKey,
        loan: &mut Option<Loan>,
        receipt: Receipt,
    ) -> Option<Waker> {
        let record = self.get(key);
        record.out -= 1;
        record.receipt.join(receipt, record.loans.is_empty());
        record.loans.push(loan.take());
        if record.out > 0 { None } else { record.waker.take() }
    }

    /// Wakers of all groups.
    pub(crate) fn take_wakers(&mut self) -> Vec<Waker> {
        self.records.iter_mut().filter_map(|record| record.waker.take()).collect()
    }

    pub(crate) fn close(&mut self, key: GroupKey) {
        let record = self.get(key);
        record.receipt = Receipt::default();
        self.free.push(key);
    }

    /// The holder goes, and its sends belong to no group any more. Returns the buffers that are back, and its waker.
    #[must_use]
    pub(crate) fn abandon(&mut self, key: GroupKey) -> (Vec<Option<Loan>>, Option<Waker>) {
        let record = self.get(key);
        record.out = 0;
        let left = (std::mem::take(&mut record.loans), record.waker.take());
        self.close(key);
        left
    }
}
