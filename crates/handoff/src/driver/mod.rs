//! The driver: one thread's ring, or what stands in for it, and everything under way on it.
//!
//! Contracts:
//! - a driver belongs to one thread, by type;
//! - nothing blocks but [`Driver::turn`] when told to wait, and [`Driver::block_on`];
//! - completions are told to operations outside of any borrow that those could need;
//! - when the last handle goes, the ring is closed before the memory that it may use.

mod turn;
pub(crate) mod waits;

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef};

use crate::engine::{Engine, msg_zerocopy};
use crate::error::{Error, Result};
use crate::executor::{self, Unpark};
use crate::file::File;
use crate::inflight::{Inflight, Key};
use crate::lease::{Backing, Lend, Memory};
use crate::probe;
use crate::readiness::Epoll;
use crate::ring::{Ring, Shape, Until};
use crate::sink::group::{Group, Groups};
use crate::socket::{Socket, SocketShared};
use crate::source::kernel::{Lender, LenderShared};
use crate::source::memory::Region;
use crate::source::pool::Pool;
use crate::source::request::{QueueShared, RequestQueue, Served};
use crate::source::rx_queue::{RxBinding, RxQueue, RxShared};
use crate::source::window::Window;
use waits::Later;

/// A handle on a thread's ring. Cloning it gives another handle on the same.
#[derive(Clone)]
pub struct Driver {
    pub(crate) inner: Rc<Inner>,
}

/// What [`Driver::turn`] waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Nothing: it submits, and takes what is there. While there is something to submit, what the
    /// kernel does later (returns, requests that had to wait) may be told up to 32 requests later.
    No,
    /// Something to happen, if the kernel has anything of ours and nothing has happened since the
    /// last turn: a send may be over as soon as it is accepted.
    Event,
    /// The same, for at most so long.
    AtMost(Duration),
}

/// Whether a driver uses io_uring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RingUse {
    /// When the kernel lets it; else system calls and epoll, and
    /// [`Driver::ring_unavailable`] says why.
    #[default]
    Prefer,
    /// Or building the driver fails.
    Require,
    /// Never.
    Avoid,
}

/// Sizes of a driver.
#[derive(Clone, Debug)]
pub struct DriverBuilder {
    ring: RingUse,
    entries: u32,
    in_flight: usize,
    registered_buffers: u32,
    registered_files: u32,
    zero_copy_receive: bool,
    mixed_completions: bool,
}

impl Default for DriverBuilder {
    fn default() -> Self {
        Self {
            ring: RingUse::default(),
            entries: 256,
            in_flight: 4096,
            registered_buffers: 64,
            registered_files: 512,
            zero_copy_receive: false,
            mixed_completions: false,
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

    /// The most operations under way at once, buffers on loan included. Default 4096.
    pub fn in_flight(mut self, operations: usize) -> Self {
        self.in_flight = operations;
        self
    }

    /// Slots for registered buffers, one for each GiB of a region begun. Default 64; no more than
    /// 16384 are made.
    pub fn registered_buffers(mut self, slots: u32) -> Self {
        self.registered_buffers = slots;
        self
    }

    /// Slots for files and sockets; what finds none is used by its descriptor. Default 512; no more
    /// than the limit on open files are made, and none on a kernel that would close late what leaves
    /// the table (up to Linux 6.12).
    pub fn registered_files(mut self, slots: u32) -> Self {
        self.registered_files = slots;
        self
    }

    /// Builds the ring for [rx queues](Driver::rx_queue): completions are of 32 bytes, to tell where
    /// received bytes are, and there is room for many. Default: no.
    pub fn zero_copy_receive(mut self, wanted: bool) -> Self {
        self.zero_copy_receive = wanted;
        self
    }

    /// With [`zero_copy_receive`](Self::zero_copy_receive), has the kernel make only those completions
    /// of 32 bytes that tell of received bytes, where it can (Linux 6.18): the queue takes less of the
    /// cache where most operations are others, and a received span some tens of instructions more.
    /// Default: no.
    pub fn mixed_completions(mut self, wanted: bool) -> Self {
        self.mixed_completions = wanted;
        self
    }

    /// Builds the driver for the calling thread.
    ///
    /// # Errors
    ///
    /// When a ring is required and not to be had, or descriptors or memory are exhausted.
    pub fn build(self) -> Result<Driver> {
        let ring = match self.ring {
            RingUse::Avoid => Err("it was not asked for".to_owned()),
            _ => Ring::new(
                self.entries,
                self.registered_buffers,
                self.registered_files,
                match (self.zero_copy_receive, self.mixed_completions) {
                    (false, _) => Shape::Narrow,
                    (true, false) => Shape::Wide,
                    (true, true) => Shape::Mixed,
                },
            )
            .map_err(|error| probe::why_no_ring(&error)),
        };
        let (backend, no_ring) = match ring {
            Ok(ring) => (Backend::Ring(RefCell::new(ring)), None),
            Err(reason) if self.ring == RingUse::Require => {
                return Err(Error::NoRing { action: "this driver", reason });
            }
            Err(reason) => {
                tracing::info!(%reason, "system calls and epoll instead of io_uring");
                let epoll = Epoll::new().map_err(|error| Error::io("setting epoll up", error))?;
                (Backend::Readiness(RefCell::new(epoll)), Some(reason))
            }
        };
        let inner = Inner {
            backend,
            no_ring,
            inflight: RefCell::new(Inflight::new(self.in_flight)),
            groups: RefCell::default(),
            marks: RefCell::default(),
            spare_marks: RefCell::default(),
            later: RefCell::default(),
            registered: RefCell::default(),
            to_clear: RefCell::default(),
            clearing: RefCell::default(),
            rx_queues: RefCell::default(),
            request_queues: RefCell::default(),
            answers: RefCell::default(),
            turns: Cell::new(0),
            news: Cell::new(false),
            next_group: Cell::new(0),
            closing: Cell::new(false),
            attention: RefCell::new(None),
            unpark: Unpark::new()?,
        };
        inner.watch_unpark()?;
        Ok(Driver { inner: Rc::new(inner) })
    }
}

#[allow(clippy::large_enum_variant, reason = "there is one for each driver")]
pub(crate) enum Backend {
    Ring(RefCell<Ring>),
    Readiness(RefCell<Epoll>),
}

/// Something to start when the driver next submits.
enum Mark {
    /// Its sends keep the socket; when the last was cancelled, a mark must not.
    Stream(Weak<SocketShared>),
    Receive(Key),
    /// What was given back to an rx queue is to be published.
    Refill(Rc<RxShared>),
}

pub(crate) struct Inner {
    // First, so that the ring is closed before anything else goes.
    pub(crate) backend: Backend,
    no_ring: Option<String>,
    pub(crate) inflight: RefCell<Inflight>,
    pub(crate) groups: RefCell<Groups>,
    marks: RefCell<Vec<Mark>>,
    spare_marks: RefCell<Vec<Mark>>,
    later: RefCell<Vec<Later>>,
    /// Memory in the ring's table of buffers.
    registered: RefCell<Vec<Arc<Backing>>>,
    /// Slots with a buffer of the kernel that nobody needs any more, and the devices to clear them.
    pub(crate) to_clear: RefCell<Vec<(Rc<LenderShared>, u16)>>,
    /// The devices that clear slots, by slot.
    pub(crate) clearing: RefCell<Vec<Option<Rc<LenderShared>>>>,
    /// What the ring is bound to until it is closed.
    pub(crate) rx_queues: RefCell<Vec<Rc<RxShared>>>,
    /// Queues of block devices whose requests the ring takes until it is closed.
    pub(crate) request_queues: RefCell<Vec<Served>>,
    /// Results of block requests whose memory nobody uses any more, by their tags.
    pub(crate) answers: RefCell<Vec<(Rc<QueueShared>, u16, i32)>>,
    turns: Cell<u32>,
    /// A handle has something new to take since the owner of the loop had a turn.
    pub(crate) news: Cell<bool>,
    next_group: Cell<u16>,
    /// The driver goes: nothing is waited for any more.
    pub(crate) closing: Cell<bool>,
    /// Whoever turns the driver from a foreign runtime.
    attention: RefCell<Option<Waker>>,
    pub(crate) unpark: Arc<Unpark>,
}

impl Driver {
    /// A driver of the default sizes, with io_uring where the kernel lets it.
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

    /// Why there is no ring, if there is none.
    pub fn ring_unavailable(&self) -> Option<&str> {
        self.inner.no_ring.as_deref()
    }

    /// Attaches a socket. It is made blocking: its waits are the driver's.
    ///
    /// # Errors
    ///
    /// When the descriptor is not a socket.
    pub fn socket(&self, socket: impl Into<OwnedFd>) -> Result<Socket> {
        Socket::attach(Rc::clone(&self.inner), socket.into())
    }

    /// Attaches a file, pipe or block device.
    ///
    /// # Errors
    ///
    /// When the kernel does not tell its flags.
    pub fn file(&self, file: impl Into<OwnedFd>) -> Result<File> {
        File::attach(Rc::clone(&self.inner), file.into())
    }

    /// Registers a [`Region`] or [`SharedRegion`](crate::SharedRegion) with the ring: its pages are
    /// pinned once instead of at each send. The memory is kept until it is
    /// [unregistered](Self::unregister), or the driver goes.
    ///
    /// # Errors
    ///
    /// [`Error::Memlock`] at the limit; [`Error::NoRing`] without a ring. The region serves
    /// unregistered in either case.
    pub fn register(&self, region: &impl Memory) -> Result<()> {
        self.inner.register(region.backing())
    }

    /// Takes a region out of the ring's table. Operations under way are not disturbed.
    ///
    /// # Errors
    ///
    /// When the region is not registered with this driver.
    pub fn unregister(&self, region: &impl Memory) -> Result<()> {
        self.inner.unregister(region.backing())
    }

    /// Makes a region a receive pool of chunks of `chunk` bytes.
    ///
    /// # Errors
    ///
    /// When buffers were cut from the region, or it has no room for a chunk.
    pub fn pool(&self, region: Region, chunk: usize) -> Result<Pool> {
        Pool::new(&self.inner, region, chunk)
    }

    /// Reserves address space for received pages: `places` of `place` bytes each, whole pages. A span
    /// is at most a place.
    ///
    /// # Errors
    ///
    /// When the sizes can't be, or the kernel can't map TCP sockets.
    pub fn window(&self, places: usize, place: usize) -> Result<Window> {
        Window::new(&self.inner, places, place)
    }

    /// Binds an rx queue of a NIC, with the region as the memory that it receives into. It stays bound
    /// until the driver goes. See [`RxQueue`] for what NIC, kernel and user need.
    ///
    /// # Errors
    ///
    /// [`Error::EngineUnavailable`] with the reason and what to do; [`Error::Memlock`] at the limit on
    /// locked memory; when the driver was not built for it, or buffers were cut from the region.
    pub fn rx_queue(&self, region: Region, binding: &RxBinding) -> Result<RxQueue> {
        RxQueue::bind(&self.inner, &region, binding)
    }

    /// Opens the device that lends buffers of the kernel: of files, and of what sockets received. See
    /// [`Lender`] for what kernel and user need.
    ///
    /// # Errors
    ///
    /// [`Error::EngineUnavailable`] with the reason and what to do; [`Error::NoRing`] without a ring.
    pub fn lender(&self) -> Result<Lender> {
        Lender::open(&self.inner)
    }

    /// Takes the requests of a queue of a block device, from its `/dev/ublkcN`; the device must have been
    /// made for registered buffers and such a depth. See [`Request`](crate::Request) for what becomes
    /// of them.
    ///
    /// # Errors
    ///
    /// [`Error::NoRing`] without a ring; when the ring's table of buffers has no room for the depth; what
    /// the kernel says of the descriptor.
    pub fn requests(
        &self,
        device: impl Into<OwnedFd>,
        queue: u16,
        depth: u16,
    ) -> Result<RequestQueue> {
        RequestQueue::open(&self.inner, device.into(), queue, depth)
    }

    /// Opens a group of sends that share one return.
    pub fn group<B: Lend>(&self) -> Group<B> {
        Group::open(Rc::clone(&self.inner))
    }

    /// Submits what was accepted, waits as told, and tells operations what became of them; the
    /// number of events. For a thread that owns its loop.
    ///
    /// # Errors
    ///
    /// When the kernel refuses to be entered. A signal is no error: the call returns early.
    pub fn turn(&self, wait: Wait) -> Result<usize> {
        let waits = || {
            // What is started may be over at once; with nothing to come, a wait would have no end.
            self.inner.start_marked();
            let to_come = || {
                self.inner.inflight.borrow().kernel_holds_any()
                    || self.inner.request_queues.borrow().iter().any(|it| it.queue.is_awaited())
            };
            !self.inner.news.get() && to_come()
        };
        let events = self.inner.turn(match wait {
            Wait::No => Until::Soon,
            Wait::Event if waits() => Until::One,
            Wait::AtMost(time) if waits() => Until::OneOr(time),
            _ => Until::Now,
        })?;
        self.inner.news.set(false);
        Ok(events)
    }

    /// Operations under way, buffers on loan and unclaimed results included.
    pub fn in_flight(&self) -> usize {
        self.inner.inflight.borrow().len()
    }

    /// Runs a future to its end, turning the driver meanwhile.
    ///
    /// # Errors
    ///
    /// When the kernel refuses to be entered; the future is dropped then.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> Result<T> {
        executor::block_on(&self.inner, future)
    }
}

impl AsFd for Driver {
    /// The descriptor that is readable when there is something to take.
    fn as_fd(&self) -> BorrowedFd<'_> {
        let raw = match &self.inner.backend {
            Backend::Ring(ring) => ring.borrow_mut().event(),
            Backend::Readiness(epoll) => epoll.borrow().as_fd().as_raw_fd(),
        };
        // SAFETY: the descriptor is open as long as the driver, which is borrowed.
        unsafe { BorrowedFd::borrow_raw(raw) }
    }
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver")
            .field("ring_unavailable", &self.inner.no_ring)
            .field("in_flight", &self.in_flight())
            .finish()
    }
}

impl Inner {
    fn ring(&self) -> Option<&RefCell<Ring>> {
        match &self.backend {
            Backend::Ring(ring) => Some(ring),
            Backend::Readiness(_) => None,
        }
    }

    /// What tells the ring from others where buffers are registered; 0 without a ring.
    pub(crate) fn ring_id(&self) -> u32 {
        self.ring().map_or(0, |ring| ring.borrow().id)
    }

    /// The ring's descriptor; -1, which names none, without a ring.
    pub(crate) fn ring_raw(&self) -> RawFd {
        self.ring().map_or(-1, |ring| ring.borrow().io.as_raw_fd())
    }

    pub(crate) fn no_ring(&self, action: &'static str) -> Error {
        Error::NoRing { action, reason: self.no_ring.clone().unwrap_or_default() }
    }

    fn register(&self, backing: &Arc<Backing>) -> Result<()> {
        let ring = self.ring().ok_or_else(|| self.no_ring("registering buffers"))?;
        ring.borrow_mut().register(backing)?;
        self.registered.borrow_mut().push(Arc::clone(backing));
        Ok(())
    }

    fn unregister(&self, backing: &Arc<Backing>) -> Result<()> {
        let ring = self.ring().ok_or_else(|| self.no_ring("clearing registered buffers"))?;
        ring.borrow_mut().unregister(backing)?;
        self.registered.borrow_mut().retain(|registered| !Arc::ptr_eq(registered, backing));
        Ok(())
    }

    /// A slot for a buffer, empty.
    pub(crate) fn take_buffer(&self) -> Option<u16> {
        self.ring()?.borrow_mut().buffers.take(1).map(|slot| slot as u16)
    }

    /// So many slots for buffers, one after the other.
    pub(crate) fn take_buffers(&self, run: u16) -> Option<u16> {
        self.ring()?.borrow_mut().buffers.take(run.into()).map(|slot| slot as u16)
    }

    /// A slot is empty again.
    pub(crate) fn release_buffer(&self, slot: u16) {
        if let Some(ring) = self.ring() {
            ring.borrow_mut().buffers.release(slot.into(), 1);
        }
    }

    pub(crate) fn install(&self, fd: RawFd) -> Option<u32> {
        self.ring()?.borrow_mut().install(fd)
    }

    pub(crate) fn uninstall(&self, slot: u32) {
        if let Some(ring) = self.ring() {
            ring.borrow_mut().uninstall(slot);
        }
    }

    pub(crate) fn next_buffer_group(&self) -> u16 {
        self.next_group.replace(self.next_group.get().wrapping_add(1))
    }

    /// The engine that sends without copying on such a socket here.
    pub(crate) fn zero_copy_engine(&self, fd: &OwnedFd) -> Result<Engine, String> {
        has_zero_copy(fd)?;
        match self.backend {
            Backend::Ring(_) => Ok(Engine::UringZc),
            Backend::Readiness(_) => msg_zerocopy::enable(fd).map(|()| Engine::MsgZerocopy),
        }
    }

    pub(crate) fn check_uring_zc(&self, fd: &OwnedFd) -> Result<(), String> {
        match &self.no_ring {
            Some(reason) => Err(format!("there is no ring: {reason}")),
            None => has_zero_copy(fd),
        }
    }

    /// Turns so far; tells what happened within one.
    pub(crate) fn turns(&self) -> u32 {
        self.turns.get()
    }

    /// Whether something waits to be started.
    fn has_marks(&self) -> bool {
        !self.marks.borrow().is_empty()
            || !self.to_clear.borrow().is_empty()
            || !self.answers.borrow().is_empty()
    }

    /// Whether nothing waits to be submitted.
    pub(crate) fn is_quiet(&self) -> bool {
        !self.has_marks() && self.ring().is_none_or(|ring| ring.borrow_mut().unsubmitted() == 0)
    }

    /// CPU nanoseconds of this thread that `act` and the submission of what it queued take.
    pub(crate) fn time(&self, act: impl FnOnce()) -> Option<u64> {
        let start = thread_time();
        act();
        if !self.is_quiet() {
            self.turn(Until::Now).ok()?;
        }
        Some(thread_time().saturating_sub(start))
    }

    /// Has a stream's sends started with the next submission.
    pub(crate) fn mark(&self, socket: Rc<SocketShared>) {
        self.marks.borrow_mut().push(Mark::Stream(Rc::downgrade(&socket)));
        self.attend();
    }

    /// Has a receive started with the next submission.
    pub(crate) fn mark_receive(&self, key: Key) {
        self.marks.borrow_mut().push(Mark::Receive(key));
        self.attend();
    }

    /// Has what was given back to an rx queue published with the next submission.
    pub(crate) fn mark_refill(&self, queue: &Rc<RxShared>) {
        self.marks.borrow_mut().push(Mark::Refill(Rc::clone(queue)));
        self.attend();
    }

    /// Has a slot cleared with the next submission, unless a lend clears it to have it itself.
    pub(crate) fn mark_clear(&self, lender: &Rc<LenderShared>, slot: u16) {
        self.to_clear.borrow_mut().push((Rc::clone(lender), slot));
        self.attend();
    }

    /// Has the result of a block request given with the next submission.
    pub(crate) fn mark_answer(&self, queue: &Rc<QueueShared>, tag: u16, result: i32) {
        self.answers.borrow_mut().push((Rc::clone(queue), tag, result));
        self.attend();
    }

    /// Tells a foreign runtime that there is something to submit.
    pub(crate) fn attend(&self) {
        let waker = self.attention.borrow_mut().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn set_attention(&self, waker: &Waker) {
        let before = self.attention.borrow_mut().replace(waker.clone());
        drop(before);
    }
}

fn has_zero_copy(fd: &OwnedFd) -> Result<(), String> {
    let socket = SockRef::from(fd);
    let (domain, protocol) = (socket.domain().ok(), socket.protocol().ok().flatten());
    let inet = matches!(domain, Some(Domain::IPV4 | Domain::IPV6));
    if inet && matches!(protocol, Some(Protocol::TCP | Protocol::UDP)) {
        Ok(())
    } else {
        Err("the kernel sends without copying on TCP and UDP sockets only".to_owned())
    }
}

fn thread_time() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
