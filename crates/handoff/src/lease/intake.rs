//! What a receive draws on: where bytes go, and so which mechanism brings them.

use std::num::NonZeroU32;
use std::rc::Rc;

use super::datagram::DATAGRAM_HEAD;
use super::pending::Pending;
use super::pool::{Pool, PoolShared};
use super::rx_queue::RxQueue;
use super::rx_shared::RxShared;
use super::window::Window;

/// Where a receive puts bytes: a [`Pool`], an [`RxQueue`], or both.
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
    /// The pool keeps the senders of datagrams.
    pub(crate) with_senders: bool,
}

/// A [`Window`] to receive by, or a window with a [`Pool`] beside it.
///
/// ```no_run
/// # async fn example(socket: &handoff::Socket, window: handoff::Window, pool: handoff::Pool) -> Result<(), Box<dyn std::error::Error>> {
/// // By mapping, unless nearly nothing comes in whole pages.
/// let mut receiver = socket.receive_mapped(window.or(&pool))?;
/// while let Some(span) = receiver.next_span().await {
///     println!("{} bytes", span?.len());
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct MappedIntake(pub(crate) Intake);

impl MappedIntake {
    /// For peers that leave alone what they have sent: their bytes come as [`Span`](super::Span)s, which give slices.
    ///
    /// # Safety
    ///
    /// As long as a span is there, no process may write to the pages that the bytes were sent in. A page that comes from
    /// a network card is only ours. Over loopback and veth, also between containers, the kernel maps the page that the
    /// sender gave it by vmsplice(2) or splice(2), and the sender may write to it later.
    pub unsafe fn trust_peers(self) -> Intake {
        self.0
    }
}

impl From<&Window> for MappedIntake {
    fn from(window: &Window) -> Self {
        Self(Intake { window: Some(window.clone()), ..Intake::nothing() })
    }
}

impl Window {
    /// Receives by mapping, unless nearly nothing comes in whole pages: then into the pool, since trying
    /// costs more than copying alone.
    pub fn or(&self, pool: &Pool) -> MappedIntake {
        MappedIntake(Intake { window: Some(self.clone()), ..Intake::from(pool) })
    }
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

impl Pool {
    /// For UDP sockets: the pool keeps the sender of each datagram, for which the first [`DATAGRAM_HEAD`] bytes of each
    /// chunk are set aside. So a chunk has room for a datagram of that many bytes less.
    /// [`Span::datagram`](crate::Span::datagram) tells who the sender is, and whether the datagram was cut.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::net::UdpSocket;
    ///
    /// let driver = handoff::Driver::new()?;
    /// let pool = driver.pool(handoff::Region::anonymous(1 << 16)?, 2048)?;
    /// let (here, sender) = (UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?);
    /// sender.send_to(b"hello", here.local_addr()?)?;
    ///
    /// let mut receiver = driver.socket(here)?.receive(pool.with_senders())?;
    /// let span = driver.block_on(receiver.next_span())?.expect("datagrams have no end")?;
    /// assert_eq!(&span[..], b"hello");
    /// assert_eq!(span.datagram().expect("it was kept").sender, sender.local_addr()?);
    /// # Ok(()) }
    /// ```
    pub fn with_senders(&self) -> Intake {
        Intake { with_senders: true, ..Intake::from(self) }
    }
}

impl From<&Pool> for Intake {
    fn from(pool: &Pool) -> Self {
        Self { pool: Some(Rc::clone(&pool.shared)), ..Self::nothing() }
    }
}

impl From<&RxQueue> for Intake {
    fn from(queue: &RxQueue) -> Self {
        Self::of_queue(&queue.shared)
    }
}

impl Intake {
    /// Draws on nothing, until a maker puts something in.
    fn nothing() -> Self {
        Self { queue: None, most: None, window: None, pool: None, with_senders: false }
    }

    pub(crate) fn of_queue(queue: &Rc<RxShared>) -> Self {
        Self { queue: Some(Rc::clone(queue)), ..Self::nothing() }
    }

    /// Why a socket of this kind cannot receive by it, if so.
    pub(crate) fn unfit(&self, stream: bool, udp: bool) -> Option<&'static str> {
        if !stream && self.window.is_some() && self.pool.is_none() && self.queue.is_none() {
            // It has no place for what comes in no pages.
            return Some("a window maps the pages of TCP streams: receive datagrams into a pool");
        }
        if !self.with_senders {
            return None;
        }
        if !udp {
            return Some("only UDP sockets tell of senders: receive into the pool itself");
        }
        let too_small = self.pool.as_ref().is_some_and(|pool| pool.chunk() <= DATAGRAM_HEAD);
        too_small.then_some(
            "the chunks have no room for a datagram behind its sender, which takes 64 bytes \
             (DATAGRAM_HEAD): take larger ones",
        )
    }

    /// A ring names pools and queues by number, so another driver's would be mistaken for its own.
    pub(crate) fn is_of(&self, pending: &Rc<Pending>) -> bool {
        self.queue.as_ref().is_none_or(|queue| queue.is_of(pending))
            && self.window.as_ref().is_none_or(|window| window.is_of(pending))
            && self.pool.as_ref().is_none_or(|pool| pool.is_of(pending))
    }
}

impl std::fmt::Debug for Intake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Intake")
            .field("queue", &self.queue.is_some())
            .field("window", &self.window.is_some())
            .field("pool", &self.pool.is_some())
            .field("with_senders", &self.with_senders)
            .finish()
    }
}
