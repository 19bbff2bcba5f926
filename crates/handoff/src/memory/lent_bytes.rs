//! Lending `bytes::Bytes`.
//!
//! Minimum kernel: any. They are not registered: their memory belongs to any owner.
//!
//! Contracts:
//! - an operation holds a handle of the bytes until the kernel lets go of them, so they stay in place and
//!   unchanged;
//! - the drop of their owner is foreign code. What the driver drops, it drops with the wakers, when all news of
//!   a turn is told;
//! - a thread that lends bytes again and again allocates nothing for that.

use std::cell::RefCell;
use std::mem;
use std::sync::Arc;
use std::task::Wake;

use bytes::Bytes;

/// The most that a thread keeps for bytes that it lends later.
const SPARE: usize = 1024;

thread_local! {
    static SPARES: RefCell<Vec<Arc<LentBytes>>> = const { RefCell::new(Vec::new()) };
}

/// The handle that the loan has. Called as a waker, it drops the bytes, which nobody wants then.
pub(super) struct LentBytes(Bytes);

impl LentBytes {
    pub(super) fn lend(bytes: Bytes) -> Arc<Self> {
        // A thread that ends has no spares.
        let spare = SPARES.try_with(|spares| spares.borrow_mut().pop()).ok().flatten();
        match spare {
            Some(mut lent) => {
                Arc::get_mut(&mut lent).expect("a spare has one owner").0 = bytes;
                lent
            }
            None => Arc::new(Self(bytes)),
        }
    }

    /// The bytes of a loan that is over; `None` while somebody else has the handle.
    pub(super) fn give_back(mut lent: Arc<Self>) -> Option<Bytes> {
        let bytes = mem::take(&mut Arc::get_mut(&mut lent)?.0);
        let _ = SPARES.try_with(|spares| {
            let mut spares = spares.borrow_mut();
            if spares.len() < SPARE {
                spares.push(lent);
            }
        });
        Some(bytes)
    }
}

impl Wake for LentBytes {
    fn wake(self: Arc<Self>) {
        drop(Self::give_back(self));
    }
}
