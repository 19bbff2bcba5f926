//! Lanes of sockets: sends in bulk, without a handle for each.

use std::fmt;
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::task::Poll;

use super::send::Finished;
use super::{Socket, check_uring_zc};
use crate::error::{Error, Result};
use crate::mechanism::Engine;
use crate::memory::{Backed, Buffer, Region};
use crate::op::lane::LaneShared;
use crate::op::loan::{Refused, Returned};
use crate::reactor::Reactor;

impl Socket {
    /// Opens a lane for at most `capacity` buffers of `region` at a time: the way to send in bulk. A lane
    /// stores very little for a message, and allocates nothing for it.
    ///
    /// A lane always lends (`IORING_OP_SEND_ZC`, Linux 6.0); you cannot choose an engine. If the region is
    /// [registered](crate::Driver::register), the kernel need not look up its pages.
    ///
    /// A datagram socket may have several lanes, and sends beside them. A stream has one lane, and no other
    /// sends as long as it exists, so that its bytes stay in order.
    ///
    /// # Errors
    ///
    /// [`Error::EngineUnavailable`] on sockets that cannot send this way, and on those told to send otherwise
    /// ([`set_engine`](Socket::set_engine)); [`Error::NoRing`] without a ring. Also when the stream is
    /// broken, has sends under way or already has a lane.
    pub fn lane(&self, region: &Region, capacity: usize) -> Result<Lane> {
        let unavailable =
            |reason| Error::EngineUnavailable { engine: Engine::UringZc.name(), reason };
        let shared = &self.shared;
        shared
            .check_plain("a lane cannot send over TLS, which has to cipher first: send buffers")?;
        check_uring_zc(&self.driver.core.io, &shared.endpoint.fd).map_err(unavailable)?;
        let wishes = |engine| shared.lender.chooser.borrow().is_wished(engine);
        if !wishes(Engine::Auto) && !wishes(Engine::UringZc) {
            return Err(unavailable("the socket was told to send by another engine".to_owned()));
        }
        let lane = LaneShared::open(&self.driver.core, shared, region.backing(), capacity)?;
        Ok(Lane { shared: lane, driver: Rc::clone(&self.driver), _socket: self.clone() })
    }
}

/// Sends of one socket in bulk, from one region: push buffers, turn the driver, take back returned ones.
///
/// You move buffers in, and get them back in the order in which you pushed them, each when the kernel has
/// let go of it. If you drop a lane, pushed buffers are still sent, and are dropped as they come back.
///
/// A datagram goes or fails by itself. A stream goes in order: if the kernel takes only part of a buffer, the
/// rest of it goes next. After a failure nothing follows: the other buffers come back with
/// [`Error::StreamBroken`]. If memory for lending runs out and the socket's engine is [`Auto`](Engine::Auto),
/// the bytes are copied, and the receipt says so.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use handoff::{Driver, Region, Wait};
///
/// let driver = Driver::new()?;
/// let mut region = Region::anonymous(1 << 20)?;
/// driver.register(&region)?;
/// let socket = driver.socket(std::net::TcpStream::connect("192.0.2.1:9000")?)?;
/// let lane = socket.lane(&region, 16)?;
/// for buffer in region.chunks(1 << 16) {
///     lane.push(buffer).map_err(|refused| refused.error)?;
/// }
/// while !lane.is_empty() {
///     driver.turn(Wait::Event)?;
///     while let Some(finished) = lane.take() {
///         println!("{} bytes, {}", finished.sent?, finished.receipt.outcome());
///     }
/// }
/// # Ok(()) }
/// ```
pub struct Lane {
    shared: Rc<LaneShared>,
    driver: Rc<Reactor>,
    /// A lane is a handle on its socket.
    _socket: Socket,
}

impl Lane {
    /// Moves a buffer in, to be sent with the driver's next turn.
    ///
    /// # Errors
    ///
    /// Gives the buffer back when the lane is full ([`Error::LaneFull`]), when the buffer is of another
    /// region, after [`cancel`](Self::cancel), after a failure on a stream, and when the driver is gone.
    #[inline]
    pub fn push(&self, buffer: Buffer) -> Result<(), Refused<Buffer>> {
        if let Err(error) = self.driver.core.check_here() {
            return Err(Refused { buffer, error });
        }
        self.shared
            .push(&self.driver.core, buffer)
            .map_err(|(buffer, error)| Refused { buffer, error })
    }

    /// The buffer pushed first, once it is back, with what happened to it.
    #[inline]
    pub fn take(&self) -> Option<Finished<Buffer>> {
        let (sent, Returned { buffer, receipt }) = self.shared.take(&self.driver.core)?;
        Some(Finished { sent, buffer, receipt })
    }

    /// Waits for the first buffer, pushed already or later, to come back.
    ///
    /// # Errors
    ///
    /// [`Error::DriverGone`] when the driver was dropped and the kernel has kept the buffer.
    pub fn returned(&self) -> impl Future<Output = Result<Finished<Buffer>>> + '_ {
        poll_fn(|context| {
            if let Some(finished) = self.take() {
                return Poll::Ready(Ok(finished));
            }
            if let Err(error) = self.driver.core.check_driven() {
                return Poll::Ready(Err(error));
            }
            self.shared.await_back(context.waker());
            Poll::Pending
        })
    }

    /// Waits for room: for somebody to [take](Self::take) a buffer back.
    ///
    /// # Errors
    ///
    /// When the lane accepts no more, as for [`push`](Self::push).
    pub fn room(&self) -> impl Future<Output = Result<()>> + '_ {
        poll_fn(|context| match self.shared.poll_room(&self.driver.core, context.waker()) {
            Ok(true) => Poll::Ready(Ok(())),
            Ok(false) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        })
    }

    /// Asks for everything to end early, and accepts no more. Buffers come back as the kernel lets go of them:
    /// with [`Error::Canceled`], or as usual if the request comes too late. A stream is broken if it ends
    /// within a buffer.
    pub fn cancel(&self) {
        self.shared.cancel(&self.driver.core);
    }

    /// Buffers pushed and not taken back.
    pub fn len(&self) -> usize {
        self.shared.len()
    }

    /// Whether every pushed buffer was taken back.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The most buffers at a time.
    pub fn capacity(&self) -> usize {
        self.shared.capacity()
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        if self.driver.core.is_here() {
            self.shared.close(&self.driver.core);
        }
    }
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lane")
            .field("len", &self.len())
            .field("capacity", &self.capacity())
            .finish_non_exhaustive()
    }
}
