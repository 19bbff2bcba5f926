//! What a driver consists of: its ring, or the reason why there is none, and the sizes of its tables.

use std::io;
use std::time::Duration;

use super::Driver;
use crate::core::UNCLAIMED_LOANS;
use crate::error::{Error, Result};
use crate::lease::pending::SEND_SPANS;
use crate::reactor::Reactor;
use crate::ring::{Epoll, Io, Ring, Shape, SqPoll};

/// Whether a driver uses io_uring.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use handoff::{Driver, RingUse};
///
/// let driver = Driver::builder().ring(RingUse::Avoid).build()?;
/// assert!(driver.ring_unavailable().is_some());
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RingUse {
    /// Uses io_uring if the kernel allows it; otherwise system calls and epoll, and
    /// [`Driver::ring_unavailable`] says why.
    #[default]
    Prefer,
    /// Uses io_uring, or building the driver fails.
    Require,
    /// Never.
    Avoid,
}

/// Sizes of a driver.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let driver = handoff::Driver::builder().in_flight(1024).registered_files(64).build()?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct DriverBuilder {
    ring: RingUse,
    entries: u32,
    completions: u32,
    in_flight: usize,
    registered_buffers: u32,
    registered_files: u32,
    zero_copy_receive: bool,
    mixed_completions: bool,
    linger: Option<Duration>,
    unclaimed_loans: usize,
    pipes: usize,
    send_spans: usize,
    sq_poll: Option<SqPoll>,
}

impl Driver {
    /// Builds a driver of the default sizes, with io_uring if the kernel allows it.
    ///
    /// # Errors
    ///
    /// As [`DriverBuilder::build`].
    pub fn new() -> Result<Self> {
        Self::builder().build()
    }

    /// A driver of other sizes.
    pub fn builder() -> DriverBuilder {
        DriverBuilder::default()
    }
}

impl Default for DriverBuilder {
    fn default() -> Self {
        Self {
            ring: RingUse::default(),
            entries: 256,
            completions: 0,
            in_flight: 4096,
            registered_buffers: 64,
            registered_files: 512,
            zero_copy_receive: false,
            mixed_completions: false,
            linger: None,
            unclaimed_loans: UNCLAIMED_LOANS,
            pipes: usize::MAX,
            send_spans: SEND_SPANS,
            sq_poll: None,
        }
    }
}

impl DriverBuilder {
    /// Whether to use io_uring.
    pub fn ring(mut self, ring: RingUse) -> Self {
        self.ring = ring;
        self
    }

    /// Entries of the submission queue: the most requests per system call. Default 256, at least 2.
    pub fn entries(mut self, entries: u32) -> Self {
        // A header and its payload are submitted together.
        self.entries = entries.max(2);
        self
    }

    /// Places of the completion queue, at least: received spans, and completions in general, wait there for the next
    /// turn. Default: four times the [`entries`](Self::entries), and 8192 for
    /// [`zero_copy_receive`](Self::zero_copy_receive). Fewer than the entries are raised to that, and more than the
    /// kernel's limit are lowered, and so are those for which the kernel has no memory: they lie in one piece, and some
    /// kernels count them as locked memory of users without CAP_IPC_LOCK.
    pub fn completions(mut self, places: u32) -> Self {
        self.completions = places;
        self
    }

    /// The most operations under way at once, buffers on loan included. Default 4096. Waits for readiness
    /// ([`Readiness`](crate::Readiness)) lend nothing and do not count. Sends that nobody waits for have a budget of
    /// their own: [`unclaimed_loans`](Self::unclaimed_loans).
    pub fn in_flight(mut self, operations: usize) -> Self {
        self.in_flight = operations;
        self
    }

    /// Slots for registered buffers: one for each started GiB of a region. Default 64, at most 16384.
    pub fn registered_buffers(mut self, slots: u32) -> Self {
        self.registered_buffers = slots;
        self
    }

    /// Slots for files and sockets. Without a free slot, a file or socket is used by its descriptor.
    /// Default 512, at most the limit on open files. There are none on kernels that close late what leaves
    /// the table (up to Linux 6.12).
    pub fn registered_files(mut self, slots: u32) -> Self {
        self.registered_files = slots;
        self
    }

    /// Builds the ring for [rx queues](Driver::rx_queue): its completions have 32 bytes, to say where
    /// received bytes are, and there is room for many. Default: no.
    pub fn zero_copy_receive(mut self, wanted: bool) -> Self {
        self.zero_copy_receive = wanted;
        self
    }

    /// With [`zero_copy_receive`](Self::zero_copy_receive): only the completions of received bytes have 32
    /// bytes, where the kernel can do that (Linux 6.18). The queue then takes less of the cache if most
    /// operations are others; a received span costs some tens of instructions more. Default: no.
    pub fn mixed_completions(mut self, wanted: bool) -> Self {
        self.mixed_completions = wanted;
        self
    }

    /// How long the peer of a connection that nobody holds any more may take next to nothing (less than 1 KiB a second)
    /// of what was sent: then the connection is reset, and lent buffers are back. Default 60 s, and at most a second if a
    /// send ended midway; with 0 it is reset when its last handle goes. While you hold a connection, its end is yours:
    /// [`Socket::abort`](crate::Socket::abort). A loan of a datagram that is out for longer is counted
    /// ([`LoanStats::overdue`](crate::LoanStats::overdue)).
    pub fn linger(mut self, time: Duration) -> Self {
        self.linger = Some(time);
        self
    }

    /// The most sends that nobody waits for: their handles are gone, and their buffers are on loan, or nobody holds the
    /// connection either. Default 4096. They do not count as operations [under way](Self::in_flight), so peers that take
    /// nothing leave room for others.
    ///
    /// The peers of streams are told apart by their addresses, and each may have a quarter of this; so may each datagram
    /// socket. Where a peer has its share, or all is used up, connections that nobody holds are reset, those first that
    /// were left first; sockets that you hold copy further sends, and refuse them with [`Error::Busy`](crate::Error::Busy)
    /// if they were asked for another engine ([`Socket::set_engine`](crate::Socket::set_engine)).
    /// [`Driver::loan_stats`] has the numbers.
    pub fn unclaimed_loans(mut self, most: usize) -> Self {
        self.unclaimed_loans = most;
        self
    }

    /// The most pipes, of two descriptors each, that routes splice through at once. Routes beyond that go on by the next
    /// engine ([`Route::passed_over`](crate::Route::passed_over)), so they leave descriptors for connections and files.
    /// Default: as many as the process may have.
    pub fn pipes(mut self, most: usize) -> Self {
        self.pipes = most;
        self
    }

    /// The most received spans that other threads may have at once ([`Span::into_send`](crate::Span::into_send)). Default
    /// 1024. Their chunks are missed by the receivers here, so threads that are slow make a driver wait that may give out
    /// all of its chunks.
    pub fn send_spans(mut self, most: usize) -> Self {
        self.send_spans = most;
        self
    }

    /// Has a thread of the kernel take the requests (`IORING_SETUP_SQPOLL`): submitting them needs no call while that
    /// thread looks for them. It looks for `idle` after the last request, a millisecond at least and 49 days at most, and
    /// uses a processor meanwhile; then it sleeps, and the next submission wakes it by a call. Default: no such thread.
    ///
    /// The requests run with the credentials that the thread calling [`build`](Self::build) has by then. If it changes
    /// them later, the requests keep the old ones: build the driver behind the change.
    ///
    /// If the kernel makes no such thread, a driver of [`RingUse::Prefer`] has an ordinary ring, and
    /// [`Driver::sq_poll_unavailable`] says why; with [`RingUse::Require`] building fails. Rx queues
    /// ([`zero_copy_receive`](Self::zero_copy_receive)) and [`Driver::requests`] need an ordinary ring. Minimum kernel: that
    /// of the ring.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use handoff::Driver;
    ///
    /// let driver = Driver::builder().sq_poll(Duration::from_millis(2)).build()?;
    /// if let Some(reason) = driver.sq_poll_unavailable() {
    ///     println!("requests are submitted by calls: {reason}");
    /// }
    /// # Ok(()) }
    /// ```
    pub fn sq_poll(mut self, idle: Duration) -> Self {
        let cpu = self.sq_poll.and_then(|before| before.cpu);
        self.sq_poll = Some(SqPoll { idle, cpu });
        self
    }

    /// As [`sq_poll`](Self::sq_poll), with that thread on one processor only (`IORING_SETUP_SQ_AFF`). Take another than
    /// your own thread's: they would wait for each other.
    pub fn sq_poll_on(mut self, idle: Duration, cpu: u32) -> Self {
        self.sq_poll = Some(SqPoll { idle, cpu: Some(cpu) });
        self
    }

    /// Builds the driver for the calling thread.
    ///
    /// # Errors
    ///
    /// When a ring is required and cannot be made, or when descriptors or memory are exhausted.
    /// [`Error::Invalid`](crate::Error::Invalid) for options that exclude each other.
    pub fn build(self) -> Result<Driver> {
        if self.sq_poll.is_some() && self.ring == RingUse::Avoid {
            return Err(Error::Invalid("DriverBuilder::sq_poll needs a ring: do not avoid it"));
        }
        if self.sq_poll.is_some() && self.zero_copy_receive {
            return Err(Error::Invalid(
                "the kernel has no rx queues on a ring that it polls: leave out sq_poll or zero_copy_receive",
            ));
        }
        let mut why_not_polled = None;
        let ring = match self.ring {
            RingUse::Avoid => Err("it was not asked for".to_owned()),
            _ => self.open_ring(self.sq_poll).or_else(|error| {
                let Some(asked) = self.sq_poll else {
                    return Err(handoff_probe::why_no_ring(&error));
                };
                let reason = why_not_polled.insert(why_no_thread(asked, &error));
                match self.ring {
                    RingUse::Prefer => self
                        .open_ring(None)
                        .inspect(|_| tracing::info!(%reason, "requests are submitted by calls"))
                        .map_err(|error| handoff_probe::why_no_ring(&error)),
                    _ => Err(reason.clone()),
                }
            }),
        };
        let mut io = match ring {
            Ok(ring) => Io::of_ring(ring),
            Err(reason) if self.ring == RingUse::Require => {
                return Err(Error::NoRing { action: "this driver", reason });
            }
            Err(reason) => {
                tracing::info!(%reason, "system calls and epoll instead of io_uring");
                let epoll = Epoll::new().map_err(|error| Error::io("setting epoll up", error))?;
                Io::of_epoll(epoll, reason)
            }
        };
        io.why_not_polled = why_not_polled;
        let reactor = Reactor::new(io, self.in_flight)?;
        if let Some(time) = self.linger {
            reactor.core.linger.set(time);
        }
        reactor.core.unclaimed.set_most(self.unclaimed_loans);
        reactor.core.pipes.most.set(self.pipes);
        reactor.core.pending.most_away.set(self.send_spans);
        Ok(Driver::of(reactor))
    }

    fn open_ring(&self, sq_poll: Option<SqPoll>) -> io::Result<Ring> {
        let parked = u32::try_from(self.unclaimed_loans).unwrap_or(u32::MAX);
        let shape = match (self.zero_copy_receive, self.mixed_completions) {
            (false, _) => Shape::Narrow,
            (true, false) => Shape::Wide,
            (true, true) => Shape::Mixed,
        };
        let (sizes, files) = ((self.entries, self.completions), (self.registered_files, parked));
        Ring::new(sizes, self.registered_buffers, files, shape, sq_poll)
    }
}

/// Why the kernel makes no thread that polls.
fn why_no_thread(asked: SqPoll, error: &io::Error) -> String {
    match (error.raw_os_error(), asked.cpu) {
        (Some(libc::EINVAL), Some(cpu)) => format!(
            "the kernel's thread cannot have processor {cpu}: there is none of that number, it is offline, or it is not in \
             this process's cpuset"
        ),
        _ => format!(
            "the kernel makes no thread that polls the ring: {}",
            handoff_probe::why_no_ring(error)
        ),
    }
}
