//! The loan of a send: the memory, and what tells that it is back.
//!
//! Contracts:
//! - it needs nothing of the send's request, which may be over, nor of its socket, which may be gone;
//! - each return signal is matched with the bytes of the attempt that it belongs to.

use std::rc::Rc;
use std::task::Waker;

use super::group::GroupKey;
use super::lender::Lender;
use super::loan::Loan;
use super::waiter::Waiter;
use crate::receipt::Receipt;
use crate::ring::token::Stage;

/// What the kernel has on loan of a send, or may get.
pub(crate) struct Lent {
    pub(crate) lender: Rc<Lender>,
    /// `None` once the buffer has been handed on.
    pub(crate) loan: Option<Loan>,
    /// Return signals that have not come.
    pub(crate) awaiting: u32,
    attempts: Attempts,
    pub(crate) receipt: Receipt,
    /// The socket's error queue tells of returns, so they need the socket.
    pub(crate) told_by_socket: bool,
    pub(crate) claim: Claim,
    pub(crate) back_to: BackTo,
}

/// Whether somebody waits for a send, and for how long nobody has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// Somebody does, or it does not count in the budget of the others yet.
    Claimed,
    Unclaimed,
    /// It was so at the last review.
    Old,
    /// The program was told that it is out for long.
    Told,
}

/// Who gets the buffer of a send when the kernel lets go of it.
pub(crate) enum BackTo {
    /// The holder of the [`OnLoan`](crate::OnLoan).
    Holder(Waiter),
    /// The group; no handle has it.
    Group(GroupKey),
}

/// The zero-copy attempts of a send; most sends need one.
#[derive(Default)]
struct Attempts {
    made: u32,
    /// Bytes of the first attempt whose return signal will come.
    first: Option<u32>,
    /// The same of later attempts, in order.
    later: Vec<Option<u32>>,
}

impl Attempts {
    /// The stage of the next attempt; its return signal will name it.
    #[inline]
    fn next_stage(&self) -> Stage {
        Stage::Attempt((self.made % u32::from(Stage::ATTEMPTS)) as u8)
    }

    /// An attempt is over: the bytes that the kernel took if it announced a return signal, otherwise
    /// `None`.
    #[inline]
    fn push(&mut self, bytes: Option<u32>) {
        match self.made {
            0 => self.first = bytes,
            _ => self.later.push(bytes),
        }
        self.made += 1;
    }

    /// A return signal: of the oldest attempt that has this number and has not returned, since numbers repeat.
    /// Returns its bytes.
    #[inline]
    fn take(&mut self, number: u8) -> Option<u32> {
        if number == 0 && self.first.is_some() {
            return self.first.take();
        }
        self.take_later(number)
    }

    #[cold]
    fn take_later(&mut self, number: u8) -> Option<u32> {
        let stages = usize::from(Stage::ATTEMPTS);
        let oldest = (usize::from(number) + stages - 1) % stages;
        self.later.iter_mut().skip(oldest).step_by(stages).find_map(Option::take)
    }
}

impl Lent {
    /// Nothing yet: the loan is [put in](Self::lend) when the send is in place, since moving it costs more than all the
    /// rest.
    #[inline(always)]
    pub(crate) fn new(lender: Rc<Lender>) -> Self {
        Self {
            lender,
            loan: None,
            awaiting: 0,
            attempts: Attempts::default(),
            receipt: Receipt::default(),
            told_by_socket: false,
            claim: Claim::Claimed,
            back_to: BackTo::Holder(Waiter::Polls),
        }
    }

    /// Puts the buffer of a new send in.
    #[inline(always)]
    pub(crate) fn lend(&mut self, loan: Loan) {
        let before = self.loan.replace(loan);
        debug_assert!(before.is_none(), "a send has one buffer");
        // The compiler does not know that there was none.
        std::mem::forget(before);
    }

    /// Drops everything that is owned, except the lender; the buffer was given away and its handle is gone.
    #[inline]
    pub(super) fn strip(&mut self) {
        debug_assert!(self.loan.is_none() && self.is_left());
        self.attempts = Attempts::default();
    }

    /// Whether nobody wants the buffer.
    #[inline]
    pub(crate) fn is_left(&self) -> bool {
        matches!(self.back_to, BackTo::Holder(Waiter::Gone))
    }

    /// The buffer's holder goes, or has the buffer. Returns the holder's waker.
    #[must_use]
    pub(crate) fn give_up(&mut self) -> Option<Waker> {
        match &mut self.back_to {
            BackTo::Holder(holder) => holder.leave(),
            BackTo::Group(_) => None,
        }
    }

    /// The buffer's holder waits for its return. Returns the old waker.
    pub(crate) fn wait(&mut self, waker: Waker) -> Option<Waker> {
        match &mut self.back_to {
            BackTo::Holder(holder) => holder.wait(waker),
            BackTo::Group(_) => unreachable!("a group's buffers have no holder"),
        }
    }

    /// The waker of the buffer's holder.
    pub(crate) fn take_waker(&mut self) -> Option<Waker> {
        match &mut self.back_to {
            BackTo::Holder(holder) => holder.take_waker(),
            BackTo::Group(_) => None,
        }
    }

    /// The stage of the next zero-copy attempt; its return signal will name it.
    #[inline]
    pub(crate) fn next_attempt(&self) -> Stage {
        self.attempts.next_stage()
    }

    /// An attempt is over: the bytes that the kernel took if it announced a return signal, otherwise
    /// `None`. In both cases the attempt keeps its stage to itself: an unannounced signal may come.
    #[inline]
    pub(crate) fn attempted(&mut self, bytes: Option<usize>) {
        self.attempts.push(bytes.map(|bytes| bytes as u32));
        if bytes.is_some() {
            self.awaiting += 1;
            self.lender.lent_by_ring.update(|count| count + 1);
        }
    }

    /// Bytes are back, or were never lent: records what happened to them.
    pub(crate) fn account(&mut self, bytes: u64, copied: Option<bool>) {
        self.receipt.tally.count(bytes, copied);
        self.lender.count(|stats| stats.returned.count(bytes, copied));
    }

    /// Bytes went through a cipher, and through nothing else.
    #[cfg(feature = "tls")]
    pub(crate) fn account_ciphered(&mut self, bytes: u64) {
        self.receipt.tally.ciphered += bytes;
        self.lender.count(|stats| stats.returned.ciphered += bytes);
    }

    /// The return signal of an attempt: `copied` is the kernel's report, if it makes one.
    #[inline(always)]
    pub(crate) fn attempt_returned(&mut self, number: u8, copied: Option<bool>) {
        if let Some(bytes) = self.attempts.take(number) {
            self.lender.return_one();
            self.returned(u64::from(bytes), copied);
        }
    }

    /// As [`attempt_returned`](Self::attempt_returned), for a caller that counts the bytes elsewhere.
    #[inline(always)]
    pub(crate) fn returned(&mut self, bytes: u64, copied: Option<bool>) {
        self.awaiting -= 1;
        self.receipt.tally.count(bytes, copied);
        self.receipt.notifications += 1;
        self.lender.count(|stats| {
            stats.returned.count(bytes, copied);
            stats.notifications += 1;
        });
        // A send of no bytes says nothing about the route.
        if bytes > 0 {
            self.lender.chooser.borrow_mut().reported(copied);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_return_signal_is_of_the_oldest_attempt_that_has_its_stage() {
        let stages = u32::from(Stage::ATTEMPTS);
        let is_lent = |number: &u32| number % 7 != 3;
        for begin in [0, 3] {
            let mut attempts = Attempts::default();
            for number in begin..3 * stages {
                let stage = Stage::Attempt(((number - begin) % stages) as u8);
                assert_eq!(attempts.next_stage(), stage);
                attempts.push(is_lent(&number).then_some(number));
            }
            for number in (begin..3 * stages).filter(is_lent) {
                assert_eq!(attempts.take(((number - begin) % stages) as u8), Some(number));
            }
            // Signals that nothing announced.
            assert!((0..Stage::ATTEMPTS).all(|number| attempts.take(number).is_none()));
        }
    }
}
