//! Calls about files and names under way, as futures.

use std::ffi::CString;
use std::fmt;
use std::future::Future;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use super::{File, Metadata};
use crate::core::Core;
use crate::engine::file_call;
use crate::error::{Error, Result};
use crate::handle::{Awaited, Cancel, Handle};
use crate::op::{Answer, FileCall as Call, Name};
use crate::reactor::Reactor;
use crate::ring::{Endpoint, Key};

/// A call about a file or a name under way: a future of what the kernel tells.
///
/// With a ring the kernel's workers make the call, and the thread never waits for a disk. Without a ring
/// ([`Driver::ring_unavailable`](crate::Driver::ring_unavailable)) the call is made when it is begun, and blocks the thread
/// like reads and writes of files.
///
/// If you drop it, an open is cancelled, and a file that is open by then is closed. A question is cancelled, too. What
/// changes something goes on, but for the rest of a range that needs several requests. If the last
/// [`Driver`](crate::Driver) goes before, this ends with [`Error::DriverGone`].
///
/// ```no_run
/// # async fn example(driver: &handoff::Driver, file: &handoff::File) -> Result<(), Box<dyn std::error::Error>> {
/// // Give up after a second, whatever the disk does.
/// let second = std::time::Duration::from_secs(1);
/// driver.timeout(second, file.sync_data()?).await??;
/// # Ok(()) }
/// ```
#[must_use = "dropping it may cancel the call, and nobody learns of an error"]
pub struct FileCall<T> {
    called: Handle<Called>,
    make: fn(&Rc<Reactor>, Answer) -> T,
}

/// The call is over.
struct Called;

impl Awaited for Called {
    type Key = Key;
    type Output = Result<Answer>;

    fn take(core: &Core, key: Key) -> Option<Self::Output> {
        file_call::take(core, key)
    }

    fn wait(core: &Core, key: Key, waker: Waker) -> Option<Waker> {
        core.records.borrow_mut().file_call(key).holder.wait(waker)
    }

    fn let_go(core: &Core, key: Key) {
        file_call::let_go(core, key);
    }

    fn without_driver(error: Error) -> Self::Output {
        Err(error)
    }
}

impl<T> FileCall<T> {
    pub(super) fn begin(
        driver: &Rc<Reactor>,
        call: Call,
        make: fn(&Rc<Reactor>, Answer) -> T,
    ) -> Result<Self> {
        driver.core.check_room()?;
        let key = file_call::begin(&driver.core, call);
        Ok(Self { called: Handle::new(Rc::clone(driver), key), make })
    }

    /// Asks for an early end. The call ends with [`Error::Canceled`], or as usual if that comes too late; what it
    /// has changed by then stays.
    pub fn cancel(&self) {
        if let Some(key) = self.called.key_here() {
            file_call::cancel(&self.called.driver().core, key);
        }
    }

    /// The result, once it is there.
    ///
    /// # Errors
    ///
    /// Returns itself until then: for ever if the driver is gone, which only awaiting tells.
    pub fn try_take(mut self) -> Result<Result<T>, Self> {
        match self.called.take() {
            Some(told) => Ok(told.map(|answer| (self.make)(self.called.driver(), answer))),
            None => Err(self),
        }
    }
}

impl<T> Cancel for FileCall<T> {
    fn cancel(&self) {
        self.cancel();
    }
}

impl<T> Future for FileCall<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = Pin::new(&mut self.called).poll(context);
        polled.map_ok(|answer| (self.make)(self.called.driver(), answer))
    }
}

impl<T> fmt::Debug for FileCall<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FileCall").field(&self.called).finish()
    }
}

/// What a call about a name asks for.
pub(super) fn name(directory: Option<Rc<Endpoint>>, path: &Path) -> Result<Name> {
    match CString::new(path.as_os_str().as_bytes()) {
        Ok(path) => Ok(Name { directory, path }),
        Err(_) => Err(Error::Invalid("a path has no byte 0")),
    }
}

/// The call has told nothing but its success.
pub(super) fn nothing(_: &Rc<Reactor>, answer: Answer) {
    debug_assert!(matches!(answer, Answer::Done));
}

pub(super) fn metadata(_: &Rc<Reactor>, answer: Answer) -> Metadata {
    match answer {
        Answer::Metadata(told) => Metadata(told),
        Answer::Done | Answer::Descriptor(_) => unreachable!("it was a question"),
    }
}

pub(super) fn file(driver: &Rc<Reactor>, answer: Answer) -> File {
    match answer {
        Answer::Descriptor(file) => File::attach(Rc::clone(driver), file),
        Answer::Done | Answer::Metadata(_) => unreachable!("a file was opened"),
    }
}
