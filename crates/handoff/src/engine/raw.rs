//! Requests that the program makes itself.
//!
//! Minimum kernel: that of the request. Return signal: its last completion.
//!
//! Contracts:
//! - the record has the owner of the request's memory until the last completion, also when nobody waits for it;
//! - a request that nobody waits for is cancelled.

use std::sync::Arc;

use io_uring::{cqueue, squeue};

use crate::core::Core;
use crate::error::{Error, Result};
use crate::memory::LentOwner;
use crate::op::{Op, RawOp, RawState};
use crate::ring::token::Stage;
use crate::ring::{Key, Token};

/// Queues the request.
///
/// # Safety
///
/// What the entry names stays valid, and untouched where the request says so, as long as the owner is there.
pub(crate) unsafe fn begin(
    core: &Core,
    entry: squeue::Entry,
    owner: Arc<LentOwner>,
) -> Result<Key, (Arc<LentOwner>, Error)> {
    let Some(ring) = core.io.ring() else {
        return Err((owner, core.io.no_ring("a raw request")));
    };
    let mut ring = ring.borrow_mut();
    if let Err(error) = ring.make_room(1) {
        return Err((owner, Error::io("submitting a raw request", error)));
    }
    let key = core.records.borrow_mut().insert(|| Op::Raw(RawOp::new(owner)));
    let data = Token { key, stage: Stage::Raw }.to_user_data();
    // SAFETY: the record has the owner until the last completion, and the caller vouches for the rest.
    unsafe { ring.push(&entry.user_data(data)) };
    drop(ring);
    core.wakes().attend();
    Ok(key)
}

pub(crate) fn completed(core: &Core, key: Key, result: i32, flags: u32) {
    {
        let mut records = core.records.borrow_mut();
        let op = records.raw(key);
        if !cqueue::notif(flags) {
            op.told = (result, flags);
        }
        if cqueue::more(flags) {
            return;
        }
        op.state = RawState::Over;
    }
    advance(core, key);
}

/// Hands owner and result to the holder, once the request is over.
pub(crate) fn take(core: &Core, key: Key) -> Option<(Arc<LentOwner>, i32, u32)> {
    let (owner, (result, flags), _waker) = {
        let mut records = core.records.borrow_mut();
        let op = records.raw(key);
        if op.state != RawState::Over {
            return None;
        }
        op.state = RawState::Told;
        (op.owner.take().expect("it is taken once"), op.told, op.holder.leave())
    };
    advance(core, key);
    Some((owner, result, flags))
}

/// The holder goes.
pub(crate) fn let_go(core: &Core, key: Key) {
    let _waker = core.records.borrow_mut().raw(key).holder.leave();
    cancel(core, key);
    advance(core, key);
}

/// Asks the kernel to end it, if that has it.
pub(crate) fn cancel(core: &Core, key: Key) {
    {
        let mut records = core.records.borrow_mut();
        let op = records.raw(key);
        if !op.kernel_holds() || op.asks == 0 {
            return;
        }
        op.asks -= 1;
    }
    // There is a ring, which tells by a completion.
    let _ = core.cancel(Token { key, stage: Stage::Raw });
}

fn advance(core: &Core, key: Key) {
    let mut records = core.records.borrow_mut();
    let op = records.raw(key);
    if op.kernel_holds() {
        return;
    }
    core.news.set(true);
    let waker = op.holder.take_waker();
    let owner = op.holder.is_gone().then(|| op.owner.take());
    if owner.is_some() {
        records.vacate(key);
    }
    // What is dropped or woken may use the driver.
    drop(records);
    match owner.flatten() {
        None => core.wakes().wake(waker),
        Some(owner) => core.wakes().let_go_and_wake(|later| later(owner.into()), waker),
    }
}
