//! The requests of a block device, as a program takes them.
//!
//! Minimum kernel, capability and return signal: as [`lease::request`](crate::lease::request) says.

use std::fmt;
use std::future::poll_fn;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::task::{Context, Poll};

use crate::engine::requests;
use crate::error::{Error, Result};
use crate::lease::Request;
use crate::lease::request_queue::{Answer, QueueShared};
use crate::reactor::Reactor;

/// A queue of a block device, whose requests this driver takes until the driver goes or the device is
/// stopped.
///
/// After you drop it, new requests fail.
///
/// ```no_run
/// # async fn serve(device: std::fs::File, peer: std::net::TcpStream) -> Result<(), Box<dyn std::error::Error>> {
/// # let driver = handoff::Driver::new()?;
/// let queue = driver.requests(device, 0, 64)?;
/// let socket = driver.socket(peer)?;
/// while let Some(request) = queue.next().await? {
///     // Sent from where the writer has it.
///     if let Some(lease) = request.source() {
///         let sent = socket.send(lease)?.await?;
///         request.answer(sent.sent.map_err(Into::into));
///     }
/// }
/// # Ok(()) }
/// ```
pub struct RequestQueue {
    shared: Rc<QueueShared>,
    /// Its ring has the queue.
    driver: Rc<Reactor>,
}

impl RequestQueue {
    pub(crate) fn open(
        driver: &Rc<Reactor>,
        device: OwnedFd,
        number: u16,
        depth: u16,
    ) -> Result<Self> {
        if driver.core.io.is_polled {
            return Err(Error::Invalid(
                "requests of a block device come by an ordinary ring: build the driver without DriverBuilder::sq_poll",
            ));
        }
        let shared = requests::open(&driver.core, device, number, depth)?;
        Ok(Self { shared, driver: Rc::clone(driver) })
    }

    /// The next request, when there is one; `None` once the device is stopped.
    ///
    /// # Errors
    ///
    /// When the device's driver refuses to be asked for requests.
    pub async fn next(&self) -> Result<Option<Request>> {
        poll_fn(|context| self.poll_next(context)).await
    }

    fn poll_next(&self, context: &mut Context<'_>) -> Poll<Result<Option<Request>>> {
        let queue = &self.shared;
        if let Some(tag) = queue.arrived.borrow_mut().pop_front() {
            let described = self.driver.core.request_queues.borrow()[usize::from(queue.place)]
                .descriptors
                .of(tag);
            return Poll::Ready(Ok(Some(Request::new(queue, tag, described))));
        }
        if let Some(errno) = queue.failure.get() {
            return Poll::Ready(Err(Error::errno("asking for requests of a block device", errno)));
        }
        if queue.gone.get() == queue.depth {
            return Poll::Ready(Ok(None));
        }
        self.driver.core.check_driven()?;
        let before = queue.waker.borrow_mut().replace(context.waker().clone());
        drop(before);
        Poll::Pending
    }
}

impl Drop for RequestQueue {
    fn drop(&mut self) {
        self.shared.abandoned.set(true);
        let arrived = self.shared.arrived.take();
        arrived.into_iter().for_each(|tag| drop(Answer::of(&self.shared, tag)));
    }
}

impl fmt::Debug for RequestQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestQueue")
            .field("number", &self.shared.number)
            .field("depth", &self.shared.depth)
            .finish_non_exhaustive()
    }
}
