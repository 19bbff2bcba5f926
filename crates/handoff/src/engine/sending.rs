//! How a send goes on and ends.
//!
//! Contracts:
//! - a partial send continues with the rest of the same buffer;
//! - a waiter is woken when the send reaches the stage it waits for; the record is free when all handles
//!   are gone and the kernel has let go;
//! - the socket goes when the request is over, whatever is on loan; a send that nobody waits for then counts in the
//!   budget of those.

use std::cell::RefMut;
use std::task::Waker;

use crate::core::Core;
use crate::error::Result;
use crate::op::group::GroupKey;
use crate::op::loan::Returned;
use crate::op::{BackTo, Loan, Records, SendOp, Waiter};
use crate::ring::Key;

/// Result of an attempt by system call.
pub(crate) enum Attempt {
    /// The send is settled.
    Settled,
    /// The socket takes nothing now.
    Blocked,
    /// The ring has it.
    Submitted,
}

/// Wakes those who wait for the stage that a send has reached, and frees the record when it is over. Called
/// after each change; most changes need nothing more.
pub(crate) fn advance(core: &Core, key: Key) {
    advance_held(core, core.records.borrow_mut(), key);
}

/// As [`advance`], for a caller that has the records.
pub(crate) fn advance_held(core: &Core, mut records: RefMut<'_, Records>, key: Key) {
    if note_progress(core, records.send(key)) {
        settle_up(core, records, key);
    }
}

/// Notes that holders may have news, and that nobody waits for a send that is out; returns whether the stage that it has
/// reached needs more: [`settle_up`].
#[inline]
pub(crate) fn note_progress(core: &Core, op: &mut SendOp) -> bool {
    if !op.is_settled() {
        return false;
    }
    core.news.set(true);
    let needs_settling = op.needs_settling();
    if !needs_settling && op.sent.is_gone() {
        core.count_unclaimed(op);
    }
    op.leaves_socket() || needs_settling
}

/// Anything dropped here may come back to the driver (a chunk to its pool, a slot to its table, a woken
/// task with its handles), so the borrow of the records ends first.
pub(crate) fn settle_up(core: &Core, mut records: RefMut<'_, Records>, key: Key) {
    let op = records.send(key);
    let sent_waker = op.sent.take_waker();
    let _socket = op.take_socket();
    if op.kernel_holds() {
        drop(records);
        return core.wakes().wake(sent_waker);
    }
    let receipt = op.receipt();
    let back_waker = match &mut op.lent.back_to {
        BackTo::Holder(Waiter::Gone) => None,
        BackTo::Holder(holder) => {
            let waker = holder.take_waker();
            drop(records);
            return core.wakes().wake_each([sent_waker, waker]);
        }
        BackTo::Group(group) => {
            let waker = core.groups.borrow_mut().give(*group, &mut op.lent.loan, receipt);
            op.lent.back_to = BackTo::Holder(Waiter::Gone);
            waker
        }
    };
    // Most buffers went to their group, and the place they left is still being written.
    let unwanted = if op.lent.loan.is_some() { op.lent.loan.take() } else { None };
    let is_over = op.sent.is_gone();
    if is_over {
        core.count_no_more(op);
    }
    let _gone = is_over.then(|| records.vacate_send(key));
    drop(records);
    match unwanted {
        None => core.wakes().wake_each([sent_waker, back_waker]),
        Some(loan) => core.wakes().let_go_and_wake(
            |later| loan.let_go(later),
            [sent_waker, back_waker].into_iter().flatten(),
        ),
    }
}

/// Hands the buffer of a returned send to its holder, as what it was before it was lent.
#[inline]
pub(crate) fn take_back<B>(
    core: &Core,
    key: Key,
    from_loan: impl FnOnce(Loan) -> B,
) -> Option<Returned<B>> {
    let mut records = core.records.borrow_mut();
    let op = records.send(key);
    if !op.is_returned() {
        return None;
    }
    let loan = op.lent.loan.take().expect("a loan is taken back once");
    let back = Returned { buffer: from_loan(loan), receipt: op.receipt() };
    let _waker = op.lent.give_up();
    // Its waiter was told before that it is sent.
    let _gone = op.sent.is_gone().then(|| records.vacate_send(key));
    drop(records);
    Some(back)
}

/// The holder of a group's buffers goes: nobody waits for those of its sends.
pub(crate) fn leave_group(core: &Core, key: GroupKey) {
    for op in core.records.borrow_mut().sends() {
        if matches!(op.lent.back_to, BackTo::Group(group) if group == key) {
            op.lent.back_to = BackTo::Holder(Waiter::Gone);
            core.count_unclaimed(op);
        }
    }
}

/// Hands the result of a send to its holder.
pub(crate) fn take_sent(core: &Core, key: Key) -> Option<Result<usize>> {
    let mut records = core.records.borrow_mut();
    let result = records.send(key).tell()?;
    leave(core, records, key, |op| op.sent.leave());
    Some(result)
}

/// A handle goes unasked: the send goes on, and nobody waits for it. `leave` returns the handle's waker.
pub(crate) fn let_go(core: &Core, key: Key, leaves: impl FnOnce(&mut SendOp) -> Option<Waker>) {
    leave(core, core.records.borrow_mut(), key, leaves);
}

/// A holder's own action is no news to it.
#[inline]
fn leave(
    core: &Core,
    mut records: RefMut<'_, Records>,
    key: Key,
    leaves: impl FnOnce(&mut SendOp) -> Option<Waker>,
) {
    let op = records.send(key);
    let waker = leaves(op);
    core.count_unclaimed(op);
    if op.needs_settling() {
        settle_up(core, records, key);
    } else {
        drop(records);
    }
    drop(waker);
}
