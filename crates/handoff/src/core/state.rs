//! The core: the state of a driver that all of its operations share.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::{Arc, Weak as WeakArc};
use std::time::Duration;

use super::budget::Budget;
use super::deadlines::Deadlines;
use super::lanes::Lanes;
use super::left::{LINGER, Lingering};
use super::pipes::Pipes;
use crate::error::{Error, Result};
use crate::lease::getbuf_device::GetBufShared;
use crate::lease::request_queue::Served;
use crate::lease::rx_shared::RxShared;
use crate::lease::{Pending, Wakes};
use crate::memory::{Backing, Departed, Pinning};
use crate::op::group::Groups;
use crate::op::lane::LaneShared;
use crate::op::{Records, SocketShared};
use crate::ring::{Io, Unpark, let_go_of_kept};

pub(crate) struct Core {
    // First, so that the ring is closed before anything else goes.
    pub(crate) io: Rc<Io>,
    pub(crate) pending: Rc<Pending>,
    pub(crate) records: RefCell<Records>,
    pub(crate) lanes: Lanes,
    pub(crate) groups: RefCell<Groups>,
    /// Streams whose sends start with the next submission. A send keeps its socket open; an entry here must
    /// not keep it open after the last send is cancelled.
    streams: RefCell<Vec<Weak<SocketShared>>>,
    spare_streams: RefCell<Vec<Weak<SocketShared>>>,
    pub(crate) deadlines: Deadlines,
    /// How long a connection that nobody has may take next to nothing.
    pub(crate) linger: Cell<Duration>,
    /// The same for the kernel, when the driver goes.
    pub(super) linger_millis: Cell<i32>,
    /// Looks at such connections that the kernel is to answer, by number.
    pub(super) looks: RefCell<Vec<Option<Lingering>>>,
    /// Deadlines that nobody waits for.
    pub(super) in_background: Cell<usize>,
    /// Sends that nobody waits for.
    pub(crate) unclaimed: Budget,
    /// Memory in the ring's table of buffers.
    registered: RefCell<Vec<WeakArc<Backing>>>,
    /// Such memory that is gone.
    pub(crate) departed: Arc<Departed>,
    /// The devices that clear slots, by slot.
    pub(crate) clearing: RefCell<Vec<Option<Rc<GetBufShared>>>>,
    /// Rx queues that are bound to the ring until it closes, by number.
    pub(crate) rx_queues: RefCell<Vec<Rc<RxShared>>>,
    /// Queues of block devices whose requests the ring takes until it closes.
    pub(crate) request_queues: RefCell<Vec<Served>>,
    /// The device that lends buffers of the kernel, while anybody has it open.
    #[cfg(feature = "getbuf")]
    pub(crate) getbuf: RefCell<Weak<GetBufShared>>,
    /// Why there is no such device for this driver, as far as it has looked.
    #[cfg(feature = "getbuf")]
    pub(crate) no_getbuf: RefCell<Option<String>>,
    pub(crate) pipes: Pipes,
    pub(crate) turns: Cell<u32>,
    /// Futures that were ready when polled, since the last turn.
    pub(crate) at_once: Cell<u32>,
    /// Requests in chains that the ring has. The end of one request starts the next.
    pub(crate) in_chains: Cell<u32>,
    /// A handle has had something new to take since the loop's owner last had a turn.
    pub(crate) news: Cell<bool>,
    /// Somebody turns the driver, or has announced it.
    driven: Cell<bool>,
    pub(crate) unpark: Arc<Unpark>,
}

impl Core {
    /// Starts empty, with room for so many operations.
    pub(crate) fn new(io: Io, in_flight: usize) -> Result<Self> {
        let unpark = Unpark::new()?;
        let end_wait = || {
            let unpark = Arc::clone(&unpark);
            Box::new(move || unpark.signal())
        };
        let departed = Departed::new(let_go_of_kept, end_wait());
        let pending = Rc::new(Pending::new(end_wait()));
        Ok(Self {
            io: Rc::new(io),
            pending,
            records: RefCell::new(Records::new(in_flight)),
            lanes: Lanes::default(),
            groups: RefCell::default(),
            streams: RefCell::default(),
            spare_streams: RefCell::default(),
            deadlines: Deadlines::default(),
            linger: Cell::new(LINGER),
            linger_millis: Cell::new(0),
            looks: RefCell::default(),
            in_background: Cell::new(0),
            unclaimed: Budget::default(),
            registered: RefCell::default(),
            departed,
            clearing: RefCell::default(),
            rx_queues: RefCell::default(),
            request_queues: RefCell::default(),
            #[cfg(feature = "getbuf")]
            getbuf: RefCell::default(),
            #[cfg(feature = "getbuf")]
            no_getbuf: RefCell::default(),
            pipes: Pipes::default(),
            turns: Cell::new(0),
            at_once: Cell::new(0),
            in_chains: Cell::new(0),
            news: Cell::new(false),
            driven: Cell::new(false),
            unpark,
        })
    }

    pub(crate) fn register(&self, backing: &Arc<Backing>) -> Result<Pinning> {
        let ring = self.io.ring().ok_or_else(|| self.io.no_ring("registering buffers"))?;
        self.clear_departed();
        let pinning = ring.borrow_mut().register(backing, &self.departed)?;
        let mut registered = self.registered.borrow_mut();
        registered.retain(|memory| memory.strong_count() > 0);
        registered.push(Arc::downgrade(backing));
        Ok(pinning)
    }

    /// Clears the slots of memory that is gone.
    #[cold]
    pub(crate) fn clear_departed(&self) {
        let Some(ring) = self.io.ring() else { return };
        for slots in self.departed.take() {
            ring.borrow_mut().clear_departed(slots);
        }
    }

    pub(crate) fn unregister(&self, backing: &Arc<Backing>) -> Result<()> {
        let ring = self.io.ring().ok_or_else(|| self.io.no_ring("clearing registered buffers"))?;
        ring.borrow_mut().unregister(backing)?;
        let is_other = |memory: &WeakArc<Backing>| !std::ptr::eq(memory.as_ptr(), &**backing);
        self.registered.borrow_mut().retain(is_other);
        Ok(())
    }

    /// The ring goes, and its table of buffers with it.
    pub(crate) fn leave_registered(&mut self) {
        let Some(ring) = self.io.ring() else { return };
        for backing in self.registered.get_mut().drain(..) {
            if let Some(backing) = backing.upgrade() {
                ring.borrow().leave(&backing);
            }
        }
    }

    /// Who is woken when all news is told.
    #[inline]
    pub(crate) fn wakes(&self) -> &Wakes {
        &self.pending.wakes
    }

    /// Turns so far; tells what happened within one turn.
    pub(crate) fn turns(&self) -> u32 {
        self.turns.get()
    }

    /// Whether something waits to start.
    pub(crate) fn has_marks(&self) -> bool {
        self.has_streams() || self.lanes.has_marks() || self.pending.has_marks()
    }

    /// Whether sends of a stream wait to start.
    pub(crate) fn has_streams(&self) -> bool {
        !self.streams.borrow().is_empty()
    }

    /// Whether the kernel may still use anything on loan.
    pub(crate) fn kernel_holds_any(&self) -> bool {
        self.lanes.held.get() > 0 || self.records.borrow().kernel_holds_any()
    }

    /// Whether nothing waits to be submitted.
    pub(crate) fn is_quiet(&self) -> bool {
        !self.has_marks() && self.io.ring().is_none_or(|ring| ring.borrow_mut().unsubmitted() == 0)
    }

    /// Marks a stream: its sends start with the next submission.
    pub(crate) fn mark_stream(&self, socket: &Rc<SocketShared>) {
        self.streams.borrow_mut().push(Rc::downgrade(socket));
        self.pending.start_soon();
    }

    /// Takes the marked streams, and starts the sends of each by `start`, which may mark more.
    pub(crate) fn start_streams(&self, mut start: impl FnMut(&Rc<SocketShared>)) {
        while !self.streams.borrow().is_empty() {
            // The two lists alternate, so that steady use allocates nothing.
            let mut streams = self.streams.replace(self.spare_streams.take());
            for socket in streams.drain(..) {
                if let Some(socket) = socket.upgrade() {
                    start(&socket);
                }
            }
            self.spare_streams.replace(streams);
        }
    }

    /// Marks a lane, so that the next turn submits its buffers.
    #[inline]
    pub(crate) fn mark_lane(&self, lane: &Rc<LaneShared>) {
        self.lanes.marked.borrow_mut().push(Rc::clone(lane));
        self.wakes().attend();
    }

    /// Completions were taken, so the ring may have room for the lanes that found none.
    #[inline]
    pub(crate) fn go_on_with_lanes(&self) {
        if !self.lanes.stalled.borrow().is_empty() {
            self.lanes.stalled.take().iter().for_each(|lane| self.mark_lane(lane));
        }
    }

    /// Notes that somebody turns the driver.
    #[inline]
    pub(crate) fn mark_driven(&self) {
        self.driven.set(true);
    }

    /// Whether anything can start.
    #[inline]
    pub(crate) fn check_room(&self) -> Result<()> {
        self.check_there()?;
        self.records.borrow().check_room(self.unclaimed.records.get())
    }

    /// Whether a wait can start; there is always room for one.
    #[inline]
    pub(crate) fn check_there(&self) -> Result<()> {
        self.check_here()?;
        if self.pending.is_gone() { Err(Error::DriverGone) } else { Ok(()) }
    }

    /// Whether the driver is of this process. A child has copies of its handles, which touch nothing that the child
    /// shares with its parent: not the ring, nor epoll, sockets and what is on loan.
    #[inline]
    pub(crate) fn is_here(&self) -> bool {
        self.pending.is_here()
    }

    #[inline]
    pub(crate) fn check_here(&self) -> Result<()> {
        if self.is_here() { Ok(()) } else { Err(Error::OtherProcess) }
    }

    /// Futures call this before they wait: a wait never ends if nobody turns the driver.
    ///
    /// # Errors
    ///
    /// When nobody can.
    #[inline]
    pub(crate) fn check_driven(&self) -> Result<()> {
        self.check_there()?;
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
}
