//! Several connections that come by one queue and are received by one ring, or by two rings in a thread each;
//! and the same connections, received by epoll.

use std::{
    io::{ErrorKind, Read as _},
    net::TcpStream,
    os::fd::OwnedFd,
    sync::{
        Arc,
        mpsc::{self, TryRecvError},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use handoff::{Driver, ExportedRxQueue, Receiver, RingUse, RxQueue, Socket, Wait};
use handoff_command::growth::Growth;
use handoff_testbed::instructions;
use rustix::{
    event::{Timespec, epoll},
    io::Errno,
    thread::{CpuSet, sched_getcpu, sched_setaffinity},
};

use super::epoll::BUFFER;
use crate::{
    measure::{Cpu, Engine, Slot, Tally},
    network::{
        TIMEOUT,
        account::Account,
        binding::{Memory, bind},
        far::{FarEnd, Network},
        pattern::{Pattern, Stream},
        placement::{Placed, Placement},
        queues::OwnQueue,
    },
    processor::Waits,
    tasks::own_cpu,
};

/// How many connections there are, whether bytes are compared, and where the first thread runs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Several {
    pub(super) connections: u32,
    pub(super) check: bool,
    pub(super) placement: Option<Placement>,
}

/// The longest wait for bytes before a thread looks for orders.
const LOOK: Duration = Duration::from_millis(20);

/// The connections that one thread receives. `receive` hands what has arrived to their streams, and waits up to
/// [`LOOK`] if nothing has.
trait Part {
    fn receive(&mut self, streams: &mut [Stream]) -> Result<(), String>;

    /// How the memory of the connections' queue has grown so far.
    fn growth(&self) -> Vec<Growth> {
        Vec::new()
    }
}

/// The connections that one ring receives.
struct Ring {
    // The receivers are dropped before the driver: handles go first.
    receivers: Vec<Receiver>,
    _sockets: Vec<Socket>,
    queue: RxQueue,
    driver: Driver,
}

impl Ring {
    fn new(driver: Driver, queue: RxQueue, sockets: Vec<TcpStream>) -> Result<Self, String> {
        let attach = |socket| driver.socket(socket);
        let sockets: Vec<_> =
            sockets.into_iter().map(attach).collect::<Result<_, _>>().map_err(line)?;
        let receive = |socket: &Socket| socket.receive(&queue);
        let receivers = sockets.iter().map(receive).collect::<Result<_, _>>().map_err(line)?;
        Ok(Self { receivers, _sockets: sockets, queue, driver })
    }

    fn imported(exported: &ExportedRxQueue, sockets: Vec<TcpStream>) -> Result<Self, String> {
        let driver = Driver::builder().ring(RingUse::Require).zero_copy_receive(true).build();
        let driver = driver.map_err(line)?;
        let queue = driver.import_rx_queue(exported).map_err(line)?;
        Self::new(driver, queue, sockets)
    }
}

fn line(error: handoff::Error) -> String {
    error.to_string()
}

impl Part for Ring {
    fn receive(&mut self, streams: &mut [Stream]) -> Result<(), String> {
        self.driver.turn(Wait::AtMost(LOOK)).map_err(line)?;
        for (receiver, stream) in self.receivers.iter_mut().zip(streams) {
            if let Some(end) = receiver.visit(|span| stream.take(&span)) {
                end.map_err(line)?;
                return Err("the connection has ended".into());
            }
        }
        Ok(())
    }

    fn growth(&self) -> Vec<Growth> {
        Growth::of(&self.queue)
    }
}

/// The connections that epoll watches.
struct Polled {
    sockets: Vec<TcpStream>,
    poll: OwnedFd,
    events: Vec<epoll::Event>,
    buffer: Vec<u8>,
}

impl Polled {
    fn new(sockets: Vec<TcpStream>) -> Result<Self, String> {
        let open = || -> std::io::Result<OwnedFd> {
            let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            for (number, socket) in (0..).zip(&sockets) {
                socket.set_nonblocking(true)?;
                let data = epoll::EventData::new_u64(number);
                epoll::add(&poll, socket, data, epoll::EventFlags::IN)?;
            }
            Ok(poll)
        };
        let poll = open().map_err(|error| format!("no epoll: {error}"))?;
        let events = Vec::with_capacity(sockets.len());
        Ok(Self { sockets, poll, events, buffer: vec![0; BUFFER] })
    }
}

impl Part for Polled {
    fn receive(&mut self, streams: &mut [Stream]) -> Result<(), String> {
        self.events.clear();
        let room = rustix::buffer::spare_capacity(&mut self.events);
        let time = Timespec { tv_sec: 0, tv_nsec: LOOK.as_nanos() as i64 };
        match epoll::wait(&self.poll, room, Some(&time)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(format!("epoll_wait failed: {errno}")),
        }
        for event in &self.events {
            let number = event.data.u64() as usize;
            match self.sockets[number].read(&mut self.buffer) {
                Ok(0) => return Err("the connection has ended".into()),
                Ok(length) => streams[number].take(&self.buffer[..length]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(format!("recv failed: {error}")),
            }
        }
        Ok(())
    }
}

/// One thread's connections, with the progress of each.
struct Share<P> {
    part: P,
    streams: Vec<Stream>,
}

impl<P: Part> Share<P> {
    fn new(part: P, connections: usize, pattern: &Arc<Pattern>, check: bool) -> Self {
        let stream = || Stream::new(Arc::clone(pattern), check);
        Self { part, streams: (0..connections).map(|_| stream()).collect() }
    }

    fn position(&self) -> u64 {
        self.streams.iter().map(Stream::position).sum()
    }

    /// Receives until each stream has come as far as `totals` says. `totals` is called until it returns the
    /// lengths.
    fn receive_until(
        &mut self,
        mut totals: impl FnMut() -> Result<Option<Vec<u64>>, String>,
    ) -> Result<(), String> {
        let (mut position, mut since) = (self.position(), Instant::now());
        let mut end: Option<Vec<u64>> = None;
        loop {
            self.part.receive(&mut self.streams)?;
            if end.is_none() {
                end = totals()?;
            }
            let come = self.streams.iter().map(Stream::position);
            if end.as_ref().is_some_and(|end| come.eq(end.iter().copied())) {
                return self.streams.iter().try_for_each(Stream::verdict);
            }
            let now = self.position();
            if now != position {
                (position, since) = (now, Instant::now());
            } else if since.elapsed() > TIMEOUT {
                return Err(format!("nothing arrived for {TIMEOUT:?}"));
            }
        }
    }
}

/// An order for the second thread.
enum Order {
    Begin,
    /// Receive until each stream has come this far, in bytes.
    Rest(Vec<u64>),
}

/// The thread of the second ring.
struct Helper {
    orders: Option<mpsc::Sender<Order>>,
    /// Each answer says that the thread is ready; it has the CPU time of the slot before, at first zero.
    answers: mpsc::Receiver<Result<Duration, String>>,
    thread: Option<JoinHandle<()>>,
}

impl Helper {
    fn new(
        exported: ExportedRxQueue,
        sockets: Vec<TcpStream>,
        pattern: Arc<Pattern>,
        check: bool,
    ) -> Result<Self, String> {
        let (orders, ordered) = mpsc::channel();
        let (answer, answers) = mpsc::channel();
        let thread = thread::spawn(move || {
            leave_this_processor();
            let connections = sockets.len();
            let mut share = match Ring::imported(&exported, sockets) {
                Ok(ring) => Share::new(ring, connections, &pattern, check),
                Err(reason) => {
                    let _ = answer.send(Err(reason));
                    return;
                }
            };
            // The channel closes as soon as the helper's owner is gone.
            let mut done = Ok(Duration::ZERO);
            while answer.send(done.clone()).is_ok() && done.is_ok() {
                let Ok(Order::Begin) = ordered.recv() else { return };
                let before = own_cpu();
                let received = share.receive_until(|| match ordered.try_recv() {
                    Ok(Order::Rest(totals)) => Ok(Some(totals)),
                    Ok(Order::Begin) | Err(TryRecvError::Empty) => Ok(None),
                    Err(TryRecvError::Disconnected) => Err("nobody waits any more".to_owned()),
                });
                done = received.map(|()| own_cpu().saturating_sub(before));
            }
        });
        let helper = Self { orders: Some(orders), answers, thread: Some(thread) };
        helper.answer()?;
        Ok(helper)
    }

    fn order(&self, order: Order) {
        // If the thread has ended, its answer says why.
        let _ = self.orders.as_ref().expect("is there until the end").send(order);
    }

    fn answer(&self) -> Result<Duration, String> {
        self.answers.recv().unwrap_or_else(|_| Err("the second thread has ended".to_owned()))
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        drop(self.orders.take());
        if let Some(thread) = self.thread.take() {
            // The thread has reported an error in its answer.
            let _ = thread.join();
        }
    }
}

/// Moves the calling thread to another processor, if there is one.
fn leave_this_processor() {
    let mut others = CpuSet::new();
    (0..CpuSet::MAX_CPU).filter(|&cpu| cpu != sched_getcpu()).for_each(|cpu| others.set(cpu));
    // The call fails if there is only one processor: the thread then stays.
    let _ = sched_setaffinity(None, &others);
}

struct Connected<'a, P> {
    // The connections end first. Nobody waits for them any more, and their end ends the senders.
    ours: Share<P>,
    helper: Option<Helper>,
    senders: Vec<Box<dyn FarEnd>>,
    /// The bytes that the second thread's streams have received.
    others: u64,
    /// Returns a count of copied bytes, whose growth over a slot is what the kernel copied. The argument is the
    /// number of bytes received in the slot so far.
    copied: fn(&P, u64) -> Option<u64>,
    account: Account<'a>,
    copies_of_lent: f64,
    placed: Option<Placed>,
    // The queue is dropped after the rings: the kernel releases it with them.
    _queue: Option<OwnQueue<'a>>,
}

type Ends = (Vec<TcpStream>, Vec<Box<dyn FarEnd>>);

impl Several {
    /// Makes the engine that receives by one queue with such memory, into one ring or two.
    pub(super) fn by_rings<'a>(
        self,
        network: &'a impl Network,
        memory: Memory,
        rings: u32,
    ) -> Result<impl Engine + 'a, String> {
        let queue = network.own_queue()?;
        let (driver, bound) = bind(network, &queue, memory)?;
        let (mut sockets, senders) = self.connect(network, Some(&queue))?;
        let others = sockets.split_off(sockets.len() / rings as usize);
        let helper = match others.is_empty() {
            true => None,
            false => {
                let exported = bound.export().map_err(line)?;
                Some(Helper::new(exported, others, network.pattern(), self.check)?)
            }
        };
        let connections = sockets.len();
        let ring = Ring::new(driver, bound, sockets)?;
        Ok(Connected {
            ours: Share::new(ring, connections, &network.pattern(), self.check),
            helper,
            senders,
            others: 0,
            copied: |ring, _| ring.queue.stats().copied,
            account: network.account(),
            copies_of_lent: network.copies_of_lent(),
            placed: self.place(network, Some(&queue))?,
            _queue: Some(queue),
        })
    }

    /// Makes the engine that receives by epoll.
    pub(super) fn by_epoll<'a>(
        self,
        network: &'a impl Network,
    ) -> Result<impl Engine + 'a, String> {
        let (sockets, senders) = self.connect(network, None)?;
        let connections = sockets.len();
        Ok(Connected {
            ours: Share::new(Polled::new(sockets)?, connections, &network.pattern(), self.check),
            helper: None,
            senders,
            others: 0,
            copied: |_, bytes| Some(bytes),
            account: network.account(),
            copies_of_lent: network.copies_of_lent(),
            placed: self.place(network, None)?,
            _queue: None,
        })
    }

    fn connect(self, network: &impl Network, queue: Option<&OwnQueue<'_>>) -> Result<Ends, String> {
        let all = (0..self.connections).map(|_| network.connect(queue));
        Ok(all.collect::<Result<Vec<_>, _>>()?.into_iter().unzip())
    }

    fn place(
        self,
        network: &impl Network,
        queue: Option<&OwnQueue<'_>>,
    ) -> Result<Option<Placed>, String> {
        self.placement.map(|placement| Placed::new(network, queue, placement)).transpose()
    }
}

impl<P: Part> Connected<'_, P> {
    fn waits(&self) -> Waits {
        self.senders.iter().map(|sender| sender.waits()).collect()
    }

    /// Returns the bytes received in a slot, and the second thread's CPU time.
    fn receive_for(&mut self, slot: &Slot<'_>) -> Result<(u64, Duration), String> {
        let before = self.ours.position() + self.others;
        if let Some(helper) = &self.helper {
            helper.order(Order::Begin);
        }
        self.senders.iter().try_for_each(|sender| sender.begin())?;
        let Self { ours, helper, senders, others, .. } = self;
        let first = ours.streams.len();
        ours.receive_until(|| {
            if !slot.is_over() {
                return Ok(None);
            }
            let mut totals: Vec<_> =
                senders.iter().map(|sender| sender.rest()).collect::<Result<_, _>>()?;
            let of_others = totals.split_off(first);
            if let Some(helper) = helper {
                *others = of_others.iter().sum();
                helper.order(Order::Rest(of_others));
            }
            Ok(Some(totals))
        })?;
        let spent = self.helper.as_ref().map_or(Ok(Duration::ZERO), Helper::answer)?;
        Ok((self.ours.position() + self.others - before, spent))
    }
}

impl<P: Part> Engine for Connected<'_, P> {
    fn run(&mut self, slot: &Slot<'_>) -> Result<Tally, String> {
        let _there = self.placed.as_ref().map(Placed::go).transpose()?;
        let begun = self.account.begin(self.waits())?;
        let copied = (self.copied)(&self.ours.part, 0);
        let received = self.receive_for(&slot.anew());
        let spent = self.account.end(&begun, || self.waits());
        let failure = || self.senders.iter().find_map(|sender| sender.failure());
        let (bytes, of_helper) = received.map_err(|error| failure().unwrap_or(error))?;
        let mut tally = spent?;
        if let Cpu::Known(cpu) = &mut tally.cpu {
            *cpu += of_helper;
        }
        if let (true, Some(time)) = (instructions::counting(), &mut tally.time) {
            // Under instruction counting, each instruction takes a nanosecond on every processor.
            time.elapsed += of_helper;
        }
        let now = (self.copied)(&self.ours.part, bytes);
        // With several rings the kernel counts without a lock, so the count may decrease.
        let copied = now.zip(copied).map(|(after, before)| after.saturating_sub(before));
        Ok(Tally { bytes, copied, ..tally })
    }

    fn growth(&self) -> Vec<Growth> {
        self.ours.part.growth()
    }

    fn begin_witness(&mut self) -> Result<(), String> {
        self.account.leave_to_witness();
        Ok(())
    }

    /// The kernel also copies each byte that the senders lend, `copies_of_lent` times.
    fn implied(&self, reported: f64) -> f64 {
        reported + self.copies_of_lent
    }
}
