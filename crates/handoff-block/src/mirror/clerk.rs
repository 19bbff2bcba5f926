//! The clerk: the thread of a server that writes the records and the bitmap of a mirror, while queues serve it.
//!
//! Contracts:
//! - it says that bits are set when they are durable on every leg in use, and that legs are out when the records of all
//!   legs in use say so durably. Requests wait for both, and it answers all that wait at once;
//! - it does one thing at a time, so that setting a bit never overtakes clearing it;
//! - a leg that fails it is out. If the last one does, requests that wait fail with EIO, and the clerk tries again when
//!   the next one asks;
//! - it takes no memory that the kernel would wait for: its ring, its thread and what it counts in exist before it has a
//!   device, and messages to it and its answers take none. It reads and writes the legs by itself, without workers.
//!
//! Kernel interface: `IORING_OP_MSG_RING` (Linux 5.18) to a ring without `IORING_SETUP_DEFER_TASKRUN`: to one with it,
//! the kernel takes memory for each message (`io_msg_data_remote` in `io_uring/msg_ring.c`). So the clerk's answers
//! go the other way, through an eventfd that each queue's ring polls from its start (`IORING_POLL_ADD_MULTI`).

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use io_uring::{IoUring, opcode, types};
use rustix::event::{EventfdFlags, eventfd};

use super::desk::{Desk, Prepared};
use super::layout::Layout;
use super::room;
use crate::error::{Error, end_of};
use crate::request::Recorded;
use crate::state::Shared;

/// How often it looks for bits to clear.
const LOOK: Duration = Duration::from_secs(2);
/// The most requests under way for which its ring keeps messages.
const REQUESTS: u32 = 32768;
/// The completion that asks it to end; messages have the queue and the tag.
const STOP: u64 = u64::MAX;

/// The mirror that a clerk has to serve.
pub(crate) struct Order {
    pub(crate) shared: Shared,
    /// The device's char device, then its legs.
    pub(crate) files: Arc<Vec<OwnedFd>>,
    /// Where each leg ends.
    pub(crate) ends: Vec<u64>,
    /// Whether a server served it before this one.
    pub(crate) recovers: bool,
}

/// A clerk's thread.
#[derive(Debug)]
pub(crate) struct Clerk {
    ring: RawFd,
    bells: Arc<Vec<OwnedFd>>,
    stop: Arc<OwnedFd>,
    orders: Sender<Order>,
    thread: JoinHandle<()>,
}

impl Clerk {
    /// Starts the thread of a clerk, which waits for its mirror; `tell` hears of its id, and of its end if it fails.
    pub(crate) fn gather(
        recorded: Recorded,
        queues: u16,
        depth: u16,
        tell: impl Fn(Result<i32, io::Error>) + Send + 'static,
    ) -> Result<Self, Error> {
        let requests = u32::from(queues) * u32::from(depth);
        if requests > REQUESTS {
            return Err(Error::invalid(format!(
                "a mirror with records has at most {REQUESTS} requests under way, and this has {queues} queues of {depth}"
            )));
        }
        let lacks = Error::doing("the clerk of the mirror cannot be started");
        let made = || -> io::Result<_> {
            let ring: IoUring =
                IoUring::builder().setup_cqsize((requests + 2).next_power_of_two()).build(2)?;
            let bell = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
            let bells: Vec<_> = (0..queues).map(|_| bell()).collect::<Result<_, _>>()?;
            Ok((ring, Arc::new(bells), Arc::new(bell()?)))
        };
        let (ring, bells, stop) = made().map_err(lacks)?;
        let (orders, received) = channel();
        let number = ring.as_raw_fd();
        let (own, bells_of, stop_of) = (recorded, Arc::clone(&bells), Arc::clone(&stop));
        let thread = thread::Builder::new().name("blk-clerk".to_owned()).spawn(move || {
            let asked = Vec::with_capacity(requests as usize);
            let counter = Counter {
                ring,
                bells: bells_of,
                stop: stop_of,
                asked,
                rung: vec![false; queues.into()],
            };
            let serve = || counter.serve(own, &received, &tell);
            if let Err(error) = end_of(serve) {
                tell(Err(error));
            }
        });
        let thread = thread.map_err(Error::doing("the clerk of the mirror cannot be started"))?;
        Ok(Self { ring: number, bells, stop, orders, thread })
    }

    /// The descriptor of the ring that takes messages.
    pub(crate) fn ring(&self) -> RawFd {
        self.ring
    }

    /// What rings when it has answered a request of this queue.
    pub(crate) fn bell(&self, queue: u16) -> RawFd {
        self.bells[usize::from(queue)].as_raw_fd()
    }

    /// Gives it its mirror, before any queue gets its part. If its thread has ended, it has told so.
    pub(crate) fn order(&self, order: Order) {
        if order.recovers {
            Desk::begin_anew(&order.shared);
        }
        let _ = self.orders.send(order);
    }

    /// Asks it to end, when no queue serves any more.
    pub(crate) fn stop(self) -> JoinHandle<()> {
        ring_bell(&self.stop);
        self.thread
    }
}

fn ring_bell(bell: &OwnedFd) {
    // It can only be full, and so rings already.
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}

/// Where requests ask.
struct Counter {
    ring: IoUring,
    /// By queue.
    bells: Arc<Vec<OwnedFd>>,
    stop: Arc<OwnedFd>,
    /// Queues and tags.
    asked: Vec<(u16, u16)>,
    /// By queue: whether to ring its bell.
    rung: Vec<bool>,
}

impl Counter {
    fn serve(
        mut self,
        recorded: Recorded,
        orders: &Receiver<Order>,
        tell: &impl Fn(Result<i32, io::Error>),
    ) -> io::Result<()> {
        // The device's server must not wait for memory that is reclaimed by writing to this device.
        if let Err(error) = rustix::process::configure_io_flusher_behavior(true) {
            tracing::debug!(%error, "the thread counts as one that may wait for itself");
        }
        self.asked.resize(self.asked.capacity(), (0, 0));
        self.asked.clear();
        let stop = opcode::PollAdd::new(types::Fd(self.stop.as_raw_fd()), libc::POLLIN as u32);
        // SAFETY: the entry refers to no memory.
        unsafe { self.ring.submission().push(&stop.build().user_data(STOP)) }
            .map_err(io::Error::other)?;
        self.ring.submit()?;
        let Recorded { uuid, size, chunk_shift } = recorded;
        let prepared = Prepared::new(uuid, Layout { size, chunk_shift });
        room::rehearse();
        tell(Ok(rustix::thread::gettid().as_raw_nonzero().get()));
        let Ok(Order { shared, files, ends, recovers }) = orders.recv() else { return Ok(()) };
        let legs = files[1..].iter().map(|leg| Ok(leg.try_clone()?.into()));
        let legs = legs.collect::<io::Result<Vec<_>>>()?;
        drop(files);
        let mut desk = Desk::new(prepared, shared, legs, &ends, recovers);
        let mut look = Instant::now() + LOOK;
        loop {
            let until = desk.has_bits().then_some(look);
            if !self.listen(until)? {
                desk.clear_all();
                return Ok(());
            }
            desk.turn(&self.asked, |queue| self.rung[usize::from(queue)] = true);
            self.asked.clear();
            for (bell, _) in self.bells.iter().zip(&mut self.rung).filter(|(_, rung)| **rung) {
                ring_bell(bell);
            }
            self.rung.fill(false);
            if Instant::now() >= look {
                desk.look();
                look = Instant::now() + LOOK;
            }
        }
    }

    /// Waits for requests, at most until then, and takes all that ask. `false`: it shall end.
    fn listen(&mut self, until: Option<Instant>) -> io::Result<bool> {
        let time = until.map(|until| until.saturating_duration_since(Instant::now()));
        let time = time.map(types::Timespec::from);
        let waited = match &time {
            Some(time) => {
                self.ring.submitter().submit_with_args(1, &types::SubmitArgs::new().timespec(time))
            }
            None => self.ring.submit_and_wait(1),
        };
        match waited {
            Err(error)
                if !matches!(
                    error.raw_os_error(),
                    Some(libc::ETIME | libc::EINTR | libc::EAGAIN | libc::EBUSY)
                ) =>
            {
                return Err(error);
            }
            _ => {}
        }
        for completion in self.ring.completion() {
            match completion.user_data() {
                STOP => return Ok(false),
                asker => self.asked.push(((asker >> 16) as u16, asker as u16)),
            }
        }
        Ok(true)
    }
}
