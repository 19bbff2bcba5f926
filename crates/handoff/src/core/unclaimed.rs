//! Sends that nobody waits for, in a budget of their own: they don't count as operations under way.
//!
//! Contracts:
//! - whoever's peers take nothing can begin other operations all the same;
//! - a peer has a share of the budget, by its address; a datagram socket has one by itself;
//! - where the budget or a share is used up, streams that nobody holds are reset, those first that were left first, and a
//!   socket that somebody holds lends no more, but copies. So no peer keeps another from being served;
//! - a loan that is out for longer than a [`linger`](crate::DriverBuilder::linger) is told of where nothing ends it: on a
//!   datagram socket, and on a stream that somebody holds.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::deadlines::Then;
use super::state::Core;
use crate::op::{Claim, Lender, SendOp};

/// Reviews are no more frequent.
const LEAST_PERIOD: Duration = Duration::from_millis(10);

impl Core {
    /// Counts a send in the budget if nobody waits for it any more.
    #[inline]
    pub(crate) fn count_unclaimed(&self, op: &mut SendOp) {
        if op.lent.claim == Claim::Claimed && op.is_unclaimed() && !op.is_returned() {
            self.count_new(op);
        }
    }

    #[inline(never)]
    fn count_new(&self, op: &mut SendOp) {
        let budget = &self.unclaimed;
        op.lent.claim = Claim::Unclaimed;
        budget.records.update(|records| records + 1);
        let lender = &op.lent.lender;
        if lender.given_up.get() {
            return;
        }
        let account = lender.account.get_or_init(|| match op.socket_if_needed() {
            Some(socket) => budget.account_of(socket),
            None => Rc::default(),
        });
        account.0.update(|out| out + 1);
        lender.unclaimed.update(|out| out + 1);
        budget.out.update(|out| out + 1);
        if budget.is_used_up(lender) {
            budget.is_over.set(true);
        }
        if !budget.is_reviewed.replace(true) {
            self.review_later();
        }
    }

    /// A send is over.
    #[inline]
    pub(crate) fn count_no_more(&self, op: &SendOp) {
        if op.lent.claim != Claim::Claimed {
            self.count_one_less(&op.lent.lender);
        }
    }

    #[inline(never)]
    fn count_one_less(&self, lender: &Lender) {
        self.unclaimed.records.update(|records| records - 1);
        if !lender.given_up.get() {
            self.take_from_budget(lender, 1);
        }
    }

    fn take_from_budget(&self, lender: &Lender, sends: u32) {
        lender.unclaimed.update(|out| out - sends);
        self.unclaimed.out.update(|out| out - sends as usize);
        if let Some(account) = lender.account.get() {
            account.0.update(|out| out - sends as usize);
        }
    }

    /// Resets streams that nobody holds until the budget and all shares suffice.
    #[inline]
    pub(crate) fn keep_to_budget(&self) {
        if self.unclaimed.is_over.replace(false) {
            self.reset_the_eldest();
        }
    }

    #[cold]
    fn reset_the_eldest(&self) {
        let streams = self.unclaimed.left.take();
        let mut rest = VecDeque::with_capacity(streams.len());
        let mut count = 0;
        for left in streams {
            let Some(lender) = left.lender.upgrade() else { continue };
            let is_one = lender.unclaimed.get() > 0 && left.is_left();
            if !is_one || !self.unclaimed.is_used_up(&lender) {
                rest.push_back(left);
                continue;
            }
            self.take_from_budget(&lender, lender.unclaimed.get());
            lender.given_up.set(true);
            self.reset(&left);
            count += 1;
        }
        self.unclaimed.left.replace(rest);
        if count > 0 {
            tracing::warn!(
                streams = count,
                "connections that nobody holds are reset: the loans that nobody waits for have no more room \
                 (DriverBuilder::unclaimed_loans)"
            );
        }
    }

    fn review_later(&self) {
        let period = self.linger.get().max(LEAST_PERIOD);
        let Some(due) = Instant::now().checked_add(period) else { return };
        self.in_background.update(|deadlines| deadlines + 1);
        self.at(due, Then::Review);
    }

    /// Tells of loans that are out for long, once of each.
    pub(crate) fn review(&self) {
        self.in_background.update(|deadlines| deadlines - 1);
        let mut told = 0;
        for op in self.records.borrow_mut().sends() {
            match op.lent.claim {
                Claim::Unclaimed => op.lent.claim = Claim::Old,
                Claim::Old if !op.lent.lender.is_left.get() => {
                    op.lent.claim = Claim::Told;
                    told += 1;
                }
                _ => {}
            }
        }
        if told > 0 {
            self.unclaimed.overdue.update(|overdue| overdue + told);
            let most = self.linger.get();
            tracing::warn!(
                buffers = told,
                ?most,
                "buffers that nobody waits for are on loan for longer"
            );
        }
        let more = self.unclaimed.records.get() > 0;
        self.unclaimed.is_reviewed.set(more);
        if more {
            self.review_later();
        }
    }
}
