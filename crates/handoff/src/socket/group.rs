//! Groups: many sends share one return, as in the notification contexts of the 2021 proposal.
//!
//! The kernel feature that came of that proposal reports one return per request; the grouping is done here.
//! A group collects the buffers of its sends as they come back. Once flushed, it yields all of them when
//! the last is back. Steady use allocates nothing: the next group uses the storage of a flushed one.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use crate::core::Core;
use crate::engine::sending;
use crate::error::{Error, Result};
use crate::handle::{Awaited, Handle};
use crate::op::group::GroupKey;
use crate::op::loan::{Payload, Returned};
use crate::reactor::Reactor;
use crate::receipt::Receipt;

/// Sends that return together.
///
/// [`Driver::group`](crate::Driver::group) makes it, [`Message::send_in`](crate::Message::send_in) fills
/// it, [`flush`](Self::flush) ends it. If you drop it, its sends go on and its buffers are dropped as they
/// come back.
///
/// ```no_run
/// # async fn example(driver: &handoff::Driver, socket: &handoff::Socket, buffers: Vec<handoff::Buffer>) -> Result<(), Box<dyn std::error::Error>> {
/// let mut group = driver.group();
/// for buffer in buffers {
///     socket.message(buffer).send_in(&mut group)?.await?;
/// }
/// let returned = group.flush().await?;
/// println!("{} buffers, {}", returned.buffer.len(), returned.receipt.outcome());
/// # Ok(()) }
/// ```
pub struct Group<B: Payload>(Handle<AllBack<B>>);

/// The shared return of a flushed [`Group`]: a future of all its buffers.
///
/// If the last [`Driver`](crate::Driver) is dropped while the kernel has any of them, this ends with
/// [`Error::DriverGone`]. Their memory is freed when the kernel lets go of it, and what was back before is dropped with
/// this.
///
/// ```no_run
/// # async fn example(group: handoff::Group<handoff::Buffer>) -> Result<(), Box<dyn std::error::Error>> {
/// let mut buffers = Vec::new();
/// match group.flush().try_take(&mut buffers) {
///     Ok(receipt) => println!("all {} are back, {}", buffers.len(), receipt.outcome()),
///     Err(on_loan) => drop(on_loan.await?),
/// }
/// # Ok(()) }
/// ```
#[must_use = "the buffers are dropped when they come back and nobody waits for them"]
#[derive(Debug)]
pub struct GroupOnLoan<B: Payload>(Handle<AllBack<B>>);

/// The kernel has let go of the buffers of all sends of a group.
pub(crate) struct AllBack<B>(PhantomData<B>);

impl<B: Payload> Awaited for AllBack<B> {
    type Key = GroupKey;
    type Output = Result<Returned<Vec<B>>>;

    fn take(core: &Core, key: GroupKey) -> Option<Self::Output> {
        let mut buffer = Vec::new();
        let receipt = take_into(core, key, &mut buffer)?;
        Some(Ok(Returned { buffer, receipt }))
    }

    fn wait(core: &Core, key: GroupKey, waker: Waker) -> Option<Waker> {
        core.groups.borrow_mut().get(key).waker.replace(waker)
    }

    fn let_go(core: &Core, key: GroupKey) {
        if core.groups.borrow_mut().get(key).out > 0 {
            sending::leave_group(core, key);
        }
        let left = core.groups.borrow_mut().abandon(key);
        drop(left);
    }

    fn without_driver(error: Error) -> Self::Output {
        Err(error)
    }
}

fn take_into<B: Payload>(core: &Core, key: GroupKey, into: &mut Vec<B>) -> Option<Receipt> {
    let mut groups = core.groups.borrow_mut();
    let gathered = groups.get(key);
    if gathered.out > 0 {
        return None;
    }
    let loans = gathered.loans.drain(..);
    into.extend(loans.map(|loan| B::from_loan(loan.expect("a loan is given whole"))));
    let receipt = gathered.receipt;
    groups.close(key);
    Some(receipt)
}

impl<B: Payload> Group<B> {
    pub(crate) fn open(driver: Rc<Reactor>) -> Self {
        let key = driver.core.groups.borrow_mut().open();
        Self(Handle::new(driver, key))
    }

    pub(crate) fn key(&self) -> GroupKey {
        self.0.key().expect("an open group has a record")
    }

    pub(crate) fn is_of(&self, driver: &Rc<Reactor>) -> bool {
        Rc::ptr_eq(self.0.driver(), driver)
    }

    /// Buffers of the group that are not back.
    pub fn on_loan(&self) -> usize {
        self.0.driver().core.groups.borrow_mut().get(self.key()).out
    }

    /// Ends the group: no send joins it any more, and all its buffers come back together.
    pub fn flush(self) -> GroupOnLoan<B> {
        GroupOnLoan(self.0)
    }
}

impl<B: Payload> GroupOnLoan<B> {
    /// If all buffers are back, appends them to `into`; returns their joint account.
    ///
    /// # Errors
    ///
    /// Returns itself while any buffer is still on loan: for ever if the driver is gone, which only awaiting tells.
    pub fn try_take(mut self, into: &mut Vec<B>) -> Result<Receipt, Self> {
        self.0.take_by(|core, key| take_into(core, key, into)).ok_or(self)
    }
}

impl<B: Payload> Future for GroupOnLoan<B> {
    type Output = Result<Returned<Vec<B>>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context)
    }
}

impl<B: Payload> Unpin for GroupOnLoan<B> {}

impl<B: Payload> fmt::Debug for Group<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group").field("on_loan", &self.on_loan()).finish()
    }
}
