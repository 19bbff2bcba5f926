//! Groups: many sends share one return, as in the notification contexts of the 2021 proposal.
//!
//! The kernel that became of it tells one return a request; the grouping is done here. A group
//! gathers the buffers of its sends as they come back, and yields all of them, once it is flushed,
//! when the last is back. Steady use allocates nothing: a flushed group's storage serves the next.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use crate::op::group::GroupKey;
use crate::op::loan::{Lend, Returned};
use crate::reactor::Reactor;
use crate::receipt::Receipt;

/// Sends that will be returned together.
///
/// Made by [`Driver::group`](crate::Driver::group), filled by
/// [`Message::send_in`](crate::Message::send_in), ended by [`flush`](Self::flush). Dropped, it lets
/// its sends go on and drops their buffers as they come back.
pub struct Group<B: Lend> {
    handle: Handle<B>,
}

/// The shared return of a flushed [`Group`]: a future of all its buffers.
#[must_use = "the buffers are dropped when they come back and nobody waits for them"]
pub struct GroupOnLoan<B: Lend> {
    handle: Handle<B>,
}

struct Handle<B> {
    driver: Rc<Reactor>,
    key: Option<GroupKey>,
    buffers: PhantomData<B>,
}

impl<B: Lend> Group<B> {
    pub(crate) fn open(driver: Rc<Reactor>) -> Self {
        let key = Some(driver.groups.borrow_mut().open());
        Self { handle: Handle { driver, key, buffers: PhantomData } }
    }

    pub(crate) fn key(&self) -> GroupKey {
        self.handle.key.expect("an open group has a record")
    }

    pub(crate) fn is_of(&self, driver: &Rc<Reactor>) -> bool {
        Rc::ptr_eq(&self.handle.driver, driver)
    }

    /// Buffers of the group that are not back.
    pub fn on_loan(&self) -> usize {
        self.handle.driver.groups.borrow_mut().get(self.key()).out
    }

    /// Ends the group: no send joins it any more, and all its buffers come back at once.
    pub fn flush(self) -> GroupOnLoan<B> {
        GroupOnLoan { handle: self.handle }
    }
}

impl<B: Lend> GroupOnLoan<B> {
    /// Takes the buffers over if all are back, appending them to `into`; their joint account.
    ///
    /// # Errors
    ///
    /// Gives itself back while any buffer is still on loan.
    pub fn try_take(mut self, into: &mut Vec<B>) -> Result<Receipt, Self> {
        self.take_into(into).ok_or(self)
    }

    fn take_into(&mut self, into: &mut Vec<B>) -> Option<Receipt> {
        let key = self.handle.key?;
        let mut groups = self.handle.driver.groups.borrow_mut();
        let record = groups.get(key);
        if record.out > 0 {
            return None;
        }
        let loans = record.loans.drain(..);
        into.extend(loans.map(|loan| B::from_loan(loan.expect("a loan is given whole"))));
        let receipt = record.receipt;
        groups.close(key);
        self.handle.key = None;
        Some(receipt)
    }
}

impl<B: Lend> Future for GroupOnLoan<B> {
    type Output = Returned<Vec<B>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let mut buffer = Vec::new();
        if let Some(receipt) = this.take_into(&mut buffer) {
            return Poll::Ready(Returned { buffer, receipt });
        }
        this.handle.driver.expect_driven();
        let key = this.handle.key.expect("a group is not polled after it was returned");
        let waker = context.waker().clone();
        let before = this.handle.driver.groups.borrow_mut().get(key).waker.replace(waker);
        drop(before);
        Poll::Pending
    }
}

impl<B: Lend> Unpin for GroupOnLoan<B> {}

impl<B> Drop for Handle<B> {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            let left = self.driver.groups.borrow_mut().abandon(key);
            drop(left);
        }
    }
}

impl<B: Lend> std::fmt::Debug for Group<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Group").field("on_loan", &self.on_loan()).finish()
    }
}

impl<B: Lend> std::fmt::Debug for GroupOnLoan<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GroupOnLoan").finish_non_exhaustive()
    }
}
