//! What all handles on a driver share: the ring, what is under way on it, and what is to be started.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::Waker;

use socket2::{Domain, Protocol, SockRef};

use super::waits::Later;
use crate::engine::Engine;
use crate::engine::lane::Lanes;
use crate::error::{Error, Result};
use crate::executor::Unpark;
use crate::inflight::{Inflight, Key};
use crate::lease::Backing;
use crate::readiness::Epoll;
use crate::ring::{Ring, Until};
use crate::sink::group::Groups;
use crate::socket::SocketShared;
use crate::source::kernel::LenderShared;
use crate::source::request::{QueueShared, Served};
use crate::source::rx_queue::RxShared;

#[allow(clippy::large_enum_variant, reason = "there is one for each driver")]
pub(crate) enum Backend {
    Ring(RefCell<Ring>),
    Readiness(RefCell<Epoll>),
}

/// Something to start when the driver next submits.
pub(super) enum Mark {
    /// Its sends keep the socket; when the last was cancelled, a mark must not.
    Stream(Weak<SocketShared>),
    Receive(Key),
    /// What was given back to an rx queue is to be published.
    Refill(Rc<RxShared>),
}

pub(crate) struct Inner {
    // First, so that the ring is closed before anything else goes.
    pub(crate) backend: Backend,
    pub(super) no_ring: Option<String>,
    pub(crate) inflight: RefCell<Inflight>,
    pub(crate) lanes: Lanes,
    pub(crate) groups: RefCell<Groups>,
    pub(super) marks: RefCell<Vec<Mark>>,
    pub(super) spare_marks: RefCell<Vec<Mark>>,
    pub(super) later: RefCell<Vec<Later>>,
    /// Memory in the ring's table of buffers.
    pub(super) registered: RefCell<Vec<Arc<Backing>>>,
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
    pub(super) turns: Cell<u32>,
    /// Requests of chains that the ring has, each but the first started by the end of another.
    pub(crate) in_chains: Cell<u32>,
    /// A handle has something new to take since the owner of the loop had a turn.
    pub(crate) news: Cell<bool>,
    next_group: Cell<u16>,
    /// The driver goes: nothing is waited for any more.
    pub(crate) closing: Cell<bool>,
    /// The driver tells operations what became of them, and nobody is woken before it is done.
    pub(super) telling: Cell<bool>,
    /// Wakers are called.
    pub(super) waking: Cell<bool>,
    /// Who is to be woken then.
    pub(super) wakes: RefCell<VecDeque<Waker>>,
    /// Somebody turns the driver, or has said that he will.
    driven: Cell<bool>,
    /// The last [`Driver`](super::Driver) is gone.
    pub(crate) gone: Cell<bool>,
    /// Whoever turns the driver from a foreign runtime.
    attention: RefCell<Option<Waker>>,
    pub(crate) unpark: Arc<Unpark>,
}

impl Inner {
    /// Nothing is under way yet, and of operations there will be so many at most.
    pub(super) fn new(backend: Backend, no_ring: Option<String>, in_flight: usize) -> Result<Self> {
        let inner = Self {
            backend,
            no_ring,
            inflight: RefCell::new(Inflight::new(in_flight)),
            lanes: Lanes::default(),
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
            in_chains: Cell::new(0),
            news: Cell::new(false),
            next_group: Cell::new(0),
            closing: Cell::new(false),
            telling: Cell::new(false),
            waking: Cell::new(false),
            wakes: RefCell::default(),
            driven: Cell::new(false),
            gone: Cell::new(false),
            attention: RefCell::new(None),
            unpark: Unpark::new()?,
        };
        inner.watch_unpark()?;
        Ok(inner)
    }

    pub(super) fn ring(&self) -> Option<&RefCell<Ring>> {
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

    /// A descriptor of its own for the ring, which keeps it open; none without a ring.
    pub(crate) fn ring_descriptor(&self) -> std::io::Result<Option<OwnedFd>> {
        let Some(ring) = self.ring() else { return Ok(None) };
        let ring = ring.borrow();
        // SAFETY: the descriptor is the ring's, which is open.
        let fd = unsafe { BorrowedFd::borrow_raw(ring.io.as_raw_fd()) };
        fd.try_clone_to_owned().map(Some)
    }

    pub(crate) fn no_ring(&self, action: &'static str) -> Error {
        Error::NoRing { action, reason: self.no_ring.clone().unwrap_or_default() }
    }

    pub(super) fn register(&self, backing: &Arc<Backing>) -> Result<()> {
        let ring = self.ring().ok_or_else(|| self.no_ring("registering buffers"))?;
        ring.borrow_mut().register(backing)?;
        self.registered.borrow_mut().push(Arc::clone(backing));
        Ok(())
    }

    pub(super) fn unregister(&self, backing: &Arc<Backing>) -> Result<()> {
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
            Backend::Readiness(_) => Ok(Engine::MsgZerocopy),
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
    pub(super) fn has_marks(&self) -> bool {
        !self.marks.borrow().is_empty()
            || self.lanes.has_marks()
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

    /// Whether the kernel may still use anything that is lent.
    pub(crate) fn kernel_holds_any(&self) -> bool {
        self.lanes.held.get() > 0 || self.inflight.borrow().kernel_holds_any()
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

    /// Somebody is about to turn the driver.
    #[inline]
    pub(crate) fn is_driven(&self) {
        self.driven.set(true);
    }

    /// Says whether anything can be started.
    #[inline]
    pub(crate) fn check_room(&self) -> Result<()> {
        if self.gone.get() {
            return Err(Error::DriverGone);
        }
        self.inflight.borrow().check_room()
    }

    /// Called by futures that are about to wait, which nobody ends if nobody turns the driver.
    ///
    /// # Errors
    ///
    /// When nobody can.
    #[inline]
    pub(crate) fn check_driven(&self) -> Result<()> {
        if self.gone.get() {
            return Err(Error::DriverGone);
        }
        if !self.driven.get() {
            self.warn_of_no_turns();
        }
        Ok(())
    }

    #[cold]
    fn warn_of_no_turns(&self) {
        self.driven.set(true);
        tracing::warn!(
            "a future waits for a driver that nobody turns yet, and without turns it waits for ever: run it \
             by Driver::block_on or an Executor, spawn handoff::tokio::drive, or call Driver::turn"
        );
    }

    /// As [`check_driven`](Self::check_driven) for a future of a lent buffer, which can't end without it.
    ///
    /// # Panics
    ///
    /// When the driver is gone and the kernel still has the buffer.
    #[inline]
    pub(crate) fn expect_driven(&self) {
        if let Err(error) = self.check_driven() {
            panic!("a lent buffer did not come back: {error}");
        }
    }

    /// Tells a foreign runtime that there is something to submit.
    #[inline]
    pub(crate) fn attend(&self) {
        let mut attention = self.attention.borrow_mut();
        if attention.is_some() {
            let waker = attention.take();
            drop(attention);
            self.wake(waker);
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
