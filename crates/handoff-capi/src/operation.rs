//! What is under way and can be cancelled.

use std::cell::RefCell;
use std::ffi::c_int;
use std::future::{Future, poll_fn};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::{Rc, Weak};

use futures_util::future::AbortHandle;
use handoff::{Cancel, Metadata};

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
struct Operation(Option<Weak<dyn Cancels>>, Option<Left>);

/// Descriptors that came with a message, and that C has not taken.
pub(crate) type Descriptors = Rc<RefCell<Vec<OwnedFd>>>;

/// What a question about a file was told.
pub(crate) type Told = Rc<RefCell<Option<Metadata>>>;

/// What an operation leaves with its handle.
#[derive(Clone)]
pub(crate) enum Left {
    Descriptors(Descriptors),
    Told(Told),
}

impl From<Descriptors> for Left {
    fn from(descriptors: Descriptors) -> Self {
        Self::Descriptors(descriptors)
    }
}

impl From<Told> for Left {
    fn from(told: Told) -> Self {
        Self::Told(told)
    }
}

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

/// As [`begin`], for an operation that may leave something with its handle.
///
/// # Safety
///
/// As there.
pub(crate) unsafe fn begin_with(
    place: *mut handoff_operation,
    left: Option<Left>,
    begin: impl FnOnce() -> Result<Weak<dyn Cancels>, Failure>,
) -> Result<c_int, Failure> {
    if place.is_null() {
        return begin().map(|_| 0);
    }
    // Before anything is lent, since there may be no handle left.
    let handle = handles::insert(Operation(None, left))?;
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
    match handles::get(operation)? {
        Operation(_, Some(Left::Descriptors(descriptors))) => Ok(descriptors),
        Operation(..) => Err(Failure::invalid("the operation receives no message")),
    }
}

/// The place for what was told.
pub(crate) fn told(operation: handoff_operation) -> Result<Told, Failure> {
    match handles::get(operation)? {
        Operation(_, Some(Left::Told(told))) => Ok(told),
        Operation(..) => Err(Failure::invalid("the operation asks nothing about a file")),
    }
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
