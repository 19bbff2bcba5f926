//! The threads of a server, one for each queue.
//!
//! Contracts:
//! - a gathered thread has its ring and what its engine loads before ([`engine::load`]), and waits for a device; it
//!   ends if no order comes;
//! - a thread runs on the processors from which the driver sends it requests;
//! - each thread reports its end, also when it panics;
//! - their descriptor is readable when a thread has something to report ([`Threads::heard`]).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::engine::{self, Program};
use crate::error::{Error, end_of};
use crate::mirror::clerk::{self, Clerk};
use crate::queue::{PreparedQueue, Queue};
use crate::ring::Shape;
use crate::state::Mapping;

/// A queue's thread has its ring, has asked for requests, or has ended.
type End = (u16, Step);

#[derive(Debug)]
pub(crate) enum Step {
    /// It waits for a device; with the thread's id.
    Gathered(i32),
    /// The driver has been asked for requests.
    Ready,
    Ended(io::Result<()>),
}

/// What a thread must serve.
pub(crate) struct Order {
    /// The device's char device, then its backings.
    pub(crate) files: Arc<Vec<OwnedFd>>,
    pub(crate) program: Arc<Program>,
    pub(crate) region: Mapping,
}

/// All threads of a server.
#[derive(Debug)]
pub(crate) struct Threads {
    threads: Vec<JoinHandle<()>>,
    thread_ids: Vec<i32>,
    /// By queue.
    orders: Vec<Sender<Order>>,
    ends: Receiver<End>,
    /// Rung with each report.
    bell: Arc<OwnedFd>,
    /// Of a mirror with a record, until it has been asked to end.
    clerk: Option<Clerk>,
}

/// In the place of a queue: the clerk.
const CLERK: u16 = u16::MAX;

impl Threads {
    /// Starts a thread for each queue; returns when all are gathered. [`Order`] may bring another program.
    pub(crate) fn gather(
        queues: u16,
        shape: Shape,
        program: &Arc<Program>,
        mut cpus: impl FnMut(u16) -> Vec<usize>,
    ) -> Result<Self, Error> {
        let (sender, ends) = mpsc::channel();
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(Error::doing("the threads cannot be listened to"))?;
        let bell = Arc::new(bell);
        let mut all = Self {
            threads: Vec::new(),
            thread_ids: Vec::new(),
            orders: Vec::new(),
            ends,
            bell: Arc::clone(&bell),
            clerk: None,
        };
        let mut shape = shape;
        if let Some(recorded) = shape.recorded {
            let (sender, bell) = (sender.clone(), Arc::clone(&bell));
            let tell = move |told: Result<i32, io::Error>| {
                let step = told.map_or_else(|error| Step::Ended(Err(error)), Step::Gathered);
                report(&sender, &bell, (CLERK, step));
            };
            let clerk = Clerk::gather(recorded, queues, shape.depth, tell)?;
            shape.clerk = clerk.ring();
            all.clerk = Some(clerk);
        }
        for queue in 0..queues {
            let (order, orders) = mpsc::channel();
            let (sender, program, cpus) = (sender.clone(), Arc::clone(program), cpus(queue));
            let bell = Arc::clone(&bell);
            let answers = all.clerk.as_ref().map(|clerk| clerk.bell(queue));
            let thread = Thread { queue, shape, program, cpus, orders, sender, bell, answers };
            all.threads.push(thread.spawn()?);
            all.orders.push(order);
        }
        for _ in 0..usize::from(queues) + usize::from(all.clerk.is_some()) {
            if let Step::Gathered(id) = all.step()? {
                all.thread_ids.push(id);
            }
        }
        Ok(all)
    }

    /// The next step of a thread; none may end.
    fn step(&self) -> Result<Step, Error> {
        match self.ends.recv() {
            Ok((queue, Step::Ended(ended))) => {
                let cause =
                    ended.err().unwrap_or_else(|| io::Error::other("the device was stopped"));
                Err(Error::doing(format!("{} cannot be served", name_of(queue)))(cause))
            }
            Ok((_, step)) => Ok(step),
            Err(ended) => Err(Error::doing("the queues cannot be served")(io::Error::other(ended))),
        }
    }

    /// Gives a queue's thread its device. A thread that has ended has reported it.
    pub(crate) fn order(&self, queue: u16, order: Order) {
        let _ = self.orders[usize::from(queue)].send(order);
    }

    /// Gives the clerk its mirror, before any queue's thread has its order.
    pub(crate) fn order_clerk(
        &self,
        order: impl FnOnce() -> Result<clerk::Order, Error>,
    ) -> Result<(), Error> {
        if let Some(clerk) = &self.clerk {
            clerk.order(order()?);
        }
        Ok(())
    }

    /// Waits until all queues have asked the driver for requests.
    pub(crate) fn all_ready(&self) -> Result<(), Error> {
        self.orders.iter().try_for_each(|_| self.step().map(drop))
    }

    pub(crate) fn thread_ids(&self) -> &[i32] {
        &self.thread_ids
    }

    /// What a thread reports within this time.
    pub(crate) fn next(&self, time: Duration) -> Result<End, RecvTimeoutError> {
        self.ends.recv_timeout(time)
    }

    /// What a thread has reported, if one has; the descriptor is readable at the next report.
    pub(crate) fn heard(&self) -> Option<End> {
        // Before looking: a report that comes meanwhile rings again.
        let _ = rustix::io::read(&*self.bell, &mut [0; 8]);
        self.ends.try_recv().ok()
    }

    /// Ends the threads that have no order yet.
    pub(crate) fn dismiss(&mut self) {
        self.orders.clear();
        // It has nobody to serve then.
        self.threads.extend(self.clerk.take().map(Clerk::stop));
    }

    pub(crate) fn join(&mut self) {
        self.dismiss();
        // A panic has been reported.
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }

    /// Leaves the threads to the end of the process.
    pub(crate) fn leave(&mut self) {
        self.threads.clear();
        // It waits for requests that nobody begins any more.
        self.clerk = None;
    }
}

impl AsFd for Threads {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// The order for a queue's thread.
struct Thread {
    queue: u16,
    shape: Shape,
    program: Arc<Program>,
    cpus: Vec<usize>,
    orders: Receiver<Order>,
    sender: Sender<End>,
    bell: Arc<OwnedFd>,
    /// Rung by the mirror's clerk.
    answers: Option<RawFd>,
}

fn report(sender: &Sender<End>, bell: &OwnedFd, end: End) {
    // Nobody listens while the server is being abandoned.
    let _ = sender.send(end);
    // It can only be full, and so rings already.
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}

// SAFETY: only the thread that gets the region uses its mapping.
unsafe impl Send for Mapping {}

impl Thread {
    fn spawn(self) -> Result<JoinHandle<()>, Error> {
        let name = format!("blk-queue-{}", self.queue);
        thread::Builder::new()
            .name(name)
            .spawn(move || {
                self.tell(Step::Ended(end_of(|| self.serve())));
            })
            .map_err(|error| match error.raw_os_error() {
                // The limit of threads is reached.
                Some(libc::EAGAIN) => {
                    let reason = format!("a thread cannot be started: {error}");
                    Error::Starved { reason, source: error }
                }
                _ => Error::doing("a thread cannot be started")(error),
            })
    }

    fn tell(&self, step: Step) {
        report(&self.sender, &self.bell, (self.queue, step));
    }

    fn serve(&self) -> io::Result<()> {
        let mut set = CpuSet::new();
        self.cpus.iter().filter(|cpu| **cpu < CpuSet::MAX_CPU).for_each(|cpu| set.set(*cpu));
        // A hint; a processor may have gone since.
        let _ = sched_setaffinity(None, &set);
        // The device's server must not wait for memory that is reclaimed by writing to this device.
        if let Err(error) = rustix::process::configure_io_flusher_behavior(true) {
            tracing::debug!(%error, "the thread counts as one that may wait for itself");
        }
        let prepared = PreparedQueue::new(self.queue, self.shape, engine::ring(self.shape)?)?;
        let loaded = engine::load(self.shape.engine, &prepared, &self.program)?;
        self.tell(Step::Gathered(rustix::thread::gettid().as_raw_nonzero().get()));
        let Ok(Order { files, program, region }) = self.orders.recv() else { return Ok(()) };
        let mut queue = Queue::new(prepared, &files, region, self.answers)?;
        engine::run(self.shape.engine, &mut queue, (&program, loaded), || self.tell(Step::Ready))
    }
}

/// What a thread serves.
fn name_of(queue: u16) -> String {
    if queue == CLERK { "the mirror".to_owned() } else { format!("queue {queue}") }
}
