//! What is under way and can be cancelled.

use std::cell::RefCell;
use std::ffi::c_int;
use std::future::{Future, poll_fn};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::{Rc, Weak};

use futures_util::future::AbortHandle;
use handoff::Cancel;

use crate::boundary::{Failure, enter, put};
use crate::handles::{self, Kind, handoff_operation};

/// Something that can be asked to end early.
pub(crate) trait Cancels {
    fn cancel(&self);
}

impl<T: Cancel> Cancels for RefCell<T> {
    fn cancel(&self) {
        self.borrow().cancel();
    }
}

impl Cancels for AbortHandle {
    fn cancel(&self) {
        self.abort();
    }
}

/// By what an operation can be cancelled, as long as its task is there; none before it is begun.
#[derive(Clone)]
struct Operation(Option<Weak<dyn Cancels>>, Option<Descriptors>);

/// Descriptors that came with a message, and that C has not taken.
pub(crate) type Descriptors = Rc<RefCell<Vec<OwnedFd>>>;

impl Kind for Operation {
    const NAME: &'static str = "an operation";
}

/// Waits for what is shared with its [`Operation`].
pub(crate) async fn finished<T: Future + Unpin>(shared: &RefCell<T>) -> T::Output {
    poll_fn(|context| Pin::new(&mut *shared.borrow_mut()).poll(context)).await
}

/// Begins something, and gives it a handle if there is a place for that.
///
/// # Safety
///
/// `place` is NULL or can be written.
pub(crate) unsafe fn begin(
    place: *mut handoff_operation,
    begin: impl FnOnce() -> Result<Weak<dyn Cancels>, Failure>,
) -> Result<c_int, Failure> {
    // SAFETY: the caller vouches for it.
    unsafe { begin_with(place, None, begin) }
}

/// As [`begin`], for an operation that may leave descriptors with its handle.
///
/// # Safety
///
/// As there.
pub(crate) unsafe fn begin_with(
    place: *mut handoff_operation,
    descriptors: Option<Descriptors>,
    begin: impl FnOnce() -> Result<Weak<dyn Cancels>, Failure>,
) -> Result<c_int, Failure> {
    if place.is_null() {
        return begin().map(|_| 0);
    }
    // Before anything is lent, since there may be no handle left.
    let handle = handles::insert(Operation(None, descriptors))?;
    match begin() {
        Ok(cancels) => {
            let begun = |operation: &mut Operation| {
                operation.0 = Some(cancels);
                Ok(())
            };
            handles::with(handle, begun)?;
            // SAFETY: the caller vouches for it.
            unsafe { put(place, handle) }?;
            Ok(0)
        }
        Err(failure) => {
            handles::remove::<Operation>(handle)?;
            Err(failure)
        }
    }
}

/// Those that a handle has.
pub(crate) fn descriptors(operation: handoff_operation) -> Result<Descriptors, Failure> {
    let Operation(_, descriptors) = handles::get(operation)?;
    descriptors.ok_or_else(|| Failure::invalid("the operation receives no message"))
}

/// Asks for an operation to end early: it ends with `-ECANCELED`, or as it would have if this comes too late. On a
/// stream, a send that stopped midway breaks the stream.
///
/// Returns 0, also where the operation is over, or `-EBADF`.
#[unsafe(no_mangle)]
pub extern "C" fn handoff_cancel(operation: handoff_operation) -> c_int {
    enter(|| {
        let Operation(cancels, _) = handles::get(operation)?;
        if let Some(cancels) = cancels.and_then(|cancels| cancels.upgrade()) {
            cancels.cancel();
        }
        Ok(0)
    })
}
