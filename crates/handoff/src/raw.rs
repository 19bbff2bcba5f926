//! The way past the library: the ring's descriptor, and requests that the program makes itself.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use io_uring::squeue;

use crate::core::Core;
use crate::engine::raw;
use crate::error::{Error, Result};
use crate::handle::{Awaited, Cancel, Handle};
use crate::memory::LentOwner;
use crate::op::loan::Refused;
use crate::reactor::Reactor;
use crate::ring::Key;

/// A request of [`Driver::raw_request`](crate::Driver::raw_request) under way: a future of its result and its owner.
///
/// Dropping it cancels the request. The driver keeps the owner until the kernel has let go, and then drops it. If the last
/// [`Driver`](crate::Driver) goes before, this ends with [`Error::DriverGone`], and the owner is never dropped.
#[must_use = "dropping it cancels the request"]
pub struct RawRequest<T: 'static>(Handle<Completed<T>>);

/// What became of a raw request.
#[derive(Debug)]
pub struct RawCompletion<T> {
    /// What the kernel told: 0 or more for success, or a negative error number. Of several completions it is that of the
    /// last which is no notification.
    pub result: i32,
    /// The flags of that completion (`IORING_CQE_F_...`).
    pub flags: u32,
    /// What the request's memory belongs to.
    pub owner: T,
}

/// The last completion has come.
pub(crate) struct Completed<T>(PhantomData<T>);

impl<T: 'static> Awaited for Completed<T> {
    type Key = Key;
    type Output = Result<RawCompletion<T>>;

    fn take(core: &Core, key: Key) -> Option<Self::Output> {
        take(core, key).map(Ok)
    }

    fn wait(core: &Core, key: Key, waker: Waker) -> Option<Waker> {
        core.records.borrow_mut().raw(key).holder.wait(waker)
    }

    fn let_go(core: &Core, key: Key) {
        raw::let_go(core, key);
    }

    fn without_driver(error: Error) -> Self::Output {
        Err(error)
    }
}

fn take<T: 'static>(core: &Core, key: Key) -> Option<RawCompletion<T>> {
    let (owner, result, flags) = raw::take(core, key)?;
    let owner = LentOwner::give_back(owner).expect("the record had it alone");
    Some(RawCompletion { result, flags, owner })
}

/// Why such an entry can be no raw request.
fn unfit(entry: &squeue::Entry) -> Option<&'static str> {
    const _: () = assert!(size_of::<squeue::Entry>() == 64);
    // SAFETY: an entry is laid out as `struct io_uring_sqe`, whose second byte has its flags.
    let flags = unsafe { (&raw const *entry).cast::<u8>().add(1).read() };
    let flags = squeue::Flags::from_bits_retain(flags);
    if flags.intersects(squeue::Flags::IO_LINK | squeue::Flags::IO_HARDLINK) {
        return Some("a raw request is alone: a link would reach the library's next request");
    }
    if flags.contains(squeue::Flags::SKIP_SUCCESS) {
        return Some(
            "a raw request needs its completion, by which the library knows that it is over",
        );
    }
    None
}

impl<T: 'static> RawRequest<T> {
    /// # Safety
    ///
    /// As for [`Driver::raw_request`](crate::Driver::raw_request).
    pub(crate) unsafe fn begin(
        driver: &Rc<Reactor>,
        entry: squeue::Entry,
        owner: T,
    ) -> Result<Self, Refused<T>> {
        let checked = driver.core.check_room();
        let unfit = unfit(&entry).map_or(Ok(()), |reason| Err(Error::Invalid(reason)));
        if let Err(error) = checked.and(unfit) {
            return Err(Refused { buffer: owner, error });
        }
        let (owner, _) = LentOwner::keep_owner(owner);
        // SAFETY: the caller vouches for it.
        match unsafe { raw::begin(&driver.core, entry, owner) } {
            Ok(key) => Ok(Self(Handle::new(Rc::clone(driver), key))),
            Err((owner, error)) => {
                let buffer = LentOwner::give_back(owner).expect("nobody else had it");
                Err(Refused { buffer, error })
            }
        }
    }

    /// Asks the kernel to end it. It then ends with `-ECANCELED` or `-EINTR`, or as usual if that comes too late.
    pub fn cancel(&self) {
        if let Some(key) = self.0.key_here() {
            raw::cancel(&self.0.driver().core, key);
        }
    }

    /// The result, once it is there.
    ///
    /// # Errors
    ///
    /// Returns itself until then: for ever if the driver is gone, which only awaiting tells.
    pub fn try_take(mut self) -> Result<RawCompletion<T>, Self> {
        self.0.take_by(take).ok_or(self)
    }
}

impl<T: 'static> Cancel for RawRequest<T> {
    fn cancel(&self) {
        self.cancel();
    }
}

impl<T: 'static> Future for RawRequest<T> {
    type Output = Result<RawCompletion<T>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context)
    }
}

impl<T: 'static> Unpin for RawRequest<T> {}

impl<T: 'static> fmt::Debug for RawRequest<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RawRequest").field(&self.0).finish()
    }
}
