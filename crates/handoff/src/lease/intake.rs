//! What a receive draws on: where bytes go, and so which mechanism brings them.

use std::num::NonZeroU32;
use std::rc::Rc;

use super::due::Due;
use super::pool::{Pool, PoolShared};
use super::rx_queue::RxQueue;
use super::rx_shared::RxShared;
use super::window::Window;

/// Where a receive puts bytes: a [`Pool`], an [`RxQueue`], a [`Window`], or one of the last two with a pool
/// beside it.
///
/// ```no_run
/// # async fn example(socket: &handoff::Socket, queue: handoff::RxQueue, pool: handoff::Pool) -> Result<(), Box<dyn std::error::Error>> {
/// // From the NIC's memory where bytes come there, and from the pool otherwise.
/// let mut receiver = socket.receive(queue.or(&pool))?;
/// while let Some(span) = receiver.next_span().await {
///     println!("{} bytes", span?.len());
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Intake {
    pub(crate) queue: Option<Rc<RxShared>>,
    /// The queue gives this many bytes and no more.
    pub(crate) most: Option<NonZeroU32>,
    pub(crate) window: Option<Window>,
    pub(crate) pool: Option<Rc<PoolShared>>,
}

impl RxQueue {
    /// Receives without copying, until the kernel turns out to copy: then into the pool, which costs less
    /// than copying into the queue's area.
    pub fn or(&self, pool: &Pool) -> Intake {
        Intake { queue: Some(Rc::clone(&self.shared)), ..Intake::from(pool) }
    }

    /// The next `bytes` bytes and no more: the receiver ends behind them as at the end of a stream, and later bytes
    /// stay in the socket for the next receiver. Use it for the first words of a protocol on connections that the
    /// NIC may have steered to the queue: plain receive cannot read the queue's memory.
    ///
    /// ```no_run
    /// # async fn example(socket: &handoff::Socket, queue: handoff::RxQueue) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut header = Vec::new();
    /// let mut receiver = socket.receive(queue.take(16.try_into()?))?;
    /// while let Some(span) = receiver.next_span().await {
    ///     header.extend_from_slice(&span?);
    /// }
    /// // Fewer than 16: the peer has ended the stream.
    /// println!("{} bytes", header.len());
    /// # Ok(()) }
    /// ```
    pub fn take(&self, bytes: NonZeroU32) -> Intake {
        Intake { most: Some(bytes), ..Intake::from(self) }
    }
}

impl From<&Pool> for Intake {
    fn from(pool: &Pool) -> Self {
        Self { queue: None, most: None, window: None, pool: Some(Rc::clone(&pool.shared)) }
    }
}

impl From<&RxQueue> for Intake {
    fn from(queue: &RxQueue) -> Self {
        Self { queue: Some(Rc::clone(&queue.shared)), most: None, window: None, pool: None }
    }
}

impl From<&Window> for Intake {
    fn from(window: &Window) -> Self {
        Self { queue: None, most: None, window: Some(window.clone()), pool: None }
    }
}

impl Intake {
    /// A ring names pools and queues by number, so another driver's would be mistaken for its own.
    pub(crate) fn is_of(&self, due: &Rc<Due>) -> bool {
        self.queue.as_ref().is_none_or(|queue| queue.is_of(due))
            && self.window.as_ref().is_none_or(|window| window.is_of(due))
            && self.pool.as_ref().is_none_or(|pool| pool.is_of(due))
    }

    /// Whether there is nothing but a window, which has no place for what comes in no pages.
    pub(crate) fn is_window_alone(&self) -> bool {
        self.window.is_some() && self.pool.is_none() && self.queue.is_none()
    }
}

impl std::fmt::Debug for Intake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Intake")
            .field("queue", &self.queue.is_some())
            .field("window", &self.window.is_some())
            .field("pool", &self.pool.is_some())
            .finish()
    }
}
