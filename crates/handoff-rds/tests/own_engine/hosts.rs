//! Engines on threads of their own, in the namespaces of a pair.

use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::thread::JoinHandle;
use std::time::Duration;

use futures_util::future::{Either, select};
use handoff::{Buffer, Driver, Executor, Region, Tally};
use handoff_rds::End;
use handoff_rds::own::{Engine, Socket};
use handoff_rds::protocol::Limits;
use handoff_rds::wire::{MAX_LANES, PORT};
use handoff_testbed::{Pair, PairEnd};

use crate::timeout::{STEP, Timeout};

/// Two hosts without the kernel's RDS, which would listen in their place.
pub(crate) fn pair() -> Pair {
    Pair::new(9000).expect("namespaces and veth")
}

/// What a test does with an engine.
pub(crate) struct Own {
    pub(crate) engine: Engine,
    pub(crate) driver: Driver,
}

/// How an engine is set up.
#[derive(Clone, Copy)]
pub(crate) struct Setup {
    pub(crate) sending: handoff::Engine,
    pub(crate) lanes: u8,
    /// Where it listens.
    pub(crate) port: u16,
    /// Bytes that a port holds before it is congested.
    pub(crate) receive: u64,
    /// How long next to nothing may come of a message that has begun.
    pub(crate) peer_timeout: Duration,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            sending: handoff::Engine::Auto,
            lanes: MAX_LANES,
            port: PORT,
            receive: 1 << 20,
            peer_timeout: Limits::default().peer_timeout,
        }
    }
}

/// Runs `work` on an engine at the end's address; a test that does not end fails.
pub(crate) fn host<T, F>(
    end: &PairEnd,
    address: IpAddr,
    sending: handoff::Engine,
    work: impl FnOnce(std::rc::Rc<Own>) -> F + Send + 'static,
) -> JoinHandle<T>
where
    T: Send + 'static,
    F: Future<Output = T> + 'static,
{
    host_with(end, address, Setup { sending, ..Setup::default() }, work)
}

/// As [`host`], set up otherwise.
pub(crate) fn host_with<T, F>(
    end: &PairEnd,
    address: IpAddr,
    setup: Setup,
    work: impl FnOnce(std::rc::Rc<Own>) -> F + Send + 'static,
) -> JoinHandle<T>
where
    T: Send + 'static,
    F: Future<Output = T> + 'static,
{
    let run = move || {
        let driver = Driver::new().expect("a driver");
        let Setup { sending, lanes, port, receive, peer_timeout } = setup;
        let limits = Limits { queued: 4 << 20, receive, lanes, peer_timeout, ..Limits::default() };
        let engine = Engine::listening_at(&driver, (address, port).into(), limits, sending);
        let engine = engine.expect("an engine");
        let own = std::rc::Rc::new(Own { engine, driver: driver.clone() });
        let serving = own.engine.run();
        let seen = own.clone();
        let clock = driver.clone();
        let late = async move {
            let mut timeout = Timeout::new();
            while !timeout.is_over() {
                clock.sleep(STEP).await.expect("the driver is there");
            }
        };
        let work = async move {
            let (work, late) = (pin!(work(own)), pin!(late));
            match select(work, late).await {
                Either::Left((done, _)) => done,
                Either::Right(_) => panic!("not done in time: {:?}", seen.engine.statistics()),
            }
        };
        let executor = Executor::new(&driver);
        executor
            .run(async {
                match select(pin!(work), pin!(serving)).await {
                    Either::Left((done, _)) => done,
                    Either::Right((error, _)) => panic!("{error}"),
                }
            })
            .expect("turns")
    };
    end.namespace().spawn("engine", run).expect("starts")
}

/// Bytes that tell which message they are of.
pub(crate) fn pattern(number: u32, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> =
        (0..len).map(|at| (number as usize * 131 + at * 7 + at / 251) as u8).collect();
    if let Some(head) = bytes.first_chunk_mut() {
        *head = number.to_le_bytes();
    }
    bytes
}

/// Buffers that are sent again and again.
pub(crate) struct Buffers {
    free: Vec<Buffer>,
}

impl Buffers {
    pub(crate) fn new(count: usize, len: usize) -> Self {
        let mut region = Region::anonymous(count * len.next_multiple_of(4096)).expect("memory");
        Self { free: (0..count).map(|_| region.take(len).expect("has room")).collect() }
    }

    pub(crate) fn count(&self) -> usize {
        self.free.len()
    }

    pub(crate) fn fill(&mut self, number: u32, len: usize) -> Option<Buffer> {
        let mut buffer = self.free.pop()?;
        buffer.set_len(len);
        buffer.copy_from_slice(&pattern(number, len));
        Some(buffer)
    }
}

/// Sends numbered messages of these sizes and waits until all are back; gives what became of them.
pub(crate) async fn send_all(
    socket: &Socket,
    to: SocketAddr,
    buffers: &mut Buffers,
    sizes: impl Iterator<Item = usize>,
) -> Tally {
    let all = buffers.count();
    let mut tally = Tally::default();
    let mut batch = Vec::new();
    let mut cookies = Vec::new();
    let mut take_back = |batch: &mut Vec<handoff_rds::Completion<Buffer>>,
                         free: &mut Vec<Buffer>| {
        for back in batch.drain(..) {
            assert_eq!((back.end, back.to), (End::Acknowledged, to));
            tally += back.tally;
            cookies.push(back.cookie);
            free.push(back.payload);
        }
    };
    let mut count = 0;
    for (number, size) in sizes.enumerate() {
        let number = number as u32;
        let buffer = loop {
            match buffers.fill(number, size) {
                Some(buffer) => break buffer,
                None => socket.completions(usize::MAX, &mut batch).await,
            };
            take_back(&mut batch, &mut buffers.free);
        };
        socket.send_when_possible(to, buffer, number).await.expect("is accepted");
        count += 1;
    }
    while buffers.count() < all {
        socket.completions(usize::MAX, &mut batch).await;
        take_back(&mut batch, &mut buffers.free);
    }
    cookies.sort_unstable();
    assert!(cookies.into_iter().eq(0..count), "each came back once");
    tally
}

/// Receives as many messages, and checks them.
pub(crate) async fn receive_all(socket: &Socket, sizes: impl Iterator<Item = usize>) {
    for (number, size) in sizes.enumerate() {
        let received = socket.receive().await;
        assert_eq!(received.payload.len(), size, "message {number}");
        assert!(received.payload == pattern(number as u32, size), "message {number}");
    }
}

pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let mut timeout = Timeout::new();
    while !done() {
        assert!(!timeout.is_over(), "never: {what}");
        std::thread::yield_now();
    }
}
