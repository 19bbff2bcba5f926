//! Frozen buffers: the same bytes to many sockets, of many drivers and threads, by every engine; and when
//! they may be written again.

#[allow(dead_code, reason = "each test program uses a part")]
mod traffic;

use std::collections::VecDeque;
use std::io::Read;
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use handoff::{
    Driver, Engine, Frozen, OnLoan, Pinning, Region, Returned, RingUse, Sent, Socket, Wait,
};
use handoff_lab::topology::Pair;
use proptest::prelude::*;
use rustix::process::{DumpableBehavior, Resource, Rlimit, setrlimit};
use traffic::{engines_apart, filled, narrow_tcp, pattern, tcp, within};

const LONG: Duration = Duration::from_secs(60);
const LEN: usize = 48 << 10;

/// Far ends of connections, and what each got until its end.
struct Readers(Vec<JoinHandle<Vec<u8>>>);

impl Readers {
    fn new() -> Self {
        Self(Vec::new())
    }

    fn add(&mut self, mut far: TcpStream) {
        self.0.push(thread::spawn(move || {
            let mut all = Vec::new();
            far.read_to_end(&mut all).unwrap();
            all
        }));
    }

    /// What each got; the near ends are closed.
    fn end(self) -> Vec<Vec<u8>> {
        self.0.into_iter().map(|reader| reader.join().unwrap()).collect()
    }
}

/// Sends one payload, and two parts of it, on every socket at once; the payload is free after that.
fn to_all(driver: &Driver, sockets: Vec<Socket>, payload: Frozen) {
    let seed = usize::from(payload[0]);
    let mut under_way = Vec::new();
    for socket in &sockets {
        under_way.push(socket.message(payload.clone()).header(b"head").send().unwrap());
    }
    let mut parts = Vec::new();
    for socket in &sockets {
        let both = vec![payload.part(..100), payload.part(LEN - 7..)];
        parts.push(socket.send(both).unwrap());
    }
    driver
        .block_on(async {
            for sending in under_way {
                let finished = sending.await;
                assert_eq!(finished.sent.unwrap(), LEN + 4);
                assert_eq!(finished.receipt.tally.total(), LEN as u64 + 4);
                assert_eq!(finished.buffer.len(), LEN);
            }
            for sending in parts {
                assert_eq!(sending.await.sent.unwrap(), 107);
            }
        })
        .unwrap();
    let mut buffer = payload.try_unfreeze().expect("all loans are over");
    assert_eq!(usize::from(buffer[0]), seed);
    buffer.fill(0);
    drop(sockets);
    // What is closed lazily is closed now.
    driver.turn(Wait::No).unwrap();
}

fn streams(
    driver: &Driver,
    engine: Engine,
    count: usize,
    connect: &dyn Fn() -> (TcpStream, TcpStream),
) {
    let mut readers = Readers::new();
    let sockets = (0..count).map(|_| {
        let (near, far) = connect();
        readers.add(far);
        let socket = driver.socket(near).unwrap();
        socket.set_engine(engine).unwrap();
        socket
    });
    let sockets: Vec<_> = sockets.collect();
    let mut region = Region::anonymous(LEN).unwrap();
    if engine != Engine::Copy && driver.ring_unavailable().is_none() {
        driver.register(&region).unwrap();
    }
    let bytes = pattern(count, LEN);
    to_all(driver, sockets, filled(&mut region, count, LEN).freeze());
    for got in readers.end() {
        let expected = [b"head", &bytes[..], &bytes[..100], &bytes[LEN - 7..]].concat();
        traffic::assert_same(&got, &expected);
    }
}

fn datagrams(
    driver: &Driver,
    engine: Engine,
    count: usize,
    near: &dyn Fn() -> UdpSocket,
    far: IpAddr,
    bind: &dyn Fn(IpAddr) -> UdpSocket,
) {
    let fars: Vec<_> = (0..count).map(|_| bind(far)).collect();
    let sockets = fars.iter().map(|far| {
        let near = near();
        near.connect(far.local_addr().unwrap()).unwrap();
        let socket = driver.socket(near).unwrap();
        socket.set_engine(engine).unwrap();
        socket
    });
    let sockets: Vec<_> = sockets.collect();
    let readers: Vec<_> = fars
        .into_iter()
        .map(|far| {
            thread::spawn(move || {
                let mut got = vec![0; LEN + 100];
                [0, 1].map(|_| {
                    let len = far.recv(&mut got).unwrap();
                    got[..len].to_vec()
                })
            })
        })
        .collect();
    let mut region = Region::anonymous(LEN).unwrap();
    let bytes = pattern(count, LEN);
    to_all(driver, sockets, filled(&mut region, count, LEN).freeze());
    for reader in readers {
        let [whole, parts] = reader.join().unwrap();
        // Two datagrams over a device of several queues may pass each other.
        let (whole, parts) =
            if whole.len() > parts.len() { (whole, parts) } else { (parts, whole) };
        traffic::assert_same(&whole, &[b"head", &bytes[..]].concat());
        traffic::assert_same(&parts, &[&bytes[..100], &bytes[LEN - 7..]].concat());
    }
}

#[test]
fn one_payload_to_many_by_every_engine() {
    within(LONG, || {
        for (driver, engine) in engines_apart() {
            for count in [1, 7] {
                streams(&driver, engine, count, &|| tcp("127.0.0.1"));
                let bind = |address| UdpSocket::bind((address, 0)).unwrap();
                let here = IpAddr::from([127, 0, 0, 1]);
                datagrams(&driver, engine, count, &|| bind(here), here, &bind);
            }
        }
    });
}

#[test]
fn one_payload_to_many_over_veth() {
    within(LONG, || {
        let pair = match Pair::new(9000) {
            Ok(pair) => pair,
            Err(error) => {
                return traffic::skip("one_payload_to_many_over_veth", &error.to_string());
            }
        };
        let (left, right) = (&pair.left, &pair.right);
        let connect = || {
            let listener = right.namespace().run(|| TcpListener::bind((right.v4(), 0)));
            let listener = listener.unwrap().unwrap();
            let address = listener.local_addr().unwrap();
            let near = left.namespace().run(|| TcpStream::connect(address)).unwrap().unwrap();
            (near, listener.accept().unwrap().0)
        };
        let near = || left.namespace().run(|| UdpSocket::bind((left.v4(), 0))).unwrap().unwrap();
        let bind =
            |address| right.namespace().run(|| UdpSocket::bind((address, 0))).unwrap().unwrap();
        for (driver, engine) in engines_apart() {
            streams(&driver, engine, 5, &connect);
            datagrams(&driver, engine, 5, &near, IpAddr::from(right.v4()), &bind);
        }
    });
}

/// On its way to a peer that does not read, by each engine, and then dropped: it is frozen until the peer has it.
#[test]
fn what_is_on_loan_is_not_written() {
    within(LONG, || {
        for (driver, engine) in engines_apart() {
            let (near, mut far) = narrow_tcp();
            let socket = driver.socket(near).unwrap();
            socket.set_engine(engine).unwrap();
            let mut region = Region::anonymous(1 << 20).unwrap();
            let frozen = filled(&mut region, 3, 1 << 20).freeze();
            drop(socket.send(frozen.clone()).unwrap());
            driver.turn(Wait::No).unwrap();
            let frozen = frozen.try_unfreeze().expect_err("it is on loan");
            // The same from another thread, which has nothing to do with the driver.
            let frozen = thread::spawn(|| frozen.try_unfreeze().expect_err("it is on loan"));
            let frozen = frozen.join().unwrap();
            let reader = thread::spawn(move || {
                let mut got = vec![0; 1 << 20];
                far.read_exact(&mut got).unwrap();
                got
            });
            while driver.in_flight() > 0 {
                driver.turn(Wait::Event).unwrap();
            }
            assert!(reader.join().unwrap() == pattern(3, 1 << 20), "{engine}");
            assert_eq!(frozen.try_unfreeze().expect("all is over").len(), 1 << 20);
        }
    });
}

/// The kernel may still have pages when a driver goes; then nobody may write them again.
#[test]
fn a_driver_that_goes_gives_back_only_what_the_kernel_let_go() {
    within(LONG, || {
        for engine in [Engine::Copy, Engine::MsgZerocopy, Engine::UringZc] {
            let ring = if engine == Engine::UringZc { RingUse::Prefer } else { RingUse::Avoid };
            let driver = Driver::builder().ring(ring).build().unwrap();
            if engine == Engine::UringZc && driver.ring_unavailable().is_some() {
                continue;
            }
            let (near, mut far) = narrow_tcp();
            let socket = driver.socket(near).unwrap();
            socket.set_engine(engine).unwrap();
            let mut region = Region::anonymous(1 << 20).unwrap();
            let frozen = filled(&mut region, 3, 1 << 20).freeze();
            drop(socket.send(frozen.clone()).unwrap());
            driver.turn(Wait::No).unwrap();
            drop((socket, driver));
            // What was in the socket's buffer at the end is read from the lent pages only now.
            if let Ok(mut buffer) = frozen.try_unfreeze() {
                buffer.fill(0xff);
            }
            let mut got = Vec::new();
            let _ = far.read_to_end(&mut got);
            traffic::assert_same(&got, &pattern(3, 1 << 20)[..got.len()]);
            assert!(!got.is_empty());
        }
    });
}

/// Locked memory is counted for those who have a limit. All threads become such a user, with the limit that most
/// systems have; whether that is possible.
fn become_limited() -> bool {
    let room = Some(8 << 20);
    if setrlimit(Resource::Memlock, Rlimit { current: room, maximum: room }).is_err() {
        return false;
    }
    if rustix::process::geteuid().is_root() {
        const USER: u32 = 65_532;
        // SAFETY: plain system calls without memory.
        let changed = unsafe { libc::setresuid(USER, USER, USER) };
        assert_eq!(changed, 0, "root may become {USER}");
        // Without this, older kernels keep what a process may find out about itself from it.
        rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable).unwrap();
    }
    true
}

fn pinned() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// Registers through the frozen buffer, sends a part of it, and says how its pages are pinned.
fn sends_registered(driver: &Driver, frozen: &Frozen) -> Pinning {
    let pinning = driver.register(frozen).unwrap();
    let mut readers = Readers::new();
    let (near, far) = tcp("127.0.0.1");
    readers.add(far);
    let socket = driver.socket(near).unwrap();
    socket.set_engine(Engine::UringZc).unwrap();
    let finished = driver.block_on(async { socket.send(frozen.part(5..)).unwrap().await }).unwrap();
    assert_eq!(finished.sent.unwrap(), LEN - 5);
    drop(socket);
    driver.turn(Wait::No).unwrap();
    traffic::assert_same(&readers.end()[0], &pattern(9, LEN)[5..]);
    pinning
}

#[test]
fn drivers_of_many_threads_share_one_pinning() {
    let test = "drivers_of_many_threads_share_one_pinning";
    if !traffic::alone(test) {
        return;
    }
    within(LONG, move || {
        const THREADS: usize = 12;
        /// So little that all of it may be pinned for each of them.
        const REGION: usize = 512 << 10;
        if !become_limited() {
            return traffic::skip(test, "the limit on locked memory is too low");
        }
        let driver = Driver::new().unwrap();
        if let Some(reason) = driver.ring_unavailable() {
            return traffic::skip(test, reason);
        }
        let before = pinned();
        let mut region = Region::anonymous(REGION).unwrap();
        let frozen = filled(&mut region, 9, LEN).freeze();
        assert_eq!(sends_registered(&driver, &frozen), Pinning::Own);
        let of_one = pinned() - before;
        assert_eq!(of_one, REGION as u64);
        assert!(driver.register(&region).unwrap_err().to_string().contains("already"));
        let (leave, left) = mpsc::channel::<()>();
        let left = Arc::new(Mutex::new(left));
        let (tell, told) = mpsc::channel();
        let threads: Vec<_> = (0..THREADS)
            .map(|number| {
                let (frozen, tell, left) = (frozen.clone(), tell.clone(), left.clone());
                thread::spawn(move || {
                    let driver = Driver::new().unwrap();
                    tell.send(sends_registered(&driver, &frozen)).unwrap();
                    let _ = left.lock().unwrap().recv();
                    // Some say that they leave, some just go.
                    if number % 2 == 0 {
                        driver.unregister(&frozen).unwrap();
                    }
                })
            })
            .collect();
        let how: Vec<_> = threads.iter().map(|_| told.recv().unwrap()).collect();
        let of_all = pinned() - before;
        match &how[0] {
            Pinning::Shared => {
                assert!(how.iter().all(|how| *how == Pinning::Shared), "{how:?}");
                assert_eq!(of_all, of_one, "the pages are pinned once");
            }
            Pinning::Again(reason) => {
                assert!(how.iter().all(|how| matches!(how, Pinning::Again(_))), "{how:?}");
                assert!(reason.contains("6.13"), "{reason}");
                assert_eq!(of_all, of_one * (THREADS as u64 + 1));
            }
            Pinning::Own => panic!("another driver has it"),
        }
        // The first goes, and the others go on.
        driver.unregister(&region).unwrap();
        assert!(driver.unregister(&frozen).is_err());
        drop(leave);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        // The kernel takes rings down a little later.
        while pinned() > before {
            thread::yield_now();
        }
        assert_eq!(frozen.try_unfreeze().unwrap().len(), LEN);
        // As at the beginning.
        assert_eq!(driver.register(&region).unwrap(), Pinning::Own);
    });
}

#[test]
fn memory_of_the_heap_is_not_registered() {
    let driver = Driver::new().unwrap();
    if driver.ring_unavailable().is_some() {
        return;
    }
    let error = driver.register(&handoff::Buffer::from(vec![1; 64]).freeze()).unwrap_err();
    assert!(error.to_string().contains("Region"), "{error}");
}

#[derive(Clone, Debug)]
enum Step {
    Clone(usize),
    Part(usize, usize, usize),
    Drop(usize),
    Send {
        handle: usize,
        socket: usize,
    },
    Turn(usize),
    /// Takes back what has come, of one loan.
    Take(usize),
    DropLoan(usize),
    Cancel(usize),
    Unfreeze(usize),
    Register(usize),
    Unregister(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let any = any::<usize>;
    prop_oneof![
        2 => any().prop_map(Step::Clone),
        2 => (any(), any(), any()).prop_map(|(handle, start, len)| Step::Part(handle, start, len)),
        2 => any().prop_map(Step::Drop),
        6 => (any(), any()).prop_map(|(handle, socket)| Step::Send { handle, socket }),
        4 => any().prop_map(Step::Turn),
        3 => any().prop_map(Step::Take),
        1 => any().prop_map(Step::DropLoan),
        1 => any().prop_map(Step::Cancel),
        4 => any().prop_map(Step::Unfreeze),
        1 => any().prop_map(Step::Register),
        1 => any().prop_map(Step::Unregister),
    ]
}

/// A clone or part, and which bytes it has to have.
struct Held {
    frozen: Frozen,
    seed: usize,
    start: usize,
}

/// The frozen buffers of a case: few, so that clones of one meet.
const WHOLES: usize = 3;
const SHORT: usize = 6000;

/// One driver and its sockets: a stream and one for datagrams. All that a stream sent is looked at in the end.
struct Place {
    driver: Driver,
    sockets: Vec<Socket>,
}

struct Model {
    places: Vec<Place>,
    region: Region,
    /// What the program has in hand, by the buffer that it is of.
    held: Vec<(usize, Held)>,
    loans: Vec<Loan>,
    /// Bytes that each stream was given.
    streams: Vec<Vec<u8>>,
    seeds: usize,
}

/// A send under way, and what it has to bring back.
struct Loan {
    whole: usize,
    seed: usize,
    start: usize,
    len: usize,
    on_loan: OnLoan<Frozen>,
    sent: Sent,
    stream: bool,
}

impl Model {
    fn pick(&self, number: usize) -> Option<usize> {
        (!self.held.is_empty()).then(|| number % self.held.len())
    }

    /// Handles and loans of one buffer that the program can see; those that it dropped are with the kernel for
    /// as long as that likes.
    fn seen(&self, whole: usize) -> usize {
        let held = self.held.iter().filter(|(of, _)| *of == whole).count();
        held + self.loans.iter().filter(|loan| loan.whole == whole).count()
    }

    fn act(&mut self, step: &Step) {
        match *step {
            Step::Clone(number) => {
                let Some(at) = self.pick(number) else { return };
                let (whole, held) = &self.held[at];
                let again = Held { frozen: held.frozen.clone(), ..*held };
                self.held.push((*whole, again));
            }
            Step::Part(number, start, len) => {
                let Some(at) = self.pick(number) else { return };
                let (whole, held) = &self.held[at];
                let start = start % (held.frozen.len() + 1);
                let len = len % (held.frozen.len() - start + 1);
                let part = Held {
                    frozen: held.frozen.part(start..start + len),
                    seed: held.seed,
                    start: held.start + start,
                };
                self.held.push((*whole, part));
            }
            Step::Drop(number) => {
                let Some(at) = self.pick(number) else { return };
                // One is kept of each.
                if self.held.iter().filter(|(of, _)| *of == self.held[at].0).count() > 1 {
                    self.held.swap_remove(at);
                }
            }
            Step::Send { handle, socket } => self.send(handle, socket),
            Step::Turn(place) => {
                let places = self.places.len();
                self.places[place % places].driver.turn(Wait::No).unwrap();
            }
            Step::Take(number) => {
                if self.loans.is_empty() {
                    return;
                }
                let at = number % self.loans.len();
                let loan = self.loans.swap_remove(at);
                self.take(loan);
            }
            Step::DropLoan(number) => {
                if !self.loans.is_empty() {
                    let at = number % self.loans.len();
                    drop(self.loans.swap_remove(at));
                }
            }
            Step::Cancel(number) => {
                // Of a datagram: a stream would be broken, or not, which the model does not know.
                let datagrams: Vec<_> = self.loans.iter().filter(|loan| !loan.stream).collect();
                if !datagrams.is_empty() {
                    datagrams[number % datagrams.len()].sent.cancel();
                }
            }
            Step::Unfreeze(number) => self.unfreeze(number),
            Step::Register(place) => {
                let places = self.places.len();
                let _ = self.places[place % places].driver.register(&self.region);
            }
            Step::Unregister(place) => {
                let places = self.places.len();
                let _ = self.places[place % places].driver.unregister(&self.region);
            }
        }
    }

    fn send(&mut self, handle: usize, socket: usize) {
        let Some(at) = self.pick(handle) else { return };
        let (whole, held) = &self.held[at];
        let number = socket % (self.places.len() * 2);
        let (place, stream) = (number / 2, number.is_multiple_of(2));
        let socket = &self.places[place].sockets[number % 2];
        let Held { seed, start, .. } = *held;
        let (sent, on_loan) = match socket.send(held.frozen.clone()) {
            Ok(sending) => sending.split(),
            Err(refused) => {
                assert_eq!(refused.buffer[..], held.frozen[..]);
                return;
            }
        };
        if stream {
            self.streams[place].extend_from_slice(&held.frozen);
        }
        let (whole, len) = (*whole, held.frozen.len());
        self.loans.push(Loan { whole, seed, start, len, on_loan, sent, stream });
    }

    /// Takes a loan back, or leaves it where it is.
    fn take(&mut self, loan: Loan) {
        let Loan { whole, seed, start, len, .. } = loan;
        match loan.on_loan.try_take() {
            Ok(Returned { buffer, .. }) => {
                assert_eq!(buffer[..], pattern(seed, SHORT)[start..start + len]);
                self.held.push((whole, Held { frozen: buffer, seed, start }));
            }
            Err(on_loan) => self.loans.push(Loan { on_loan, ..loan }),
        }
    }

    fn unfreeze(&mut self, number: usize) {
        let Some(at) = self.pick(number) else { return };
        let (whole, held) = self.held.swap_remove(at);
        match held.frozen.try_unfreeze() {
            Err(frozen) => self.held.push((whole, Held { frozen, ..held })),
            Ok(mut buffer) => {
                assert_eq!(self.seen(whole), 0, "it was unfrozen while others had it");
                assert_eq!(buffer[..], pattern(held.seed, SHORT));
                self.seeds += 1;
                buffer.copy_from_slice(&pattern(self.seeds, SHORT));
                let frozen = buffer.freeze();
                self.held.push((whole, Held { frozen, seed: self.seeds, start: 0 }));
            }
        }
    }
}

fn random_graph(steps: &[Step], engines: [Engine; 3]) {
    let rings = [RingUse::Prefer, RingUse::Prefer, RingUse::Avoid];
    let mut readers = Readers::new();
    let far = UdpSocket::bind("127.0.0.1:0").unwrap();
    let places = rings.into_iter().zip(engines).map(|(ring, engine)| {
        let driver = Driver::builder().ring(ring).build().unwrap();
        let (near, far_end) = narrow_tcp();
        readers.add(far_end);
        let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
        datagrams.connect(far.local_addr().unwrap()).unwrap();
        let sockets = vec![driver.socket(near).unwrap(), driver.socket(datagrams).unwrap()];
        for socket in &sockets {
            // Where there is no ring, the choice stays free.
            let _ = socket.set_engine(engine);
        }
        Place { driver, sockets }
    });
    let places: Vec<_> = places.collect();
    let mut region = Region::anonymous(WHOLES * 8192).unwrap();
    let held = (0..WHOLES).map(|seed| {
        let frozen = filled(&mut region, seed, SHORT).freeze();
        (seed, Held { frozen, seed, start: 0 })
    });
    let held = held.collect();
    let streams = vec![Vec::new(); places.len()];
    let mut model = Model { places, region, held, loans: Vec::new(), streams, seeds: WHOLES };
    steps.iter().for_each(|step| model.act(step));
    // All that is under way ends, and then each buffer is free with its last handle.
    while !model.loans.is_empty() || model.places.iter().any(|place| place.driver.in_flight() > 0) {
        for place in &model.places {
            place.driver.turn(Wait::AtMost(Duration::from_millis(1))).unwrap();
        }
        let loans = std::mem::take(&mut model.loans);
        loans.into_iter().for_each(|loan| model.take(loan));
    }
    for whole in 0..WHOLES {
        let mut handles: Vec<_> =
            model.held.extract_if(.., |(of, _)| *of == whole).map(|(_, held)| held).collect();
        let last = handles.pop().expect("one of each is kept");
        drop(handles);
        last.frozen.try_unfreeze().expect("all loans are over");
    }
    let Model { places, streams, .. } = model;
    drop(places);
    for (got, sent) in readers.end().into_iter().zip(streams) {
        traffic::assert_same(&got, &sent);
    }
}

#[test]
fn clones_parts_and_loans_in_any_order() {
    within(LONG * 3, || {
        let cases = if std::env::var_os("HANDOFF_SOAK").is_some() {
            3_000
        } else if std::env::var_os("HANDOFF_EMULATED").is_some() {
            12
        } else {
            80
        };
        let config = ProptestConfig { cases, failure_persistence: None, ..Default::default() };
        let engines = prop_oneof![
            Just([Engine::UringZc, Engine::Auto, Engine::MsgZerocopy]),
            Just([Engine::UringZc, Engine::UringZc, Engine::Copy]),
            Just([Engine::MsgZerocopy, Engine::Copy, Engine::Auto]),
        ];
        let steps = prop::collection::vec(step(), 1..150);
        let mut runner = proptest::test_runner::TestRunner::new(config);
        let checked = runner.run(&(steps, engines), |(steps, engines)| {
            random_graph(&steps, engines);
            Ok(())
        });
        if let Err(error) = checked {
            panic!("{error}");
        }
    });
}

/// Threads with drivers of their own hand clones around and write what they could unfreeze.
#[test]
fn threads_that_share_never_see_a_byte_change() {
    const THREADS: usize = 4;
    const ROUNDS: usize = 300;
    const MOST: usize = 2 * THREADS;
    within(LONG, || {
        let mut region = Region::anonymous(THREADS * 8192).unwrap();
        let first = |seed| (seed, filled(&mut region, seed, SHORT).freeze());
        let bag = Mutex::new(VecDeque::from_iter((0..THREADS).map(first)));
        let run = |number: usize| {
            let ring = if number == 1 { RingUse::Avoid } else { RingUse::Prefer };
            let driver = Driver::builder().ring(ring).build().unwrap();
            if number != 2 {
                let _ = driver.register(&region);
            }
            let (near, far) = tcp("127.0.0.1");
            let mut readers = Readers::new();
            readers.add(far);
            let socket = driver.socket(near).unwrap();
            let mut expected = Vec::new();
            let mut seed = 1000 * (number + 1);
            for _ in 0..ROUNDS {
                let (of, frozen) = loop {
                    match bag.lock().unwrap().pop_front() {
                        Some(next) => break next,
                        None => thread::yield_now(),
                    }
                };
                assert_eq!(frozen[..], pattern(of, SHORT));
                expected.extend_from_slice(&frozen);
                drop(socket.send(frozen.clone()).unwrap());
                driver.turn(Wait::No).unwrap();
                let next = match frozen.try_unfreeze() {
                    Ok(mut buffer) => {
                        seed += 1;
                        buffer.copy_from_slice(&pattern(seed, SHORT));
                        (seed, buffer.freeze())
                    }
                    Err(frozen) => (of, frozen),
                };
                let mut bag = bag.lock().unwrap();
                // Two others may have it at once.
                if bag.len() < MOST {
                    bag.push_back(next.clone());
                }
                bag.push_back(next);
            }
            while driver.in_flight() > 0 {
                driver.turn(Wait::Event).unwrap();
            }
            drop(socket);
            driver.turn(Wait::No).unwrap();
            traffic::assert_same(&readers.end()[0], &expected);
        };
        thread::scope(|scope| {
            for number in 0..THREADS {
                let run = &run;
                scope.spawn(move || run(number));
            }
        });
    });
}
