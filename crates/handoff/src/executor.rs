//! Running futures on the thread that owns a driver, and waking it from others.

use std::future::Future;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};

use async_executor::{LocalExecutor, Task};
use rustix::event::{EventfdFlags, eventfd};

use crate::driver::{Driver, Inner};
use crate::error::{Error, Result};
use crate::ring::Until;

/// Ends a wait of the driver's thread, from any thread.
pub(crate) struct Unpark {
    event: OwnedFd,
    /// Something was woken since the futures were last polled.
    woken: AtomicBool,
    /// The thread waits for the kernel, or is about to.
    parked: AtomicBool,
}

impl Unpark {
    pub(crate) fn new() -> Result<Arc<Self>> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| Error::io("making an event descriptor", error.into()))?;
        Ok(Arc::new(Self { event, woken: AtomicBool::new(false), parked: AtomicBool::new(false) }))
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// The thread is about to wait for the kernel: whoever wakes something from now on ends the wait, and
    /// what was woken already has there be none.
    pub(crate) fn park(&self, until: Until) -> Until {
        self.parked.store(true, SeqCst);
        if self.woken.load(SeqCst) { Until::Now } else { until }
    }

    /// The wait is over: what is woken now is seen without a word through the kernel.
    pub(crate) fn unpark(&self) {
        self.parked.store(false, SeqCst);
    }

    /// Takes the event off the descriptor.
    pub(crate) fn clear(&self) {
        let mut count = [0; 8];
        // EAGAIN: somebody else took it.
        let _ = rustix::io::read(&self.event, &mut count);
    }
}

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, SeqCst);
        if self.parked.load(SeqCst) {
            // The only failure is a full counter, which wakes as well.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }
}

pub(crate) fn block_on<T>(inner: &Rc<Inner>, future: impl Future<Output = T>) -> Result<T> {
    inner.is_driven();
    let mut future = pin!(future);
    let unpark = &inner.unpark;
    let waker = Waker::from(Arc::clone(unpark));
    let mut context = Context::from_waker(&waker);
    loop {
        unpark.woken.store(false, SeqCst);
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            // A call around this one shares the flag, and looks again.
            unpark.woken.store(true, SeqCst);
            return Ok(value);
        }
        inner.turn_parked()?;
    }
}

/// Runs several futures on the thread that owns a driver.
#[derive(Debug)]
pub struct Executor {
    driver: Driver,
    tasks: LocalExecutor<'static>,
}

impl Executor {
    /// An executor that turns `driver` while it runs.
    pub fn new(driver: &Driver) -> Self {
        Self { driver: driver.clone(), tasks: LocalExecutor::new() }
    }

    /// Starts a future beside the others. It runs while [`run`](Self::run) does, and is dropped with
    /// its task unless that is detached.
    pub fn spawn<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> Task<T> {
        self.tasks.spawn(future)
    }

    /// Runs all spawned futures until `future` ends.
    ///
    /// # Errors
    ///
    /// When the kernel refuses to be entered.
    pub fn run<T>(&self, future: impl Future<Output = T>) -> Result<T> {
        self.driver.block_on(self.tasks.run(future))
    }
}
