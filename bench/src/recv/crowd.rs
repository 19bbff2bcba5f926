//! Rows of many connections: what a message costs when one thread waits for many connections.
//!
//! Contracts:
//!
//! 1. The connections take turns: one message is on its way at a time. When it has arrived, the next connection
//!    gets the next message. So a message is one wait, for any number of connections.
//! 2. A row's cost is the receiving thread's; over loopback, packets arrive in the sender's thread.

use std::{
    cell::{Cell, RefCell},
    io::{self, ErrorKind, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    os::fd::OwnedFd,
    rc::Rc,
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    task::{Poll, Waker},
    thread::{self, JoinHandle},
};

use handoff::{Driver, Executor, Receiver, Region, RingUse, Socket};
use handoff_command::quantity::format_count;
use rustix::{
    buffer::spare_capacity,
    event::epoll,
    thread::{CpuSet, sched_setaffinity},
};

use super::RecvArgs;
use crate::{
    measure::{Engine, Slot, Subject, Tally},
    network::{account::Account, descriptors},
    report::Config,
};

/// Bytes of a message.
const BYTES: usize = 1 << 10;
/// The number of messages between two looks at the clock.
const BETWEEN_LOOKS: u64 = 64;
/// The number of chunks in the pool, which all connections share.
const CHUNKS: usize = 64;

/// The rows for each number of connections that `--sockets` names.
pub(super) fn subjects<'a>(args: &'a RecvArgs, others: CpuSet) -> Vec<Subject<'a>> {
    let rows = args.sockets.iter().flat_map(move |&sockets| {
        let name = |engine: &str| format!("sockets={} {engine}", format_count(sockets));
        let config = || Config {
            op: Some("recv".to_owned()),
            proto: Some("tcp".to_owned()),
            target: Some("loopback".to_owned()),
            bytes: Some(BYTES as u64),
            sockets: Some(sockets),
            ..Config::default()
        };
        let epoll = move || Turns::new(sockets, others, Epoll::new);
        let pool = move || Turns::new(sockets, others, Pool::new);
        [
            Subject::new(name("epoll"), "epoll", config(), epoll).baseline(),
            Subject::new(name("multishot"), "multishot", config(), pool),
        ]
    });
    let mut subjects: Vec<_> = rows.collect();
    args.run.keep_wanted(&mut subjects);
    subjects
}

/// A way to receive from many connections.
trait Receive {
    /// Calls `next` for a message to be sent and receives that message, `messages` times.
    fn receive(&mut self, messages: u64, next: &dyn Fn()) -> Result<(), String>;
}

struct Turns<R> {
    // The receiving ends are dropped first: their end ends the sender.
    way: R,
    sender: Sender,
    account: Account<'static>,
}

impl<R: Receive> Turns<R> {
    fn new(
        sockets: u32,
        others: CpuSet,
        way: impl FnOnce(Vec<TcpStream>) -> Result<R, String>,
    ) -> Result<Self, String> {
        // Both ends of a connection are descriptors of this process.
        descriptors::allow(2 * u64::from(sockets));
        let (near, far) =
            connections(sockets).map_err(|error| format!("{sockets} connections: {error}"))?;
        let sender = Sender::new(far, others);
        Ok(Self { way: way(near)?, sender, account: Account::new([], Vec::new()) })
    }
}

impl<R: Receive> Engine for Turns<R> {
    fn run(&mut self, slot: &Slot<'_>) -> Result<Tally, String> {
        let _awake = self.sender.wake();
        let begun = self.account.begin(Default::default())?;
        let (slot, mut messages) = (slot.anew(), 0);
        while !slot.is_over() {
            self.way.receive(BETWEEN_LOOKS, &|| self.sender.shared.wanted.add_one())?;
            messages += BETWEEN_LOOKS;
        }
        let spent = self.account.end(&begun, Default::default)?;
        let bytes = messages * BYTES as u64;
        Ok(Tally { bytes, operations: Some(messages), copied: Some(bytes), ..spent })
    }

    fn begin_witness(&mut self) -> Result<(), String> {
        self.account.leave_to_witness();
        Ok(())
    }

    /// The sender's write(2) copies each byte once more, which no engine reports.
    fn implied(&self, reported: f64) -> f64 {
        reported + 1.0
    }
}

/// Opens `count` connections over loopback, and returns the receiving ends and the sending ends.
fn connections(count: u32) -> io::Result<(Vec<TcpStream>, Vec<TcpStream>)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let connect = |_| {
        let far = TcpStream::connect(address)?;
        far.set_nodelay(true)?;
        Ok((listener.accept()?.0, far))
    };
    (0..count).map(connect).collect()
}

/// The thread that sends on all connections.
struct Sender {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    /// The number of messages that the sender should have sent by now.
    wanted: Wanted,
    /// Whether a slot runs: the sender then polls without pause, so asking for a message costs the receiver
    /// nothing.
    awake: AtomicBool,
    ended: AtomicBool,
    asleep: Mutex<()>,
    changed: Condvar,
}

#[derive(Default)]
struct Wanted(AtomicU64);

impl Wanted {
    fn add_one(&self) {
        self.0.fetch_add(1, SeqCst);
    }
}

impl Sender {
    fn new(mut sockets: Vec<TcpStream>, processors: CpuSet) -> Self {
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let work = move || {
            // On the receiver's processor, the sender would make the receiver wait.
            let _ = sched_setaffinity(None, &processors);
            let mut sent = 0;
            while theirs.goes_on() {
                if sent == theirs.wanted.0.load(SeqCst) {
                    thread::yield_now();
                    continue;
                }
                let turn = sent as usize % sockets.len();
                if sockets[turn].write_all(&[7; BYTES]).is_err() {
                    return;
                }
                sent += 1;
            }
        };
        Self { shared, thread: Some(thread::spawn(work)) }
    }

    /// Makes the sender poll for work while the returned guard lives.
    fn wake(&self) -> Awake {
        self.shared.set_awake(true);
        Awake(Arc::clone(&self.shared))
    }
}

impl Shared {
    fn set_awake(&self, awake: bool) {
        let _asleep = self.asleep.lock().unwrap_or_else(PoisonError::into_inner);
        self.awake.store(awake, SeqCst);
        self.changed.notify_all();
    }

    /// Sleeps outside of slots. Returns false when the sender should end.
    fn goes_on(&self) -> bool {
        if !self.awake.load(SeqCst) {
            let asleep = self.asleep.lock().unwrap_or_else(PoisonError::into_inner);
            let sleeps = |_: &mut ()| !self.awake.load(SeqCst) && !self.ended.load(SeqCst);
            drop(self.changed.wait_while(asleep, sleeps));
        }
        !self.ended.load(SeqCst)
    }
}

struct Awake(Arc<Shared>);

impl Drop for Awake {
    fn drop(&mut self) {
        self.0.set_awake(false);
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.shared.ended.store(true, SeqCst);
        self.shared.set_awake(true);
        if let Some(thread) = self.thread.take() {
            // The thread reported a panic itself.
            let _ = thread.join();
        }
    }
}

/// The baseline: epoll_wait(2), level-triggered, and recv(2).
struct Epoll {
    sockets: Vec<TcpStream>,
    poll: OwnedFd,
    events: Vec<epoll::Event>,
}

impl Epoll {
    fn new(sockets: Vec<TcpStream>) -> Result<Self, String> {
        let open = || -> io::Result<OwnedFd> {
            let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            for (socket, number) in sockets.iter().zip(0..) {
                socket.set_nonblocking(true)?;
                epoll::add(
                    &poll,
                    socket,
                    epoll::EventData::new_u64(number),
                    epoll::EventFlags::IN,
                )?;
            }
            Ok(poll)
        };
        let poll = open().map_err(|error| format!("no epoll: {error}"))?;
        Ok(Self { sockets, poll, events: Vec::with_capacity(64) })
    }
}

impl Receive for Epoll {
    fn receive(&mut self, messages: u64, next: &dyn Fn()) -> Result<(), String> {
        let mut space = [0; BYTES];
        for _ in 0..messages {
            next();
            let mut left = BYTES;
            while left > 0 {
                self.events.clear();
                epoll::wait(&self.poll, spare_capacity(&mut self.events), None)
                    .map_err(|error| format!("epoll_wait failed: {error}"))?;
                for event in &self.events {
                    match self.sockets[event.data.u64() as usize].read(&mut space) {
                        Ok(0) => return Err("a connection has ended".into()),
                        Ok(read) => left -= read,
                        Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                        Err(error) => return Err(format!("recv failed: {error}")),
                    }
                }
            }
        }
        Ok(())
    }
}

/// The library's row: a task for each connection, on one driver.
struct Pool {
    executor: Executor,
    arrived: Rc<Arrived>,
}

/// The bytes that arrived, on any connection.
#[derive(Default)]
struct Arrived {
    bytes: Cell<u64>,
    /// The number of bytes that is waited for, and who waits; `None` if nobody does.
    awaited: RefCell<Option<(u64, Waker)>>,
    failure: RefCell<Option<String>>,
}

impl Pool {
    fn new(sockets: Vec<TcpStream>) -> Result<Self, String> {
        let make = || -> handoff::Result<Self> {
            let count = sockets.len();
            let driver = Driver::builder()
                .ring(RingUse::Require)
                .entries(256)
                .in_flight(count)
                .registered_files(count.min(16_384) as u32)
                .build()?;
            let pool = driver.pool(Region::anonymous(CHUNKS * BYTES)?, BYTES)?;
            let (executor, arrived) = (Executor::new(&driver), Rc::<Arrived>::default());
            for socket in sockets {
                let socket = driver.socket(socket)?;
                let receiver = socket.receive(&pool)?;
                executor.spawn(count_spans(socket, receiver, Rc::clone(&arrived))).detach();
            }
            Ok(Self { executor, arrived })
        };
        make().map_err(|error| error.to_string())
    }
}

async fn count_spans(_socket: Socket, mut receiver: Receiver, arrived: Rc<Arrived>) {
    loop {
        let waited = receiver.spans_there().await;
        let end = waited.map_or_else(
            |error| Some(Err(error)),
            |()| receiver.visit(|span| arrived.add(span.len() as u64)),
        );
        if let Some(end) = end {
            return arrived.fail(&end.err());
        }
    }
}

impl Arrived {
    fn add(&self, bytes: u64) {
        self.bytes.update(|before| before + bytes);
        let there = |(until, _): &mut (u64, Waker)| *until <= self.bytes.get();
        let awaited = self.awaited.borrow_mut().take_if(there);
        if let Some((_, waker)) = awaited {
            waker.wake();
        }
    }

    fn fail(&self, error: &Option<handoff::Error>) {
        let told = error.as_ref().map_or("a connection has ended".to_owned(), ToString::to_string);
        self.failure.borrow_mut().get_or_insert(told);
        if let Some((_, waker)) = self.awaited.take() {
            waker.wake();
        }
    }

    async fn until(&self, bytes: u64) -> Result<(), String> {
        std::future::poll_fn(|context| {
            if let Some(failure) = &*self.failure.borrow() {
                return Poll::Ready(Err(failure.clone()));
            }
            if self.bytes.get() >= bytes {
                return Poll::Ready(Ok(()));
            }
            self.awaited.replace(Some((bytes, context.waker().clone())));
            Poll::Pending
        })
        .await
    }
}

impl Receive for Pool {
    fn receive(&mut self, messages: u64, next: &dyn Fn()) -> Result<(), String> {
        let all = async {
            for _ in 0..messages {
                let until = self.arrived.bytes.get() + BYTES as u64;
                next();
                self.arrived.until(until).await?;
            }
            Ok(())
        };
        self.executor.run(all).map_err(|error| error.to_string())?
    }
}
